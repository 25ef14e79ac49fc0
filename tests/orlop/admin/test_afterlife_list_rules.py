"""Which folders of a list are shown, in which order, by which short ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orlop.admin.afterlife_list_rules import ORDERS, Wanted, chosen, short_ids
from orlop.records.afterlife_report import FolderRow

NAMES = st.sampled_from(["web-0", "web-1", "db-0"])
ROWS = st.lists(
    st.builds(
        FolderRow,
        volume_id=st.text("ab", min_size=1, max_size=4),
        pod=NAMES,
        namespace=st.sampled_from(["shop", "lab"]),
        deleted_at=st.just(0.0),
        age_seconds=st.floats(0, 100),
        lifespan_seconds=st.just(100.0),
        erased_in_seconds=st.floats(0, 100),
        bytes_used=st.none() | st.integers(0, 100),
    ),
    unique_by=lambda row: row.volume_id,
)
WANTED = st.builds(
    Wanted,
    st.none() | st.sampled_from(["shop", "none"]),
    st.none() | st.sampled_from(["web-*", "web-0", "?b-0"]),
    st.none() | st.floats(0, 100),
    st.none() | st.floats(0, 100),
)


@given(ROWS, WANTED, st.sampled_from(sorted(ORDERS)), st.booleans())
def test_a_choice_is_some_of_the_rows_the_same_whatever_their_order(rows, wanted, order, reverse):
    found = chosen(rows, wanted, order, reverse=reverse)

    assert {row.volume_id for row in found} == {row.volume_id for row in rows if wanted.includes(row)}
    assert chosen(rows[::-1], wanted, order, reverse=reverse) == found


def row(volume_id: str, **facts: object) -> FolderRow:
    given_facts = {"deleted_at": 0.0, "age_seconds": 0.0, "lifespan_seconds": 0.0, "erased_in_seconds": 0.0, **facts}
    return FolderRow(volume_id, **{"pod": "web-0", "namespace": "shop", **given_facts})  # type: ignore[arg-type]


def ids(rows: list[FolderRow]) -> list[str]:
    return [each.volume_id for each in rows]


def test_the_last_deleted_the_largest_and_the_next_to_go_come_first():
    a = row("a", age_seconds=5.0, bytes_used=10, erased_in_seconds=3.0)
    b = row("b", age_seconds=1.0, bytes_used=None, erased_in_seconds=9.0)
    c = row("c", age_seconds=9.0, bytes_used=99, erased_in_seconds=5.0)

    assert ids(chosen([a, b, c], Wanted(), "deleted")) == ["b", "a", "c"]
    assert ids(chosen([a, b, c], Wanted(), "size")) == ["c", "a", "b"]
    assert ids(chosen([a, b, c], Wanted(), "erased")) == ["a", "c", "b"]
    assert ids(chosen([a, b, c], Wanted(), "erased", reverse=True)) == ["b", "c", "a"]


def test_ages_and_names_filter():
    old, young = row("old", age_seconds=100.0), row("young", age_seconds=10.0, pod="db-0", namespace="lab")

    assert ids(chosen([old, young], Wanted(older_than=50), "pod")) == ["old"]
    assert ids(chosen([old, young], Wanted(younger_than=50), "pod")) == ["young"]
    assert ids(chosen([old, young], Wanted(pod="db-*"), "pod")) == ["young"]
    assert ids(chosen([old, young], Wanted(namespace="shop"), "pod")) == ["old"]


@given(st.sets(st.text("ab", min_size=1, max_size=8)), st.integers(1, 6))
def test_a_short_id_means_its_folder_and_no_other(all_ids, least):
    for full, short in short_ids(all_ids, least).items():
        assert full.startswith(short)
        assert len(short) >= min(least, len(full))
        assert short == full or [each for each in all_ids if each.startswith(short)] == [full]
