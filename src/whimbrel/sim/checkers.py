"""Every rule a run is judged by, as one list.

The rules stand in ``check_views``, ``check_table``, ``check_data``, ``check_losses``,
``check_history``, ``check_merge``, ``check_states``, ``check_more``, ``check_moves`` and
``check_safe``; L1, L2 and L6 are the run's own affair, X3 is shown by running a seed twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whimbrel.sim.check_data import DATA_CHECKERS
from whimbrel.sim.check_history import HISTORY_CHECKERS
from whimbrel.sim.check_losses import LOSS_CHECKERS
from whimbrel.sim.check_merge import MERGE_CHECKERS
from whimbrel.sim.check_more import MORE_CHECKERS
from whimbrel.sim.check_moves import MOVE_CHECKERS
from whimbrel.sim.check_safe import SAFE_CHECKERS
from whimbrel.sim.check_states import STATE_CHECKERS
from whimbrel.sim.check_table import TABLE_CHECKERS
from whimbrel.sim.check_views import VIEW_CHECKERS
from whimbrel.sim.watch import Checker

if TYPE_CHECKING:
    from whimbrel.sim.world import World

CHECKERS: tuple[type[Checker], ...] = (
    *VIEW_CHECKERS,
    *TABLE_CHECKERS,
    *DATA_CHECKERS,
    *LOSS_CHECKERS,
    *HISTORY_CHECKERS,
    *MERGE_CHECKERS,
    *MORE_CHECKERS,
    *STATE_CHECKERS,
    *MOVE_CHECKERS,
    *SAFE_CHECKERS,
)


def make_checkers(world: World) -> list[Checker]:
    """One of each for a run."""
    return [kind(world) for kind in CHECKERS]


def rules() -> dict[str, str]:
    """Rule to sentence, for people."""
    known: dict[str, str] = {}
    for kind in CHECKERS:
        known.setdefault(kind.rule, kind.sentence)
    known["L1"] = "once nothing harms it, the cluster is safe within a stated span"
    known["L2"] = "once nothing harms it, joins and graceful leaves finish"
    known["X3"] = "one seed gives one history in any process"
    known["X2"] = "no exception escapes a member, no error is noted without a fault"
    return known
