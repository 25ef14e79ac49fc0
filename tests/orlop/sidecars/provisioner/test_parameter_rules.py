from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.records.volume_order import SecretReference
from orlop.sidecars.provisioner.parameter_rules import (
    KNOWN_RESERVED_KEYS,
    InvalidParameters,
    SecretUse,
    driver_parameters,
    fs_type,
    secret_reference,
    secret_references,
)

K = "csi.storage.k8s.io/"
OLD = {
    SecretUse.PROVISION: "csiProvisioner",
    SecretUse.CONTROLLER_PUBLISH: "csiControllerPublish",
    SecretUse.NODE_STAGE: "csiNodeStage",
    SecretUse.NODE_PUBLISH: "csiNodePublish",
}


def claim(name: str = "data", namespace: str = "team", **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "annotations": annotations}}


def pair(middle: str, name: str = "key", namespace: str = "vault") -> dict[str, str]:
    return {f"{K}{middle}secret-name": name, f"{K}{middle}secret-namespace": namespace}


def found(parameters: dict[str, str], use: SecretUse = SecretUse.PROVISION, of: Any = None) -> SecretReference | None:
    return secret_reference(use, parameters, "pvc-1", of or claim())


@pytest.mark.parametrize("use", SecretUse)
def test_each_call_has_a_pair_of_keys(use: SecretUse):
    assert found(pair(f"{use.value}-"), use) == SecretReference("vault", "key")
    assert all(found(pair(f"{use.value}-"), other) is None for other in SecretUse if other is not use)


@pytest.mark.parametrize("use", OLD)
def test_the_older_pair_is_read_too(use: SecretUse):
    old = {f"{OLD[use]}SecretName": "key", f"{OLD[use]}SecretNamespace": "vault"}

    assert found(old, use) == SecretReference("vault", "key")
    assert driver_parameters(old) == old


@pytest.mark.parametrize("use", OLD)
def test_both_spellings_at_once_are_refused_and_named(use: SecretUse):
    both = {**pair(f"{use.value}-"), f"{OLD[use]}SecretName": "key", f"{OLD[use]}SecretNamespace": "vault"}

    with pytest.raises(InvalidParameters, match=f"{K}{use.value}-secret-name and by {OLD[use]}SecretName"):
        found(both, use)


@pytest.mark.parametrize("middle", ["", *(f"{use.value}-" for use in SecretUse)])
@pytest.mark.parametrize("half", ["name", "namespace"])
def test_half_a_pair_is_refused_and_the_missing_key_is_named(middle: str, half: str):
    parameters = {f"{K}{middle}secret-{half}": "x"}
    missing = "namespace" if half == "name" else "name"

    with pytest.raises(InvalidParameters, match=rf"without {K}{middle}secret-{missing}: set both"):
        secret_references(parameters, "pvc-1", claim())


def test_the_default_pair_is_for_every_call_without_a_pair_of_its_own():
    parameters = {**pair(""), **pair("node-stage-", "stage")}

    references = secret_references(parameters, "pvc-1", claim())

    assert set(references) == set(SecretUse)
    assert references[SecretUse.NODE_STAGE].name == "stage"
    assert {one.name for use, one in references.items() if use is not SecretUse.NODE_STAGE} == {"key"}


@pytest.mark.parametrize(
    ("name", "namespace", "expected"),
    [
        ("${pv.name}", "${pvc.namespace}", ("team", "pvc-1")),
        ("${pvc.namespace}-${pvc.name}", "${pv.name}", ("pvc-1", "team-data")),
        ("${pvc.annotations['example.com/key']}", "vault", ("vault", "mine")),
        ("$plain", "vault", None),
    ],
)
def test_names_are_templates(name: str, namespace: str, expected: tuple[str, str] | None):
    of = claim(**{"example.com/key": "mine"})
    parameters = pair("provisioner-", name, namespace)

    if expected is None:
        with pytest.raises(InvalidParameters, match="unknown token"):
            found(parameters, of=of)
    else:
        assert found(parameters, of=of) == SecretReference(*expected)


@pytest.mark.parametrize(
    ("name", "namespace", "named"),
    [
        ("key", "${pvc.name}", "namespace: unknown token"),
        ("key", "${pvc.annotations['x']}", "namespace: unknown token"),
        ("${pod.name}", "vault", "name: unknown token"),
        ("${pvc.annotations['x']}", "vault", "no annotation x"),
        ("Key", "vault", "not a secret's name"),
        ("key", "va.ult", "not a namespace's name"),
        ("a" * 254, "vault", "not a secret's name"),
        ("../key", "vault", "not a secret's name"),
    ],
)
def test_a_template_that_cannot_be_a_name_is_refused_by_its_key(name: str, namespace: str, named: str):
    with pytest.raises(InvalidParameters, match=named):
        found(pair("provisioner-", name, namespace))


def test_what_a_user_put_into_an_annotation_is_not_repeated_in_the_error():
    with pytest.raises(InvalidParameters) as raised:
        found(pair("provisioner-", "${pvc.annotations['k']}"), of=claim(k="Canary Value"))

    assert "Canary" not in str(raised.value)


def test_reserved_keys_are_kept_from_the_driver_and_everything_else_is_passed_on():
    parameters = {**dict.fromkeys(KNOWN_RESERVED_KEYS, "x"), "type": "fast", "fsType": "xfs"}

    assert driver_parameters(parameters) == {"type": "fast", "fsType": "xfs"}


def test_an_unknown_reserved_key_is_refused_and_named():
    with pytest.raises(InvalidParameters, match=f"unknown parameter {K}provisoner-secret-name"):
        driver_parameters({f"{K}provisoner-secret-name": "x"})


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, "ext4"),
        ({f"{K}fstype": "xfs"}, "xfs"),
        ({"fstype": "xfs"}, "xfs"),
        ({"fsType": "btrfs"}, "btrfs"),
        ({f"{K}fstype": ""}, "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_class_else_the_default(parameters: dict[str, str], expected: str):
    assert fs_type(parameters, "ext4") == expected


def test_two_file_systems_are_refused():
    for both in ({f"{K}fstype": "xfs", "fstype": "xfs"}, {"fsType": "xfs", "fstype": "xfs"}):
        with pytest.raises(InvalidParameters, match="more than once"):
            fs_type(both, "")


keys = some.sampled_from([*sorted(KNOWN_RESERVED_KEYS), "type", "csiNodeStageSecretName", f"{K}other"])
values = some.sampled_from(["", "key", "${pvc.name}", "${", "$", "${pvc.annotations['a']}", "Ä", "x" * 300])


@given(some.dictionaries(keys, values), some.text(max_size=5))
def test_parameters_of_any_kind_give_good_names_or_an_error(parameters: dict[str, str], annotation: str):
    try:
        references = secret_references(parameters, "pvc-1", claim(a=annotation))
        passed = driver_parameters(parameters)
    except InvalidParameters as error:
        assert str(error)  # noqa: PT017 - either way is right
    else:
        assert all(one.name and one.namespace and "/" not in one.name + one.namespace for one in references.values())
        assert not any(key.startswith(K) for key in passed)
