"""What a multimap is: its names, settings, service and handlers."""

from __future__ import annotations

from whimbrel.serving.kinds import ServedKind
from whimbrel.structures.multimap.handlers import MultiMapHandlers
from whimbrel.structures.multimap.service import MultiMapService
from whimbrel.structures.multimap.settings import NAME, MultiMapSettings

MULTIMAP = ServedKind(
    name=NAME,
    service_name="hz:impl:multiMapService",
    settings_type=MultiMapSettings,
    make_service=MultiMapService,
    make_handlers=MultiMapHandlers,
)
