"""What a configuration becomes: settings of the core, settings of the process, and their origin.

This module knows no file format and no key names; ``keys`` maps names to the fields below.
"""

from __future__ import annotations

import msgspec

from whimbrel.core.ids import Address
from whimbrel.core.persistence.encryption import PlainFiles
from whimbrel.core.settings import CoreSettings

Value = int | float | bool | str | tuple[str, ...] | None
"""A configuration value as the operator writes it, in the unit of its key."""


class RuntimeSettings(msgspec.Struct, frozen=True):
    """What the process around the core needs to know. ``None`` means "choose for me"."""

    host: str = "127.0.0.1"
    """Address to listen on, data and admin port alike."""
    port: int | None = None
    """Data port; None takes the first free one from 5701 up."""
    join: tuple[Address, ...] = ()
    advertise: str = ""
    """``host`` or ``host:port`` that others use to reach this member; empty: the bound address."""
    insecure: bool = False
    """Must be true to listen on anything but loopback."""
    admin_port: int | None = None
    """Admin HTTP port; None is data port + 3000."""
    data_dir: str = ""
    ready_wait_us: int = 5_000_000
    """How long a member that has joined waits at most for its replicas before it says ready."""
    key_file: str = ""
    """File with the keys of the files in ``data_dir``, one a line; empty: not encrypted."""
    key_command: str = ""
    """The same, as the output of a command."""
    key_timeout_us: int = 10_000_000
    """How long the command may take."""
    plain_files: PlainFiles = "refuse"
    lite: bool = False
    zone: str = ""
    machine: str = ""
    """Name of the machine for host-aware groups; empty: the host name."""
    log_level: str = "info"
    log_format: str = "auto"
    """``json``, ``pretty`` or ``auto`` (pretty on a terminal)."""

    clients_max: int = 10_000
    """Client connections at once; members' links are not counted, so they always get in."""
    undecided_max: int = 2_000
    """Connections that have not said who they are; the oldest gives way to a new one."""
    handshake_timeout_us: int = 10_000_000
    """From the connection to the end of the authentication or greeting."""
    client_high_water_bytes: int = 1_048_576
    """Unsent answers at which a client is no longer read from, until it has read some."""
    link_backlog_bytes_max: int = 134_217_728
    """Unsent bytes to one member on one connection; beyond it the connection is cut."""
    stop_timeout_us: int = 2_000_000
    """Time for the last bytes to leave when the member ends."""


class Entry(msgspec.Struct, frozen=True):
    """One effective value and where it came from (``config explain``)."""

    key: str
    value: Value
    source: str


class Config(msgspec.Struct, frozen=True):
    """A checked configuration."""

    core: CoreSettings = CoreSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    entries: tuple[Entry, ...] = ()
