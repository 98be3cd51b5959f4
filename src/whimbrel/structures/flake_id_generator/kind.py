"""What a flake id generator is: its names, settings and handlers; nothing lies in partitions."""

from __future__ import annotations

from whimbrel.serving.kinds import ServedKind
from whimbrel.structures.flake_id_generator.handlers import FlakeIdHandlers
from whimbrel.structures.flake_id_generator.settings import NAME, FlakeIdGeneratorSettings

FLAKE_ID_GENERATOR = ServedKind(
    name=NAME,
    service_name="hz:impl:flakeIdGeneratorService",
    settings_type=FlakeIdGeneratorSettings,
    make_service=None,
    make_handlers=FlakeIdHandlers,
)
