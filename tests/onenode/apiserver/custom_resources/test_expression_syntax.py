from __future__ import annotations

from onenode.apiserver.custom_resources.expression_syntax import (
    Call,
    Collection,
    Literal,
    Loop,
    NameReference,
    Selection,
    Syntax,
)
from onenode.apiserver.custom_resources.expressions import compile_expression


def syntax(text: str) -> Syntax:
    return compile_expression(text, "bool").syntax()


def test_a_member_has_its_value_as_the_first_argument():
    assert syntax("self.a.startsWith('x')") == Call("startsWith", (Selection(NameReference("self"), "a"), Literal("x")))


def test_lists_and_maps_have_all_their_parts():
    both = syntax("dyn([1, self]) == dyn({'a': self, 'b': [2.5]})")

    assert isinstance(both, Call)
    number = Literal(None)
    assert both.arguments == (
        Call("dyn", (Collection((number, NameReference("self"))),)),
        Call("dyn", (Collection((Literal("a"), NameReference("self"), Literal("b"), Collection((number,)))),)),
    )


def test_a_macro_is_a_loop():
    loop = syntax("self.all(x, x == 'a')")

    assert isinstance(loop, Loop)
    assert (loop.variables, loop.range) == (("x",), NameReference("self"))
    assert loop.step == Call(
        "_&&_", (NameReference(loop.accumulator), Call("_==_", (NameReference("x"), Literal("a"))))
    )
    assert loop.result == NameReference(loop.accumulator)


def test_a_bound_value_is_the_accumulator_of_a_loop_over_nothing():
    bound = syntax("cel.bind(v, self.a, v == 'b')")

    assert isinstance(bound, Loop)
    assert (bound.range, bound.accumulator, bound.initial) == (
        Collection(()),
        "v",
        Selection(NameReference("self"), "a"),
    )
    assert bound.result == Call("_==_", (NameReference("v"), Literal("b")))
