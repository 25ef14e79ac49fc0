"""What the registrar does next, decided from what is known."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orlop.sidecars.registrar.registration_rules import (
    Announce,
    AskName,
    AskNode,
    NodeInfo,
    NodeInfoUnimplemented,
    RegistrationState,
    Remember,
    UpToDate,
    after_announcing,
    next_step,
    on_connection,
)

FACTS = st.builds(
    NodeInfo,
    st.sampled_from(["n1", "n2"]),
    st.sampled_from([(), (("zone", "a"),), (("rack", "1"), ("zone", "a"))]),
    st.sampled_from([0, 5]),
)
ANSWERS = FACTS | st.just(NodeInfoUnimplemented()) | st.none()
"""None: the driver failed to answer on this connection, and another came."""


def test_the_name_is_asked_first_then_announced_then_the_node_is_asked():
    known = on_connection(RegistrationState(), 1)
    assert next_step(known) == AskName()

    known = replace(known, name="a")
    assert next_step(known) == Announce("a", "driver found")

    known = after_announcing(known, "a")
    assert next_step(known) == AskNode()

    known = replace(known, node=NodeInfo("n1"))
    assert next_step(known) == Remember("a")
    assert next_step(after_announcing(known, "a")) == UpToDate()


def test_a_driver_without_a_node_service_is_announced_all_the_same():
    known = after_announcing(replace(on_connection(RegistrationState(), 1), name="a"), "a")

    assert next_step(replace(known, node=NodeInfoUnimplemented())) == UpToDate()


@given(st.lists(st.tuples(st.sampled_from("ab"), ANSWERS), min_size=1, max_size=8))
def test_what_is_announced_in_the_end_is_what_the_driver_last_said_and_no_socket_is_made_in_vain(
    drivers: list[tuple[str, NodeInfo | NodeInfoUnimplemented | None]],
):
    known, announcements, expected, before = RegistrationState(), 0, 0, None
    for number, (name, node) in enumerate(drivers, start=1):
        known = on_connection(known, number)
        expected += 1 if before is None or before[0] != name or _unlike(before[1], node) else 0
        known, made = _settle(known, name, node)
        announcements += made
        before = (name, node if isinstance(node, NodeInfo) else _still(before, name))

    name, node = drivers[-1]
    assert known.announced is not None
    assert known.announced.name == name
    assert not isinstance(node, NodeInfo) or known.announced.node == node
    assert announcements == expected


def _unlike(before: NodeInfo | None, after: NodeInfo | NodeInfoUnimplemented | None) -> bool:
    return isinstance(after, NodeInfo) and before != after


def _still(before: tuple[str, NodeInfo | None] | None, name: str) -> NodeInfo | None:
    return before[1] if before is not None and before[0] == name else None


def _settle(
    known: RegistrationState, name: str, node: NodeInfo | NodeInfoUnimplemented | None
) -> tuple[RegistrationState, int]:
    """Takes the steps of one connection until there is none, or the driver does not answer."""
    made = 0
    for _ in range(10):
        match next_step(known):
            case AskName():
                known = replace(known, name=name)
            case AskNode():
                if node is None:
                    return known, made
                known = replace(known, node=node)
            case Announce(announced):
                made += 1
                known = after_announcing(known, announced)
            case Remember(announced):
                known = after_announcing(known, announced)
            case UpToDate():
                return known, made
    raise AssertionError("it never settles")
