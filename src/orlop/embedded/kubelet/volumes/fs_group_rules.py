"""Whether kubelet gives a volume's files to the pod's group after it was published. Pure."""

from __future__ import annotations

from typing import Final

from orlop.embedded.kubelet.volumes.csi_request_rules import MOUNT_GROUP, StepFacts
from orlop.embedded.kubelet.volumes.event_texts import PLUGIN
from orlop.embedded.kubelet.volumes.volume_values import DesiredMount

ONCE: Final = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})
CHECK: Final = f"{PLUGIN}mounter.SetupAt failed to check fsGroup policy: "
ON_ROOT_MISMATCH: Final = "OnRootMismatch"


class NoPolicy(Exception):
    """A CSIDriver that names no policy; the text is kubelet's."""


def group_to_apply(mount: DesiredMount, facts: StepFacts) -> int | None:
    """None: the files are left as the driver made them."""
    group = mount.pod.fs_group
    if group is None or mount.read_only or MOUNT_GROUP in facts.abilities:
        return None
    return group if _policy_wants_it(mount, facts) else None


def check_policy(facts: StepFacts) -> None:
    """Asked before anything is done, as kubelet does."""
    if facts.driver.exists and facts.driver.fs_group_policy is None:
        raise NoPolicy(f"{CHECK}{PLUGIN}expected valid fsGroupPolicy, received nil value or empty string")


def _policy_wants_it(mount: DesiredMount, facts: StepFacts) -> bool:
    match facts.driver.fs_group_policy:
        case "None":
            return False
        case "File":
            return True
        case _:
            is_once = mount.spec.is_inline or not ONCE.isdisjoint(mount.spec.access_modes)
            return bool(mount.spec.fs_type) and is_once
