"""Logs of a member: one JSON object a line on stderr, or colours for a person at a terminal."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Protocol, TextIO

from whimbrel.config import RuntimeSettings
from whimbrel.core.effects import Note


class Logger(Protocol):
    """What the runtime asks of a logger; those of structlog are such."""

    def log(self, level: int, event: str, **fields: object) -> object:
        """Write one event at a level of the standard library."""
        ...

    def info(self, event: str, **fields: object) -> object:
        """Write one event at level info."""
        ...

    def critical(self, event: str, **fields: object) -> object:
        """Write one event at level critical."""
        ...


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


class JsonLogger:
    """Writes each event as one JSON object a line.

    A few lines of our own, because every member in a container starts with this logger: importing
    structlog, which imports rich where it finds it, is a fifth of the work of such a start.
    """

    def __init__(self, stream: SafeStream, level: int) -> None:
        self._stream = stream
        self._level = level

    def log(self, level: int, event: str, **fields: object) -> None:
        """Write one event, unless its level is below ours."""
        if level < self._level:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
        name = logging.getLevelName(level).lower()
        line = {**fields, "event": event, "level": name, "timestamp": now}
        self._stream.write(json.dumps(line, default=str, ensure_ascii=True) + "\n")
        self._stream.flush()

    def info(self, event: str, **fields: object) -> None:
        """Write one event at level info."""
        self.log(logging.INFO, event, **fields)

    def critical(self, event: str, **fields: object) -> None:
        """Write one event at level critical."""
        self.log(logging.CRITICAL, event, **fields)


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
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    pretty = settings.log_format == "pretty" or (settings.log_format == "auto" and safe.isatty())
    return _pretty_logger(safe, level) if pretty else JsonLogger(safe, level)


def _pretty_logger(stream: SafeStream, level: int) -> Logger:
    """Lines for a person; structlog is loaded for them alone, see ``JsonLogger``."""
    import structlog

    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(stream),  # type: ignore[arg-type]
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=stream.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
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
    fields = {f"{name}_" if name == "event" else name: note.fields[name] for name in note.fields}
    logger.log(level, note.kind, **fields)
