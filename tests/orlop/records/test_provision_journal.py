from __future__ import annotations

import base64
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.records.provision_journal import (
    JournalEntry,
    PageOverflow,
    UnreadablePage,
    decode_page,
    encode_page,
    split_into_pages,
)
from orlop.records.volume_order import ClaimIdentity, TopologyRequest
from support.provisioning.volume_orders import order, orders

entries = some.builds(
    JournalEntry,
    orders,
    some.floats(0, 4e9),
    some.floats(0, 600),
    some.booleans(),
    some.lists(orders, max_size=2).map(tuple),
)


def of_claims(count: int, nodes: int) -> list[JournalEntry]:
    terms = tuple((("topology.example.com/node", f"node-{number:04}.example.com"),) for number in range(nodes))
    return [
        JournalEntry(
            order(
                claim=ClaimIdentity("team", f"data-{number}", f"{number:08}-2222-3333-4444-555555555555"),
                volume_name=f"pvc-{number:08}-2222-3333-4444-555555555555",
                placement=TopologyRequest(terms, (*terms[number % 3 :], *terms[: number % 3])),
                storage={"parameters": (("type", "fast"),)},
            ),
            1e9 + number,
            10.0,
        )
        for number in range(count)
    ]


@given(some.lists(entries, max_size=5))
def test_what_was_written_is_read_back(written: list[JournalEntry]):
    assert decode_page(encode_page(written)) == tuple(written)


@given(some.lists(entries, max_size=8), some.integers(500, 3000))
def test_pages_hold_every_entry_once_in_order_and_none_is_too_large(written: list[JournalEntry], largest: int):
    try:
        pages = split_into_pages(written, largest)
    except PageOverflow as error:
        assert "too large for the journal" in str(error)  # noqa: PT017 - either way is right
    else:
        assert [entry for page in pages for entry in page] == written
        assert all(len(encode_page(page)) <= largest for page in pages)
        assert all(pages)


def test_a_topology_of_a_thousand_nodes_is_stored_once_for_each_order_of_it_and_not_for_each_claim():
    of_three, of_a_hundred = (len(encode_page(of_claims(count, nodes=1000))) for count in (3, 100))

    assert of_a_hundred < of_three + 100 * 120


def test_four_thousand_claims_in_flight_fit_into_few_leases():
    pages = split_into_pages(of_claims(4000, nodes=1000))

    assert len(pages) <= 3


def packed(document: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "no base64!",
        base64.b64encode(b"no zlib").decode(),
        packed([]),
        packed({"version": 1}),
        packed({"version": 1, "classes": {}, "placements": {}, "entries": [{"deadline": 1}]}),
        packed(
            {
                "version": 1,
                "classes": {},
                "placements": {},
                "entries": [{"deadline": 1, "storage": "a", "placement": "b", "order": {}}],
            }
        ),
        encode_page(of_claims(2, 3))[:-40],
    ],
)
def test_a_damaged_page_is_an_error_in_words(damaged: str):
    with pytest.raises(UnreadablePage, match="the page is"):
        decode_page(damaged)


def test_a_page_of_a_newer_version_is_an_error_in_words():
    with pytest.raises(UnreadablePage, match="format 7; this version of Orlop reads format 1"):
        decode_page(packed({"version": 7, "anything": "else"}))


def test_a_small_page_that_would_fill_the_memory_is_refused():
    bomb = base64.b64encode(zlib.compress(b" " * (65 << 20))).decode()

    assert len(bomb) < 100_000
    with pytest.raises(UnreadablePage, match="larger than Orlop ever writes"):
        decode_page(bomb)
