"""Getting the two ports of a member: listening sockets before anything is promised."""

from __future__ import annotations

import errno
import os
import socket

from whimbrel.config import RuntimeSettings
from whimbrel.config.keys import ADMIN_OFFSET, PORT_FIRST
from whimbrel.errors import ConfigError

SEARCH_MAX = 500
"""Ports tried upward from the first one when none is given."""
BACKLOG = 1_024
"""Connections the kernel keeps until the loop takes them."""


class PortTakenError(Exception):
    """The port is in use; another one may do."""

    def __init__(self, port: int, text: str) -> None:
        super().__init__(text)
        self.port = port


class Ports:
    """Listening sockets of one member; ``admin`` is None when no admin port is wanted."""

    def __init__(self, data: socket.socket, admin: socket.socket | None) -> None:
        self.data = data
        self.admin = admin
        self.admin_port = 0 if admin is None else int(admin.getsockname()[1])
        """The admin port that was got, 0 for none."""

    @property
    def data_port(self) -> int:
        """The data port that was got."""
        return int(self.data.getsockname()[1])

    def renew_admin(self, host: str) -> None:
        """Listen on the admin port again if a server that ended has closed it.

        Raises:
            ConfigError: It cannot be had, at least not now.
        """
        if self.admin is not None and self.admin.fileno() < 0:
            try:
                self.admin = _listen(host, self.admin_port, "admin port")
            except PortTakenError as problem:
                raise ConfigError([str(problem)]) from None

    def close(self) -> None:
        """Give both ports back."""
        self.data.close()
        if self.admin is not None:
            self.admin.close()


def open_ports(settings: RuntimeSettings, with_admin: bool = True) -> Ports:
    """Bind and listen on the data port and, if wanted, the admin port.

    A port that was asked for is taken or refused, never changed. Without ``network.port`` the
    first free one from 5701 up is taken whose admin port is free too.

    Raises:
        ConfigError: A port is in use or may not be had, or the host is not of this machine.
    """
    try:
        if settings.port is None:
            return _search(settings, with_admin)
        return _pair(settings, settings.port, with_admin)
    except PortTakenError as problem:
        raise ConfigError([str(problem)]) from None


def _search(settings: RuntimeSettings, with_admin: bool) -> Ports:
    last = ""
    for port in range(PORT_FIRST, PORT_FIRST + SEARCH_MAX):
        try:
            return _pair(settings, port, with_admin)
        except PortTakenError as problem:
            last = str(problem)
            if problem.port == settings.admin_port:
                raise  # one that was asked for: no other data port will help
    raise PortTakenError(port, f"no free port from {PORT_FIRST} to {port}; last: {last}")


def _pair(settings: RuntimeSettings, port: int, with_admin: bool) -> Ports:
    data = _listen(settings.host, port, "data port")
    if not with_admin:
        return Ports(data, None)
    admin = settings.admin_port
    if admin is None:
        admin = port + ADMIN_OFFSET if port else 0
    try:
        return Ports(data, _listen(settings.host, admin, "admin port"))
    except BaseException:
        data.close()
        raise


def _listen(host: str, port: int, what: str) -> socket.socket:
    """One listening socket.

    Raises:
        PortTakenError: The port is in use.
        ConfigError: Anything else that an operator must mend.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as problem:
        raise ConfigError([f"host {host!r} is unknown: {problem}"]) from None
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            # a member that comes back must not wait for old connections to be forgotten
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as problem:
        listener.close()
        if problem.errno == errno.EADDRINUSE:
            raise PortTakenError(port, f"{what} {port} is in use on {host}") from None
        raise ConfigError([_explained(problem, host, port, what)]) from None
    return listener


def _explained(problem: OSError, host: str, port: int, what: str) -> str:
    if problem.errno == errno.EACCES:
        return f"{what} {port} needs more rights (ports below 1024); choose a higher one"
    if problem.errno == errno.EADDRNOTAVAIL:
        return f"host {host} is no address of this machine; set network.host"
    return f"{what} {port} on {host} cannot be opened: {problem.strerror}"
