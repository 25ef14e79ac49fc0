"""What the registrar does next. Pure.

kubelet asks a driver who it is, and about its node, once: when a socket appears in its registration folder. What the
driver says later, after it was restarted with another configuration, kubelet does not hear until the socket is removed
and made anew. So what the driver says is asked again on each new connection, and announced again when it has changed:
its name, its node's id, its topology, and how many volumes the node takes (all of them stand in kubelet's CSINode).

A registration that is made again costs a second or two in which kubelet does not know the driver, so nothing else
makes one: not a driver that comes back as it was, nor one that does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a driver says of the node it runs on; `topology` is sorted by key."""

    node_id: str
    topology: tuple[tuple[str, str], ...] = ()
    max_volumes: int = 0


@dataclass(frozen=True, slots=True)
class NotServed:
    """The driver says nothing of nodes; kubelet will refuse it, with a sentence of its own."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The socket that is there now: for which name, since which connection, and what was then true of the node."""

    name: str
    connection: int
    node: NodeFacts | None


@dataclass(frozen=True, slots=True)
class Known:
    """What the driver has said on this connection (None: not asked yet), and what kubelet was told."""

    connection: int = 0
    name: str | None = None
    node: NodeFacts | NotServed | None = None
    announced: Announced | None = None


# ---- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskName:
    pass


@dataclass(frozen=True, slots=True)
class AskNode:
    pass


@dataclass(frozen=True, slots=True)
class Announce:
    """Remove the socket that is there, if any, and make one for this name."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Remember:
    """What was not known when the socket was made is known now, and kubelet has heard or will hear the same."""

    name: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Until the driver has another connection."""


Step: TypeAlias = AskName | AskNode | Announce | Remember | Settled


def next_step(known: Known) -> Step:
    """The name is announced before the node is asked for: kubelet asks that itself, and need not wait for us."""
    if known.name is None:
        return AskName()
    if known.announced is None:
        return Announce(known.name, "the driver is here")
    if known.announced.name != known.name:
        return Announce(known.name, f"the driver was called {known.announced.name} before")
    match known.node:
        case None:
            return AskNode()
        case NotServed():
            return Settled()
        case NodeFacts() as node:
            return _with_node(known, known.name, known.announced, node)


def _with_node(known: Known, name: str, announced: Announced, node: NodeFacts) -> Step:
    if announced.node == node:
        return Settled()
    if announced.node is not None:
        return Announce(name, "; ".join(_changes(announced.node, node)))
    if announced.connection == known.connection:
        return Remember(name)
    return Announce(name, "the driver was restarted, and what it said of the node before is not known")


def _changes(before: NodeFacts, after: NodeFacts) -> Iterator[str]:
    if before.node_id != after.node_id:
        yield f"the node id was {before.node_id!r} and is {after.node_id!r}"
    if before.topology != after.topology:
        yield f"the topology was {_shown(before)} and is {_shown(after)}"
    if before.max_volumes != after.max_volumes:
        yield f"the most volumes were {before.max_volumes} and are {after.max_volumes}"


def _shown(node: NodeFacts) -> str:
    return ", ".join(f"{key}={value}" for key, value in node.topology) or "nothing"


# ---- what is known after a step --------------------------------------------------------------------------------------


def on_connection(known: Known, connection: int) -> Known:
    """Whoever answers on another connection may be another driver: what was said before holds no longer."""
    if connection == known.connection:
        return known
    return Known(connection=connection, announced=known.announced)


def after_announcing(known: Known, name: str) -> Known:
    """Also after `Remember`, which is about a socket of this same connection."""
    node = known.node if isinstance(known.node, NodeFacts) else None
    return replace(known, announced=Announced(name, known.connection, node))
