"""What a ring buffer is: its names, settings, service and handlers."""

from __future__ import annotations

from whimbrel.serving.kinds import ServedKind
from whimbrel.structures.ringbuffer.handlers import RingbufferHandlers
from whimbrel.structures.ringbuffer.service import RingbufferService
from whimbrel.structures.ringbuffer.settings import NAME, RingbufferSettings

RINGBUFFER = ServedKind(
    name=NAME,
    service_name="hz:impl:ringbufferService",
    settings_type=RingbufferSettings,
    make_service=RingbufferService,
    make_handlers=RingbufferHandlers,
)
