"""Read the parameters of a StorageClass: secrets, file system, and the parameters for the driver. Pure.

Keys with the prefix `csi.storage.k8s.io/` belong to Kubernetes and are not sent to the driver. An unknown key with this
prefix is an error: a misspelled secret must not become a parameter of the driver. The older keys, such as
`csiProvisionerSecretName`, are read too and still sent to the driver, as upstream does.

Names of secrets are templates. Users choose the names and annotations of their claims, so a class that uses
`${pvc.annotations['…']}` lets users choose among the secrets of one namespace. That namespace cannot depend on an
annotation: it is fixed, or made from the claim's namespace and the volume's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from orlop.kube import objects
from orlop.kube.label_syntax import DNS_LABEL, DNS_SUBDOMAIN
from orlop.records.volume_order import SecretReference

RESERVED: Final = "csi.storage.k8s.io/"
FS_TYPE: Final = f"{RESERVED}fstype"
OLD_FS_TYPE: Final = "fstype"
LONGEST_NAMESPACE: Final = 63
LONGEST_SECRET_NAME: Final = 253
_TOKEN: Final = re.compile(r"\$\{([^}]*)\}|\$(\w+)")
_ANNOTATION: Final = re.compile(r"pvc\.annotations\['([^']+)'\]")

Object = Mapping[str, Any]


class InvalidParameters(ValueError):
    """The class or the claim cannot be used; the message names the key."""


class SecretUse(Enum):
    """The CSI call that gets a secret; the value is the middle part of its keys."""

    PROVISION = "provisioner"
    CONTROLLER_PUBLISH = "controller-publish"
    NODE_STAGE = "node-stage"
    NODE_PUBLISH = "node-publish"
    CONTROLLER_EXPAND = "controller-expand"
    NODE_EXPAND = "node-expand"
    CONTROLLER_MODIFY = "controller-modify"


@dataclass(frozen=True, slots=True)
class _KeyPair:
    name: str
    namespace: str


_DEFAULT_KEYS: Final = _KeyPair(f"{RESERVED}secret-name", f"{RESERVED}secret-namespace")
_KEYS: Final[Mapping[SecretUse, _KeyPair]] = {
    use: _KeyPair(f"{RESERVED}{use.value}-secret-name", f"{RESERVED}{use.value}-secret-namespace") for use in SecretUse
}
_OLD_KEYS: Final[Mapping[SecretUse, _KeyPair]] = {
    use: _KeyPair(f"{family}SecretName", f"{family}SecretNamespace")
    for use, family in {
        SecretUse.PROVISION: "csiProvisioner",
        SecretUse.CONTROLLER_PUBLISH: "csiControllerPublish",
        SecretUse.NODE_STAGE: "csiNodeStage",
        SecretUse.NODE_PUBLISH: "csiNodePublish",
    }.items()
}
KNOWN_RESERVED_KEYS: Final = frozenset(
    (FS_TYPE, *(key for pair in (_DEFAULT_KEYS, *_KEYS.values()) for key in (pair.name, pair.namespace)))
)


def driver_parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters to send to the driver."""
    for key in sorted(parameters):
        if key.startswith(RESERVED) and key not in KNOWN_RESERVED_KEYS:
            known = ", ".join(sorted(KNOWN_RESERVED_KEYS))
            raise InvalidParameters(f"the class has the unknown parameter {key}; with this prefix there are: {known}")
    return {key: value for key, value in parameters.items() if not key.startswith(RESERVED)}


def fs_type(parameters: Mapping[str, str], default: str) -> str:
    """Return the file system of the class, or the default; "" lets the driver choose."""
    # The older key is compared without case, as upstream does: fsType is as common as fstype.
    old = [key for key in sorted(parameters) if key.lower() == OLD_FS_TYPE]
    spellings = [*old, *([FS_TYPE] if FS_TYPE in parameters else [])]
    if len(spellings) > 1:
        raise InvalidParameters(
            f"the class sets its file system more than once, by {' and '.join(spellings)}: keep one"
        )
    return (parameters[spellings[0]] if spellings else "") or default


def secret_reference(
    use: SecretUse, parameters: Mapping[str, str], volume_name: str, claim: Object
) -> SecretReference | None:
    """Return the secret for a call; None if the class names none. A pair of keys for the call precedes the default."""
    pairs = [pair for pair in (_KEYS[use], _OLD_KEYS.get(use)) if pair is not None and _is_used(pair, parameters)]
    if len(pairs) > 1:
        raise InvalidParameters(
            f"the class names the same secret twice, by {pairs[0].name} and by {pairs[1].name}: keep one"
        )
    if not pairs and _is_used(_DEFAULT_KEYS, parameters):
        pairs = [_DEFAULT_KEYS]
    if not pairs:
        return None
    return _resolved(pairs[0], parameters, volume_name, claim)


def secret_references(
    parameters: Mapping[str, str], volume_name: str, claim: Object
) -> dict[SecretUse, SecretReference]:
    """Return every secret that the class names.

    Raises if any of them is invalid, also those of much later calls: now no volume exists that would have to be undone.
    """
    references = {use: secret_reference(use, parameters, volume_name, claim) for use in SecretUse}
    return {use: reference for use, reference in references.items() if reference is not None}


def _is_used(pair: _KeyPair, parameters: Mapping[str, str]) -> bool:
    return pair.name in parameters or pair.namespace in parameters


def _resolved(pair: _KeyPair, parameters: Mapping[str, str], volume_name: str, claim: Object) -> SecretReference:
    for key, other in ((pair.name, pair.namespace), (pair.namespace, pair.name)):
        if not parameters.get(key):
            raise InvalidParameters(f"the class has the parameter {other} without {key}: set both")
    in_namespace = {"pv.name": volume_name, "pvc.namespace": objects.namespace(claim) or ""}
    in_name = {**in_namespace, "pvc.name": objects.name(claim)}
    namespace = _expanded(pair.namespace, parameters[pair.namespace], in_namespace)
    name = _expanded(pair.name, parameters[pair.name], in_name, annotations=objects.annotations(claim))
    _check(pair.namespace, namespace, DNS_LABEL, LONGEST_NAMESPACE, "a namespace's name")
    _check(pair.name, name, DNS_SUBDOMAIN, LONGEST_SECRET_NAME, "a secret's name")
    return SecretReference(namespace, name)


def _expanded(key: str, template: str, tokens: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> str:
    def value(match: re.Match[str]) -> str:
        token = match[1] if match[1] is not None else match[2]
        if token in tokens:
            return tokens[token]
        annotation = _ANNOTATION.fullmatch(token)
        if annotation and annotations is not None:
            if annotation[1] in annotations:
                return annotations[annotation[1]]
            raise InvalidParameters(f"parameter {key}: the claim has no annotation {annotation[1]}")
        allowed = [*tokens, *(["pvc.annotations['…']"] if annotations is not None else [])]
        raise InvalidParameters(f"parameter {key}: unknown token {match[0]}; allowed are {', '.join(allowed)}")

    return _TOKEN.sub(value, template)


def _check(key: str, text: str, pattern: str, longest: int, kind: str) -> None:
    # The message does not quote the text: it may come from a user's annotation, and other users read the event.
    if len(text) > longest or not re.fullmatch(pattern, text):
        raise InvalidParameters(f"parameter {key}: its value for this claim is not {kind}")
