from __future__ import annotations

import msgspec
import pytest

from onenode.apiserver.store.versions import DecodedObjects, Stored, fresh
from support.api.object_stores import encoded, pod


def stored(revision: int) -> Stored:
    return Stored(pod("a"), revision, encoded(revision, "x"))


def test_a_version_is_decoded_once_for_all_who_look_into_it():
    objects = DecodedObjects()

    assert objects.of(stored(2)) is objects.of(stored(2))
    assert objects.of(stored(2)) == {"metadata": {"resourceVersion": "2"}, "value": "x"}
    assert objects.of(stored(3))["metadata"]["resourceVersion"] == "3"


def test_only_those_last_looked_into_are_remembered():
    objects = DecodedObjects(most=2)
    first, second = objects.of(stored(1)), objects.of(stored(2))
    objects.of(stored(1))
    objects.of(stored(3))

    assert objects.of(stored(1)) is first
    assert objects.of(stored(2)) is not second
    assert len(objects._values) == 2


def test_whoever_builds_a_new_version_has_values_of_his_own():
    objects = DecodedObjects()
    own = fresh(stored(2))
    own["metadata"]["labels"] = {"a": "b"}

    assert "labels" not in objects.of(stored(2))["metadata"]


def test_what_is_no_object_is_an_error_and_not_remembered():
    objects = DecodedObjects()
    for json in (b"[]", b"{", b"\xff"):
        with pytest.raises(msgspec.DecodeError):
            objects.of(Stored(pod("a"), 2, json))
    assert objects.of(stored(2))
