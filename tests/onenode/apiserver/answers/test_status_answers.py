"""Warnings fit into a header, whatever a client has sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.answers.status_answers import MOST_CHARACTERS, MOST_OF_EACH, warning_header


def test_each_warning_stands_once_and_in_quotes():
    header = warning_header(['unknown field "a\\tb"', "second", "second"])

    assert header == r'299 - "unknown field \"a\\tb\"", 299 - "second"'


def test_a_long_warning_alone_is_kept_whole_while_it_fits():
    assert warning_header(["x" * MOST_CHARACTERS]) == f'299 - "{"x" * MOST_CHARACTERS}"'


def test_warnings_that_are_too_long_together_are_cut():
    header = warning_header(["x" * 100_000, "second"])

    assert header == f'299 - "{"x" * MOST_OF_EACH}", 299 - "second"'


def test_warnings_that_are_too_many_are_left_out_from_the_end():
    header = warning_header([f"{number:03}{'x' * 1000}" for number in range(100)])

    assert header.count("299 - ") == MOST_CHARACTERS // MOST_OF_EACH
    assert header.startswith('299 - "000')


def test_what_cannot_stand_in_a_header_becomes_a_blank():
    assert warning_header(["a\r\nb\x00"]) == '299 - "a  b "'


@given(st.lists(st.text(max_size=2000), max_size=50))
def test_a_header_is_one_line_of_a_length_that_every_client_reads(warnings: list[str]):
    header = warning_header(warnings)

    assert not {"\r", "\n", "\0"} & set(header)
    assert len(header) <= 2 * MOST_CHARACTERS + len('299 - "", ') * len(set(warnings))
