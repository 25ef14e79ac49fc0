"""A few claims and volumes in memory, and the binder's steps carried out on them as an API server would.

Each write must be of the newest version and change only its own half of the object: spec and annotations, or status.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onenode.controllers import binder_rules as rules
from onenode.controllers.binding_notice_rules import About, Notice
from orlop.binding import claim_state_rules as state

Object = dict[str, Any]
MOST_STEPS = 12


class BinderModel:
    """`in_api` are claims that the API server has and the cache does not, or has otherwise."""

    def __init__(
        self,
        *,
        claims: Iterable[Object] = (),
        volumes: Iterable[Object] = (),
        classes: Iterable[Object] = (),
        pods: Iterable[Object] = (),
        in_api: Iterable[Object] = (),
    ) -> None:
        self.claims = {one["metadata"]["name"]: one for one in claims}
        self.volumes = {one["metadata"]["name"]: one for one in volumes}
        self.classes = list(classes)
        self.pods = list(pods)
        self.in_api = {one["metadata"]["name"]: one for one in in_api}
        self.events: list[str] = []
        self.writes: list[str] = []
        self.refused: list[str] = []

    # ---- one object ----------------------------------------------------------------------------------------------

    def sync_claim(self, name: str = "c") -> None:
        """Carry out the claim's steps until it waits."""
        is_read = False
        for _ in range(MOST_STEPS):
            if (found := self.claims.get(name)) is None:
                return
            match step := rules.next_claim_step(self._claim_facts(found, is_read=is_read)):
                case rules.Wait(_, told):
                    self._record(told)
                    return
                case rules.RefuseBinding(why):
                    self.refused.append(why)
                    return
                case rules.ReadVolume():
                    is_read = True
                case _:
                    self._write(step)
        raise AssertionError(f"the claim {name} does not come to rest: {self.writes}")

    def sync_volume(self, name: str = "v") -> None:
        """Carry out the volume's steps until it waits."""
        is_read = False
        for _ in range(MOST_STEPS):
            if (found := self.volumes.get(name)) is None:
                return
            match step := rules.next_volume_step(self._volume_facts(found, is_read=is_read)):
                case rules.Wait(_, told):
                    self._record(told)
                    return
                case rules.ReadClaim():
                    is_read = True
                case _:
                    self._write(step)
        raise AssertionError(f"the volume {name} does not come to rest: {self.writes}")

    def step_claim(self, name: str = "c") -> bool:
        """Carry out one write of the claim; return whether there was one."""
        step = rules.next_claim_step(self._claim_facts(self.claims[name], is_read=True))
        if isinstance(step, rules.Wait | rules.RefuseBinding | rules.ReadVolume):
            return False
        self._write(step)
        return True

    def step_volume(self, name: str = "v") -> bool:
        """Carry out one write of the volume; return whether there was one."""
        step = rules.next_volume_step(self._volume_facts(self.volumes[name], is_read=True))
        if not isinstance(step, rules.ReplaceVolume | rules.ReplaceVolumeStatus):
            return False
        self._write(step)
        return True

    # ---- all -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Sync everything until nothing is written any more."""
        for _ in range(MOST_STEPS):
            written = len(self.writes)
            for name in tuple(self.claims):
                self.sync_claim(name)
            for name in tuple(self.volumes):
                self.sync_volume(name)
            if len(self.writes) == written:
                return
        raise AssertionError(f"no rest: {self.writes}")

    def pairs(self) -> dict[str, str]:
        """Return the volume of each bound claim."""
        return {name: state.volume_name(one) for name, one in self.claims.items() if state.is_bound(one)}

    # ---- inside --------------------------------------------------------------------------------------------------

    def _claim_facts(self, claim: Object, *, is_read: bool) -> rules.BindingClaimFacts:
        users = [pod for pod in self.pods if _names(pod, claim["metadata"]["name"])]
        return rules.BindingClaimFacts(
            claim,
            volume=self.volumes.get(state.volume_name(claim)),
            is_volume_read=is_read,
            volumes=tuple(self.volumes.values()),
            classes=tuple(self.classes),
            waiting_pods=rules.waiting_pods(users),
        )

    def _volume_facts(self, volume: Object, *, is_read: bool) -> rules.BindingVolumeFacts:
        name = (state.claim_reference(volume) or {}).get("name", "")
        cached = self.claims.get(name)
        live = self.in_api.get(name, cached)
        users = rules.using_pods([pod for pod in self.pods if _names(pod, name)])
        return rules.BindingVolumeFacts(volume, live if is_read else cached, is_claim_read=is_read, users=users)

    def _write(self, step: rules.WriteObject) -> None:
        body, name = step.body, step.body["metadata"]["name"]
        is_claim = isinstance(step, rules.ReplaceClaim | rules.ReplaceClaimStatus)
        is_status = isinstance(step, rules.ReplaceClaimStatus | rules.ReplaceVolumeStatus)
        held = self.claims if is_claim else self.volumes
        before, others = held[name], ("metadata", "spec") if is_status else ("status",)
        assert body["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"], "an old version is written"
        assert all(body[part] == before[part] for part in others), f"{type(step).__name__} changes {others}"
        assert body != before, f"{type(step).__name__} changes nothing"
        version = str(int(before["metadata"]["resourceVersion"]) + 1)
        held[name] = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        self.writes.append(f"{'claim' if is_claim else 'volume'} {'status' if is_status else 'spec'}")
        if isinstance(step, rules.ReplaceClaimStatus | rules.ReplaceVolumeStatus):
            self._record(step.notices)

    def _record(self, told: Iterable[Notice]) -> None:
        for one in told:
            about = "PV" if one.about is About.VOLUME else "PVC"
            self.events.append(f"{about} {'Warning' if one.is_warning else 'Normal'} {one.reason}: {one.text}")


def _names(pod: Object, claim: str) -> bool:
    sources = [volume.get("persistentVolumeClaim") or {} for volume in pod["spec"]["volumes"]]
    return any(source.get("claimName") == claim for source in sources)


def annotations(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("annotations", {})


def synced_claim(found: Object, *volumes: Object, classes: tuple[Object, ...] = (), **more: Any) -> BinderModel:
    model = BinderModel(claims=[found], volumes=volumes, classes=classes, **more)
    model.sync_claim(found["metadata"]["name"])
    return model


def synced_volume(found: Object, *claims: Object, **more: Any) -> BinderModel:
    model = BinderModel(claims=claims, volumes=[found], **more)
    model.sync_volume(found["metadata"]["name"])
    return model
