"""Plays a controller in every history within bounds, and shows the shortest that breaks it.

`histories` is what a history is, `search` finds and replays them, `stage` is one run, `lives` the processes in it,
`effects` what may happen to an effect, `api_seam` and `driver_seam` the ways to an API server and to a CSI driver,
`past_reads` what an API server answers that lags behind.
docs/explorer.md shows how to use it for a controller of your own.
"""

from __future__ import annotations

from orlop.testing.explorer.api_seam import ExploredTransport
from orlop.testing.explorer.driver_seam import LifeConnection, explored_methods
from orlop.testing.explorer.effects import Ways, carry_out
from orlop.testing.explorer.histories import Bounds, DoesNotRepeatItself
from orlop.testing.explorer.lives import EffectWithoutLease, EndedByItself, LeaseLost, Life, Process
from orlop.testing.explorer.search import Broken, ExplorerReport, explore, explore_randomly, replay
from orlop.testing.explorer.stage import Act, CannotBeEnded, EndedUnheard, NoRest, Stage

__all__ = [
    "Act",
    "Bounds",
    "Broken",
    "CannotBeEnded",
    "DoesNotRepeatItself",
    "EffectWithoutLease",
    "EndedByItself",
    "EndedUnheard",
    "ExploredTransport",
    "ExplorerReport",
    "LeaseLost",
    "Life",
    "LifeConnection",
    "NoRest",
    "Process",
    "Stage",
    "Ways",
    "carry_out",
    "explore",
    "explore_randomly",
    "explored_methods",
    "replay",
]
