"""What a queue is: its names, settings, service and handlers."""

from __future__ import annotations

from whimbrel.serving.kinds import ServedKind
from whimbrel.structures.queue.handlers import QueueHandlers
from whimbrel.structures.queue.service import QueueService
from whimbrel.structures.queue.settings import NAME, QueueSettings

QUEUE = ServedKind(
    name=NAME,
    service_name="hz:impl:queueService",
    settings_type=QueueSettings,
    make_service=QueueService,
    make_handlers=QueueHandlers,
)
