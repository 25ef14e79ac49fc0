"""Orders of volumes: the smallest one, to be changed by the test that needs more, and random ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as some

from orlop.records.volume_order import ClaimIdentity, ClassTerms, SecretReference, TopologyRequest, VolumeOrder

GIB = 1 << 30
CLAIM = ClaimIdentity("team", "data", "11111111-2222-3333-4444-555555555555")


def order(**fields: Any) -> VolumeOrder:
    storage = {"name": "fast", "uid": "class-1", **fields.pop("storage", {})}
    smallest = {
        "claim": CLAIM,
        "volume_name": f"pvc-{CLAIM.uid}",
        "size_bytes": GIB,
        "access_modes": ("ReadWriteOnce",),
        "storage": ClassTerms(**storage),
    }
    return VolumeOrder(**{**smallest, **fields})


names = some.text("abcdefg-.", min_size=1, max_size=8)
pairs = some.dictionaries(names, some.text(max_size=5), max_size=3).map(lambda found: tuple(sorted(found.items())))
terms = some.lists(pairs.filter(bool), max_size=3).map(tuple)
orders = some.builds(
    VolumeOrder,
    claim=some.builds(ClaimIdentity, names, names, names),
    volume_name=names,
    size_bytes=some.integers(0, 2**63 - 1),
    access_modes=some.lists(some.sampled_from(["ReadWriteOnce", "ReadOnlyMany"]), min_size=1, unique=True).map(tuple),
    storage=some.builds(
        ClassTerms,
        name=names,
        uid=names,
        parameters=pairs,
        mutable_parameters=pairs,
        mount_options=some.lists(names, max_size=2).map(tuple),
        reclaim_policy=some.sampled_from(["Delete", "Retain"]),
        fs_type=some.sampled_from(["", "xfs"]),
    ),
    placement=some.builds(TopologyRequest, requisite=terms, preferred=terms),
    volume_mode=some.sampled_from(["Filesystem", "Block"]),
    secrets=some.dictionaries(
        some.sampled_from(["provisioner", "node-stage", "controller-modify"]),
        some.builds(SecretReference, names, names),
    ).map(lambda found: tuple(sorted(found.items()))),
    selected_node=some.sampled_from(["", "n1"]),
    source_volume_id=some.sampled_from(["", "vol-1"]),
    claim_metadata=some.booleans(),
    read_only=some.booleans(),
)
