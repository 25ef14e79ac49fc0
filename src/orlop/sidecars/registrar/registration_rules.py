"""Decide the registrar's next step. Pure.

kubelet asks a driver for its name and for its node once: when a socket appears in the registration folder. If the
driver is restarted later with another configuration, kubelet does not notice until the socket is removed and created
again. So the registrar asks the driver again on each new connection, and creates the socket again if a response
changed: the driver's name, its node id, its topology, or its volume limit (kubelet writes all of them to CSINode).

Registering again takes a second or two in which kubelet does not know the driver. So it happens for no other reason:
neither for a driver that is restarted unchanged nor for one that does not respond.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The driver's response to NodeGetInfo; `topology` is sorted by key."""

    node_id: str
    topology: tuple[tuple[str, str], ...] = ()
    max_volumes: int = 0


@dataclass(frozen=True, slots=True)
class NodeInfoUnimplemented:
    """The driver does not implement NodeGetInfo; kubelet will refuse it with an error of its own."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The current socket: for which name, created on which connection, and the node info that held then."""

    name: str
    connection: int
    node: NodeInfo | None


@dataclass(frozen=True, slots=True)
class RegistrationState:
    """The driver's responses on the current connection (None: not called yet), and what was announced to kubelet."""

    connection: int = 0
    name: str | None = None
    node: NodeInfo | NodeInfoUnimplemented | None = None
    announced: Announced | None = None


# ---- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskName:
    """Call GetPluginInfo."""


@dataclass(frozen=True, slots=True)
class AskNode:
    """Call NodeGetInfo."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Remove the current socket, if any, and create one for this name."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Remember:
    """Record node info that was not known yet when the socket was created; kubelet sees the same."""

    name: str


@dataclass(frozen=True, slots=True)
class UpToDate:
    """Do nothing until the driver has a new connection."""


Step: TypeAlias = AskName | AskNode | Announce | Remember | UpToDate


def next_step(known: RegistrationState) -> Step:
    if known.name is None:
        return AskName()
    # Announce before calling NodeGetInfo: kubelet calls it too, and a slow response must not delay it twice.
    if known.announced is None:
        return Announce(known.name, "driver found")
    if known.announced.name != known.name:
        return Announce(known.name, f"the driver was called {known.announced.name} before")
    match known.node:
        case None:
            return AskNode()
        case NodeInfoUnimplemented():
            return UpToDate()
        case NodeInfo() as node:
            return _step_for_node(known, known.name, known.announced, node)


def _step_for_node(known: RegistrationState, name: str, announced: Announced, node: NodeInfo) -> Step:
    if announced.node == node:
        return UpToDate()
    if announced.node is not None:
        return Announce(name, "; ".join(_changes(announced.node, node)))
    # On the same connection the same driver process responded to kubelet, so kubelet has this node info.
    if announced.connection == known.connection:
        return Remember(name)
    return Announce(name, "the driver was restarted and its node info before is unknown")


def _changes(before: NodeInfo, after: NodeInfo) -> Iterator[str]:
    if before.node_id != after.node_id:
        yield f"node id changed from {before.node_id!r} to {after.node_id!r}"
    if before.topology != after.topology:
        yield f"topology changed from {_topology_text(before)} to {_topology_text(after)}"
    if before.max_volumes != after.max_volumes:
        yield f"volume limit changed from {before.max_volumes} to {after.max_volumes}"


def _topology_text(node: NodeInfo) -> str:
    return ", ".join(f"{key}={value}" for key, value in node.topology) or "nothing"


# ---- the state after a step ------------------------------------------------------------------------------------------


def on_connection(known: RegistrationState, connection: int) -> RegistrationState:
    """Drop the driver's responses if the connection is new: another driver may respond on it."""
    if connection == known.connection:
        return known
    return RegistrationState(connection=connection, announced=known.announced)


def after_announcing(known: RegistrationState, name: str) -> RegistrationState:
    """Return what is known after `Announce`, or after `Remember`, which concerns a socket of this connection."""
    node = known.node if isinstance(known.node, NodeInfo) else None
    return replace(known, announced=Announced(name, known.connection, node))
