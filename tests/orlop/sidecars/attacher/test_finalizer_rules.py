"""Whether a driver needs an attacher beside it."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.sidecars.attacher.finalizer_rules import finalizer_of, needs_attacher

DRIVER = "d.example"
Object = dict[str, Any]


def says(*, required: bool | None) -> Object:
    return {"spec": {} if required is None else {"attachRequired": required}}


def volume(driver: str = DRIVER, *finalizers: str) -> Object:
    return {"metadata": {"finalizers": list(finalizers)}, "spec": {"csi": {"driver": driver}}}


def attachment(driver: str = DRIVER) -> Object:
    return {"spec": {"attacher": driver}}


NOT_REQUIRED = says(required=False)
CASES = [
    ("it has a volume, and says nothing", None, [volume()], [], True),
    ("it has a volume, and its object says nothing", says(required=None), [volume()], [], True),
    ("it has a volume that must be attached", says(required=True), [volume()], [], True),
    ("it has a volume that need not be attached", NOT_REQUIRED, [volume()], [], False),
    ("it has no volume", None, [], [], False),
    ("another has volumes", None, [volume("other"), {"spec": {"hostPath": {}}}, {}], [attachment("other"), {}], False),
    ("something of it is attached", NOT_REQUIRED, [], [attachment()], True),
    ("a volume waits for our finalizer", NOT_REQUIRED, [volume(DRIVER, finalizer_of(DRIVER))], [], True),
]


@pytest.mark.parametrize(
    ("csi_driver", "volumes", "attachments", "needed"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_driver_needs_an_attacher_when_it_has_something_to_attach_or_to_detach(
    csi_driver: Object | None, volumes: list[Object], attachments: list[Object], *, needed: bool
):
    assert needs_attacher(DRIVER, csi_driver, volumes, attachments) is needed
