"""Run a controller through every history of faults within bounds, and report the shortest that breaks it.

`histories` defines a history, `search` finds and replays them, `stage` is one run, `lives` are the processes in it,
`effects` lists what can happen to an effect, `api_seam` and `driver_seam` connect to an API server and to a CSI driver,
`api_answers` makes the responses of an API server that fails or lags behind. docs/explorer.md shows how to use it for
your own controller.

Not here: scenarios of Orlop's own controllers (tests/support).
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
