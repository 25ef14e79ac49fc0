"""A volume that the provisioner has asked a driver for: all that is needed to ask again, and to write its PV. Pure.

The provisioner stores an order before the first CreateVolume call and removes it when the outcome is known. A restarted
provisioner repeats the call from the order alone: the claim, its class and its node may have changed or gone since.
Secrets are stored by name, never by value.
"""

from __future__ import annotations

from typing import Final

import msgspec

VERSION: Final = 1


class ClaimIdentity(msgspec.Struct, frozen=True, gc=False):
    namespace: str
    name: str
    uid: str


class SecretReference(msgspec.Struct, frozen=True, gc=False):
    namespace: str
    name: str


TopologyTerm = tuple[tuple[str, str], ...]
"""Topology keys with their values, sorted by key."""


class ClassTerms(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What all claims of one class have in common; stored once for many orders."""

    name: str
    uid: str
    parameters: tuple[tuple[str, str], ...] = ()
    """As the driver gets them, sorted; without the claim's own metadata."""
    mutable_parameters: tuple[tuple[str, str], ...] = ()
    """Those of the claim's VolumeAttributesClass, sorted."""
    mount_options: tuple[str, ...] = ()
    reclaim_policy: str = "Delete"
    fs_type: str = ""


class TopologyRequest(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The topology the driver is asked for; empty lists leave the choice to the driver."""

    requisite: tuple[TopologyTerm, ...] = ()
    preferred: tuple[TopologyTerm, ...] = ()


class VolumeOrder(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, kw_only=True):
    claim: ClaimIdentity
    volume_name: str
    """Name of the PersistentVolume, and of the volume in the CreateVolume call."""
    size_bytes: int
    access_modes: tuple[str, ...]
    storage: ClassTerms
    placement: TopologyRequest = TopologyRequest()
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    selected_node: str = ""
    """The node the scheduler chose; "" for a claim that does not wait for a pod."""
    source_volume_id: str = ""
    """The volume to clone."""
    secrets: tuple[tuple[str, SecretReference], ...] = ()
    """By the call they are for (`provisioner`, `node-stage`, …), sorted."""
    claim_metadata: bool = False
    """Send the names of claim and volume to the driver (`--extra-create-metadata`)."""
    read_only: bool = False
    """Mark the PersistentVolume read-only (`--controller-publish-readonly` and a claim that only reads)."""

    def secret_for(self, call: str) -> SecretReference | None:
        return dict(self.secrets).get(call)
