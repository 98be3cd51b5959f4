"""Logs of a member: one JSON object a line on stderr, or colours for a person at a terminal."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from whimbrel.config import RuntimeSettings
from whimbrel.core.effects import Note

Logger = structlog.typing.FilteringBoundLogger


class SafeStream:
    """A text stream whose reader may go away: then lines are lost, never the member."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or lose the text when nobody reads any more."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        """Flush, or lose what is left."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return

    def isatty(self) -> bool:
        """Whether a person is likely to look."""
        return self._stream.isatty()


class _Bridge(logging.Handler):
    """Hands records of libraries that use the standard logging on to our logger."""

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Log a library's record under one event name."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)
        if record.exc_info is not None and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]!r}"
        self._logger.log(record.levelno, "library", logger=record.name, text=text)


def make_logger(settings: RuntimeSettings, stream: TextIO | None = None) -> Logger:
    """A logger that writes to ``stream`` (stderr) in the configured format and level.

    Makes no global change, so that a member inside somebody else's process leaves their logging
    alone; see ``adopt_library_logs`` for the rest.
    """
    safe = SafeStream(stream or sys.stderr)
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.log_format == "pretty" or (settings.log_format == "auto" and safe.isatty()):
        processors.append(structlog.dev.ConsoleRenderer(colors=safe.isatty()))
    else:
        processors.append(structlog.processors.JSONRenderer())
    logger: Logger = structlog.wrap_logger(
        structlog.WriteLogger(safe),  # type: ignore[arg-type]
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[settings.log_level.upper()]
        ),
    )
    return logger


def adopt_library_logs(logger: Logger) -> None:
    """Send warnings and errors of libraries (asyncio, uvicorn) to our logger; for a process of
    our own only.
    """
    root = logging.getLogger()
    root.handlers[:] = [_Bridge(logger)]
    root.setLevel(logging.WARNING)


def log_note(logger: Logger, note: Note) -> None:
    """Write one note of the core."""
    level = logging.getLevelNamesMapping().get(note.level.upper(), logging.INFO)
    known: dict[str, object] = {"cause": note.cause} if note.cause else {}
    fields = {f"{name}_" if name == "event" else name: note.fields[name] for name in note.fields}
    logger.log(level, note.kind, **fields, **known)
