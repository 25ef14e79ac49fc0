"""The scenarios of the provisioner for the explorer: what happens to a claim, its class, its node, and its source."""

from __future__ import annotations

from orlop.binding import claim_state_rules as state
from orlop.testing.explorer import Act, Stage
from support.provisioning.provisioner_drama import Drama, drama


async def created_and_deleted(stage: Stage) -> None:
    """A claim is created, and deleted when it is bound, or before."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_created, play.once_provisioned(play.is_deleted))
        play.nothing_is_left()


async def force_deleted(stage: Stage) -> None:
    """The same, and the claim is gone at once: nothing holds it while its volume is being created."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_created, play.once_provisioned(play.is_force_deleted))
        play.nothing_is_left()


async def terminating(stage: Stage) -> None:
    """The claim is deleted while a pod uses it: it is Terminating until the pod is gone, however long that takes."""
    async with drama(stage) as play:
        await play.create_pod()
        play.begin()
        await stage.acts(play.is_created, play.once_provisioned(play.is_deleted), play.pod_is_gone)
        play.nothing_is_left()


async def recreated(stage: Stage) -> None:
    """Another claim takes the name of one that is gone."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_created, play.once_provisioned(play.is_force_deleted), play.is_created)
        play.is_provisioned()


async def class_deleted(stage: Stage) -> None:
    """The class goes while a claim is being provisioned, or after it."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_created, play.class_is_deleted, play.is_deleted)
        play.nothing_is_left()


async def class_changed(stage: Stage) -> None:
    """The class is created anew with other parameters: an order in flight keeps those it began with."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_created, play.class_is_changed)
        play.is_provisioned()


async def node_gone(stage: Stage) -> None:
    """The selected node goes: the claim is provisioned already, or is returned to the scheduler."""
    async with drama(stage) as play:
        await _without_selected_node(stage, play, play.node_is_gone)


async def driver_unregistered(stage: Stage) -> None:
    """The driver's node plugin is removed from the selected node, which stays."""
    async with drama(stage) as play:
        await _without_selected_node(stage, play, play.driver_is_unregistered)


async def _without_selected_node(stage: Stage, play: Drama, gone: Act) -> None:
    play.begin()
    await stage.acts(play.is_created, gone)
    play.all_is_consistent()
    claim = play.claim()
    assert claim is not None
    assert state.volume_name(claim) or not state.is_marked_for_late_provisioning(claim), "stuck on a lost node"
    await stage.acts(play.is_deleted)
    play.nothing_is_left()


async def cloned(stage: Stage) -> None:
    """A claim is cloned, and both are deleted, the source first: it stays while the driver copies from it."""
    async with drama(stage, with_source=True) as play:
        play.begin()
        await stage.acts(play.clone_is_created, play.source_is_deleted, play.clone_is_deleted)
        play.nothing_is_left()


SCENARIOS = (
    created_and_deleted,
    force_deleted,
    terminating,
    recreated,
    class_deleted,
    class_changed,
    node_gone,
    driver_unregistered,
    cloned,
)
