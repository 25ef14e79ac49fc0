"""Looks into an API server's store: which claims and volumes are bound, and whether the binder has finished."""

from __future__ import annotations

import json
from typing import Any

from onenode.apiserver.store.store import ObjectStore
from onenode.controllers import binder_rules as rules
from orlop.binding import claim_state_rules as state
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS, Kind

Object = dict[str, Any]


class Judge:
    """`pairs` are the bound ones seen so far: the volume's uid by the claim's."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.pairs: dict[str, str] = {}

    def pairs_are_exclusive_and_stay(self) -> None:
        claims, volumes = self._all(PERSISTENT_VOLUME_CLAIM), self._all(PERSISTENT_VOLUME)
        now: dict[str, str] = {}
        for one in claims.values():
            held = volumes.get(state.volume_name(one))
            if state.is_bound(one) and state.phase(one) == "Bound" and held is not None:
                reference = state.claim_reference(held) or {}
                if reference.get("uid") == _uid(one):
                    now[_uid(one)] = _uid(held)
        assert len(set(now.values())) == len(now), f"two claims are bound to one volume: {now}"
        live, offered = {_uid(one) for one in claims.values()}, {_uid(one) for one in volumes.values()}
        for mine, its in self.pairs.items():
            if mine in live and its in offered:
                assert now.get(mine) == its, f"the bound pair {mine}, {its} changed: {now}"
        self.pairs |= now

    def nothing_is_left_to_do(self) -> None:
        """The rules, asked about what is stored, have no step for anything."""
        claims, volumes = self._all(PERSISTENT_VOLUME_CLAIM), self._all(PERSISTENT_VOLUME)
        offered, classes = tuple(volumes.values()), tuple(self._all(STORAGE_CLASS).values())
        for name, one in claims.items():
            named = volumes.get(state.volume_name(one))
            facts = rules.BindingClaimFacts(one, named, is_volume_read=True, volumes=offered, classes=classes)
            step = rules.next_claim_step(facts)
            assert isinstance(step, rules.Wait), f"the claim {name} waits for this step: {step}"
        for name, one in volumes.items():
            claim = claims.get((state.claim_reference(one) or {}).get("name", ""))
            volume_step = rules.next_volume_step(rules.BindingVolumeFacts(one, claim, is_claim_read=True))
            assert isinstance(volume_step, rules.Wait), f"the volume {name} waits for this step: {volume_step}"

    def phase(self, kind: Kind, name: str) -> str:
        found = self._all(kind).get(name)
        return "gone" if found is None else state.phase(found)

    def bound(self, claim: str) -> str:
        """Return the volume of a bound claim, or ""."""
        found = self._all(PERSISTENT_VOLUME_CLAIM).get(claim, {})
        return state.volume_name(found) if state.phase(found) == "Bound" else ""

    def _all(self, kind: Kind) -> dict[str, Object]:
        found = [json.loads(stored.json) for stored in self._store.list(kind.resource).items]
        return {one["metadata"]["name"]: one for one in found}


def _uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])
