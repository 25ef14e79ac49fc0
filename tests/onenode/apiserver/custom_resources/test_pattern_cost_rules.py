from __future__ import annotations

import pytest

from onenode.apiserver.custom_resources.pattern_cost_rules import PatternCost


@pytest.mark.parametrize(
    ("pattern", "written_out"),
    [
        ("a{3}", "aaa"),
        ("a{2,5}b", "aaaaab"),
        ("a{2,}b", "aab"),
        ("(ab){2}", "abab"),
        ("((ab){2}c){2}", "ababcababc"),
        ("(?:a|[bc]{2})", "(?:a|[bc][bc])"),
        (r"[\]}{4}]{2}", r"[\]}{4}][\]}{4}]"),
        (r"\(a\){2}", r"\(a\)\)"),
        ("[[:alpha:]_]{2}", "[[:alpha:]_][[:alpha:]_]"),
        (r"\p{Greek}{2}", r"\p{Greek}\p{Greek}"),
    ],
)
def test_a_repetition_costs_what_it_repeats(pattern: str, written_out: str):
    assert PatternCost.of(pattern) == PatternCost.of(written_out)


def test_classes_of_all_languages_are_the_dearest():
    plain, negated, letters = (PatternCost.of(pattern).compiling for pattern in ("[ab]", "[^ab]", r"[\pL]"))

    assert plain < negated < letters


def test_a_pattern_with_brackets_missing_has_a_cost():
    """It is refused when it is compiled; the cost is known before."""
    assert PatternCost.of("(a{9}").places == 9
    assert PatternCost.of("a)b]").places == 3


def test_no_pattern_costs_more_than_the_library_compiles():
    assert PatternCost.of(r"(\pL{1000}){1000}").compiling < 300_000_000


def test_a_search_costs_more_for_a_longer_text():
    cost = PatternCost.of("a[ab]{900}c")

    assert cost.of_search(0) == cost.compiling
    assert cost.of_search(20_000) > 500_000_000
