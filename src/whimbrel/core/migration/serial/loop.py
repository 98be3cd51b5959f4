"""The master's control loop below cluster version 4.1: the same stages, strictly one by one."""

from __future__ import annotations

from whimbrel.core.migration.control_loop import ControlLoop
from whimbrel.core.migration.serial.execution import SerialExecution
from whimbrel.core.migration.serial.publication import SerialPublisher
from whimbrel.core.migration.serial.recovery import SerialRecovery
from whimbrel.core.migration.serial.repair import SerialRepair


class SerialLoop(ControlLoop):
    """What the master does; idle on every other member."""

    publisher_kind = SerialPublisher
    recovery_kind = SerialRecovery
    repair_kind = SerialRepair
    execution_kind = SerialExecution

    def _repair_idle_rows(self, reason: str) -> None:
        """Repair waits for what is under way: it changes the version that this names."""
