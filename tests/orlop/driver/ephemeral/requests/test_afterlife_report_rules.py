"""Which folder is meant, how long it may be kept, what goes next."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from orlop.driver.ephemeral.afterlife.retention_rules import Erase, Reason, RetainedFolder, Wait, next_step
from orlop.driver.ephemeral.requests.afterlife_report_rules import (
    FolderFacts,
    KeepFor,
    KeptAlready,
    Meant,
    NotMeant,
    TooLong,
    folder_meant,
    keep_decision,
    next_to_go,
    row_of,
    usage_by_namespace,
)
from orlop.records.ephemeral_folder import Burial, FolderOptions, FolderRecord, Owner

IDS = st.text("ab-", min_size=1, max_size=5)
SPANS = st.floats(0, 1e6)


@given(IDS, st.sets(IDS), st.sets(IDS))
def test_a_folder_is_meant_by_its_id_or_by_a_beginning_that_no_other_has(wanted, retained, live):
    meant = folder_meant(wanted, retained, live)
    beginning = {each for each in retained if each.startswith(wanted)}
    if wanted in retained:
        assert meant == Meant(wanted)
    elif len(beginning) == 1:
        assert meant == Meant(*beginning)
    else:
        assert isinstance(meant, NotMeant)
        alive = any(each.startswith(wanted) for each in live)
        assert meant.why == ("wrong-use" if beginning else "refused" if alive else "not-found")


def test_a_folder_that_was_given_back_and_is_still_mounted_is_told_apart_from_a_living_pods():
    lives = folder_meant("a", (), {"a"})
    waits = folder_meant("a", (), {"a"}, {"a"})

    assert isinstance(lives, NotMeant)
    assert isinstance(waits, NotMeant)
    assert "belongs to a living pod" in lives.sentence
    assert "something still has it mounted" in waits.sentence


def test_nothing_is_meant_by_nothing():
    assert isinstance(folder_meant("", {"a"}, {"b"}), NotMeant)


def test_of_many_candidates_some_are_named_and_the_rest_counted():
    meant = folder_meant("csi-", {f"csi-{number}" for number in range(9)}, ())

    assert isinstance(meant, NotMeant)
    assert "9 volume ids: csi-0, csi-1, csi-2, csi-3, csi-4 and 4 more" in meant.sentence


@given(SPANS, SPANS, SPANS, SPANS)
def test_keeping_never_shortens_and_never_goes_beyond_the_limit(age, lifespan, wanted, longest):
    match keep_decision(age, lifespan, wanted, longest):
        case KeepFor(longer):
            assert lifespan < longer <= longest
            assert longer == age + wanted
        case KeptAlready():
            assert age + wanted <= lifespan
        case TooLong(most):
            assert wanted > most
            assert age + wanted > lifespan


@given(SPANS, SPANS, st.fractions(0, 1))
def test_a_row_says_when_its_folder_goes(age, lifespan, factor):
    record = FolderRecord("v", Owner(), FolderOptions(lifespan), 0.0, volume_name="scratch")
    row = row_of(
        FolderFacts(record, Burial("v", 5.0, lifespan), age, now=1000.0, path="/var/lib/orlop/ephemeral/retained/v"),
        factor,
    )

    assert row.erased_in_seconds == max(0.0, lifespan * float(factor) - age)
    assert row.erased_at == 1000.0 + row.erased_in_seconds
    assert (row.age_seconds, row.volume_name, row.path) == (age, "scratch", "/var/lib/orlop/ephemeral/retained/v")


FOLDERS = st.lists(
    st.builds(
        RetainedFolder,
        st.text("abc", min_size=1, max_size=3),
        st.sampled_from(["shop", "lab"]),
        SPANS,
        SPANS,
        st.none() | st.integers(0, 1000),
    ),
    unique_by=lambda folder: folder.name,
    max_size=8,
)


@given(FOLDERS, st.fractions(0, 1))
def test_what_is_told_to_go_next_is_what_the_reaper_erases_next(folders, factor: Fraction):
    told = next_to_go(folders, factor)
    match next_step(folders, factor):
        case Erase(name, reason):
            assert told == (name, reason)
        case Wait(None):
            assert told is None
        case Wait(seconds):
            assert told is not None
            (first,) = [folder for folder in folders if folder.name == told[0]]
            assert first.lifespan * float(factor) - first.age == seconds
            assert (told[1] is Reason.AGE) == (factor == 1)


@given(FOLDERS)
def test_usage_counts_every_folder_once_and_the_largest_namespace_comes_first(folders):
    usage = usage_by_namespace(folders)

    assert sum(each.folders for each in usage) == len(folders)
    assert sum(each.bytes for each in usage) == sum(folder.bytes_used or 0 for folder in folders)
    assert sum(each.unmeasured for each in usage) == sum(folder.bytes_used is None for folder in folders)
    assert [each.bytes for each in usage] == sorted((each.bytes for each in usage), reverse=True)
