"""What a map is: its names, settings, service and handlers."""

from __future__ import annotations

from whimbrel.serving.kinds import ServedKind
from whimbrel.structures.map.handlers import MapHandlers
from whimbrel.structures.map.service import MapService
from whimbrel.structures.map.settings import NAME, MapSettings

MAP = ServedKind(
    name=NAME,
    service_name="hz:impl:mapService",
    settings_type=MapSettings,
    make_service=MapService,
    make_handlers=MapHandlers,
)
