"""A cluster of member processes on this machine: start, kill, leave, wait, clean up.

Knows the program from outside only: its command line, its ready line and its admin port. Ports
are chosen by the system when a member starts, so clusters never fight for one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from whimbrel.config.keys import ADMIN_OFFSET, PORT_FIRST, PORT_MAX
from whimbrel.core.model import ClusterState
from whimbrel.core.persistence.format import ENCRYPTED_HEADER_BYTES, LOG_FOLDER
from whimbrel.core.persistence.metadata import CLUSTER_FILE
from whimbrel.errors import OperationError, UsageError
from whimbrel.testing.fault_proxy import FaultNetwork
from whimbrel.testing.waiting import get_document, post_order, wait_until

HOST = "127.0.0.1"
MEMBERS_MAX = 100
"""Processes of one cluster."""
START_TIMEOUT_S = 60.0
LEAVE_TIMEOUT_S = 120.0
SAFE_TIMEOUT_S = 60.0
LOG_TAIL_BYTES = 2_000

_numbers = itertools.count(1)


class ClusterError(OperationError):
    """A member process did not do what it should; the text ends with its log's last lines."""


class LocalMember:
    """One member process.

    Attributes:
        index: Place in the cluster's list; never reused.
        uuid: Its identity, once it is ready.
        port: Data port, once it is ready.
        admin_port: Admin port, once it is ready.
        log: File with its log lines.
    """

    def __init__(self, index: int, command: Sequence[str], folder: Path) -> None:
        self.index = index
        self.uuid = ""
        self.port = 0
        self.admin_port = 0
        self.log = folder / f"member-{index}.log"
        self._lines = folder / f"member-{index}.out"
        with self._lines.open("wb") as out, self.log.open("wb") as log:
            # A session of its own: Ctrl-C at a terminal reaches the parent only.
            self.process = subprocess.Popen(  # noqa: S603  # our own program
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Exit status, minus the signal's number after a signal; None while it runs."""
        return self.process.poll()

    @property
    def address(self) -> str:
        """``host:port`` of the data port."""
        return f"{HOST}:{self.port}"

    @property
    def admin_url(self) -> str:
        """Address of the admin port."""
        return f"http://{HOST}:{self.admin_port}"

    def await_ready(self, timeout_s: float) -> None:
        """Wait for the ready line.

        Raises:
            ClusterError: The process ended, or the line did not come.
        """
        self._await_line(("ready",), timeout_s)

    def await_port(self, timeout_s: float) -> None:
        """Wait until others can find it: it is ready, or waits for the cluster of its files.

        Raises:
            ClusterError: As ``await_ready``.
        """
        self._await_line(("ready", "recovering"), timeout_s)

    def _await_line(self, events: Sequence[str], timeout_s: float) -> None:
        try:
            line = wait_until(lambda: self._find_line(events), timeout_s, " or ".join(events))
        except TimeoutError as problem:
            raise ClusterError(f"member {self.index}: {problem}\n{self.log_tail()}") from None
        if line is None:
            raise ClusterError(
                f"member {self.index} ended with {self.exit_status}\n{self.log_tail()}"
            )
        self.uuid, self.port = str(line["uuid"]), int(line["port"])
        self.admin_port = int(line["admin"])

    def _find_line(self, events: Sequence[str]) -> tuple[bool, dict[str, Any] | None]:
        has_ended = not self.is_running
        for line in self._lines.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                event: dict[str, Any] = json.loads(line)
                if event.get("event") in events:
                    return True, event
        return has_ended, None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process still runs."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def await_end(self, timeout_s: float) -> int:
        """Wait for the end; the exit status.

        Raises:
            ClusterError: It still runs.
        """
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"member {self.index} still runs after {timeout_s:g} s\n{self.log_tail()}"
            ) from None

    def log_tail(self) -> str:
        """The last lines of its log."""
        try:
            return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError as problem:
            return f"(no log: {problem.strerror})"


class LocalCluster:
    """Member processes of one cluster; a context manager, see ``local_cluster``.

    Attributes:
        name: The cluster's name.
        members: Every member ever started, in that order; those that ended too.
        folder: Where logs are.
    """

    def __init__(
        self,
        members: int,
        name: str,
        settings: Mapping[str, object],
        folder: Path | None,
        *,
        count_ports: bool = False,
        network: FaultNetwork | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """Prepare; nothing is started before ``start``.

        Args:
            members: How many to start with.
            name: The cluster's name.
            settings: Configuration keys for every member.
            folder: Where logs go and stay; None is a temporary folder that is removed.
            count_ports: Let data ports count upward from the default, with admin ports 3000
                above, instead of taking any that are free.
            network: Between the members, to be cut and healed; the caller closes it.
            data_dir: Where members keep their data: 1/, 2/, ... in it. They stay; a cluster that
                is started there again has all that the one before had.
        """
        if not 1 <= members <= MEMBERS_MAX:
            raise UsageError(f"a local cluster has 1 to {MEMBERS_MAX} members, not {members}")
        if network is not None and data_dir is not None:
            raise UsageError("a cluster with a network of its own keeps no data")
        self.name = name
        self.members: list[LocalMember] = []
        self._wanted = members
        self._count_ports = count_ports
        self._network = network
        self._data_dir = data_dir
        self._settings = dict(settings)
        self._is_ours = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="whimbrel-cluster-"))
        self._clients: list[Any] = []

    def __enter__(self) -> Self:
        """Start all members."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all processes and remove their files."""
        self.close()

    # -- life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the members that were asked for: the first alone, then the others at once.

        Where there are data of before, as many as those are of, if that is more, and those that
        have some first: who has none must not found a cluster before it can hear of them.

        Raises:
            ClusterError: One did not get ready, or the cluster not safe.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        known = self._known_members()
        if not known:
            self.launch().await_ready(START_TIMEOUT_S)
            self.add_members(self._wanted - 1)
            return
        ports = _free_ports(max(self._wanted, known), count_up=self._count_ports)
        join = [f"{HOST}:{port}" for port in ports]
        for has_data in (True, False):
            for number, port in enumerate(ports, 1):
                if self._has_data(number) is has_data:
                    place = self._of_disk(number)
                    self.launch(port=port, join=join, settings={**place, **self._settings})
            if has_data:
                for member in self.members:
                    member.await_port(START_TIMEOUT_S)
        for member in self.members:
            member.await_ready(START_TIMEOUT_S)
        self._await_safe(START_TIMEOUT_S)

    def _has_data(self, number: int) -> bool:
        """Whether there is more in a member's directory than a graceful leave has left."""
        logs = (self._data_dir or self.folder).glob(f"{number}/{LOG_FOLDER}/*")
        return any(file.stat().st_size > ENCRYPTED_HEADER_BYTES for file in logs)

    def _known_members(self) -> int:
        """The highest number of a directory with data of a member."""
        if self._data_dir is None:
            return 0
        names = [file.parent.name for file in self._data_dir.glob(f"*/{CLUSTER_FILE}")]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def launch(
        self,
        *,
        lite: bool = False,
        port: int = 0,
        settings: Mapping[str, object] | None = None,
        join: Sequence[str] = (),
    ) -> LocalMember:
        """Start a process without waiting for it; see ``LocalMember.await_ready``.

        It joins at these addresses, or at those of the members that run.
        """
        if len(self.members) >= MEMBERS_MAX:
            raise UsageError(f"a local cluster starts at most {MEMBERS_MAX} members")
        number = len(self.members) + 1
        chosen = {**self._of_disk(number), **self._settings, **(settings or {})}
        if self._network is not None:
            advertised, port = self._network.add(len(self.members))
            chosen["network.advertise"] = f"{HOST}:{advertised}"
        command = self.command(port, lite, chosen, join)
        member = LocalMember(len(self.members), command, self.folder)
        self.members.append(member)
        return member

    def _of_disk(self, number: int) -> dict[str, object]:
        """The settings with which a member keeps its data."""
        if self._data_dir is None:
            return {}
        folder = self._data_dir.absolute() / str(number)
        return {"member.data_dir": folder, "persistence.enabled": True}

    def command(
        self, port: int, lite: bool, settings: Mapping[str, object], join: Sequence[str] = ()
    ) -> list[str]:
        """The command line of a new member that joins at these addresses, or those that run."""
        command = [sys.executable, "-m", "whimbrel", "start", "--cluster-name", self.name]
        command += ["--host", HOST]
        if port or not self._count_ports:
            command += ["--port", str(port)]
        if not self._count_ports:
            command += ["--admin-port", "0"]
        known = [self._join_address(member) for member in self.running() if member.port]
        if join or known:
            command += ["--join", ",".join(join or known)]
        if lite:
            command.append("--lite")
        for key, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            command += ["--set", f"{key}={text}"]
        return command

    def _join_address(self, member: LocalMember) -> str:
        """Where other members find a member."""
        if self._network is None:
            return member.address
        return self._network.address_of(member.index)

    def add_member(
        self,
        *,
        lite: bool = False,
        port: int = 0,
        settings: Mapping[str, object] | None = None,
        timeout_s: float = START_TIMEOUT_S,
    ) -> LocalMember:
        """Start one more member and wait until it serves and every replica is in step.

        Who wants to look at the migrations calls ``launch`` and awaits only the ready line.

        Args:
            lite: Whether it holds no data.
            port: Its data port; 0 takes any that is free.
            settings: Configuration keys for this member, beside those of the cluster.
            timeout_s: Longest wait for the ready line, and again for the cluster to be safe.

        Raises:
            ClusterError: It did not get ready, or the cluster not safe.
        """
        member = self.launch(lite=lite, port=port, settings=settings)
        member.await_ready(timeout_s)
        self._await_safe(timeout_s)
        return member

    def add_members(self, count: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start more members at the same moment; see ``add_member``.

        Raises:
            ClusterError: One did not get ready, or the cluster not safe.
        """
        for member in [self.launch() for _ in range(count)]:
            member.await_ready(timeout_s)
        self._await_safe(timeout_s)

    def _await_safe(self, timeout_s: float) -> None:
        """Wait until safe, except in a cluster state in which nothing is moved or copied.

        Raises:
            ClusterError: Not within so many seconds; tells the last reason.
        """
        try:
            wait_until(lambda: self._look_safe(or_idle=True), timeout_s, "safe")
        except TimeoutError as problem:
            tail = self.members[-1].log_tail()
            raise ClusterError(
                f"the members are ready, but the cluster is {problem}\n{tail}"
            ) from None

    def kill(self, index: int) -> int:
        """SIGKILL a member, as a crash; its exit status."""
        member = self.members[index]
        member.send(signal.SIGKILL)
        return member.await_end(LEAVE_TIMEOUT_S)

    def leave(self, index: int, timeout_s: float = LEAVE_TIMEOUT_S) -> int:
        """SIGTERM a member and wait until it has handed over its data; its exit status.

        Raises:
            ClusterError: It still runs after so many seconds.
        """
        member = self.members[index]
        member.send(signal.SIGTERM)
        return member.await_end(timeout_s)

    def pause(self, index: int) -> None:
        """SIGSTOP a member: to the others it is silent."""
        self.members[index].send(signal.SIGSTOP)

    def resume(self, index: int) -> None:
        """SIGCONT a paused member."""
        self.members[index].send(signal.SIGCONT)

    def stop(self, timeout_s: float = LEAVE_TIMEOUT_S) -> list[int]:
        """Let all members leave at the same time; their exit statuses.

        Raises:
            ClusterError: One still runs after so many seconds.
        """
        self._end_clients()
        end_s = time.monotonic() + timeout_s
        for member in self.members:
            member.send(signal.SIGTERM)
        return [member.await_end(max(0.0, end_s - time.monotonic())) for member in self.members]

    def close(self) -> None:
        """End whatever still runs, without handing anything over, and remove our files."""
        self._end_clients()
        for member in self.members:
            member.send(signal.SIGKILL)
        for member in self.members:
            member.process.wait()
        if self._is_ours:
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- looking --------------------------------------------------------------------------

    def running(self) -> list[LocalMember]:
        """The members whose processes run, oldest first."""
        return [member for member in self.members if member.is_running]

    def addresses(self) -> list[str]:
        """``host:port`` of the members that run."""
        return [member.address for member in self.running() if member.port]

    @property
    def admin_url(self) -> str:
        """Admin address of the oldest member that runs."""
        return self._observer().admin_url

    def get(self, path: str, via: int | None = None) -> Any:
        """A JSON document of a member's admin port, such as ``/api/v1/members``.

        Raises:
            OperationError: The member does not answer, or with an error.
        """
        member = self._observer() if via is None else self.members[via]
        return get_document(HOST, member.admin_port, path)

    def status(self) -> dict[str, Any]:
        """The cluster's state and safety, as ``whimbrel status --json`` prints it."""
        found: dict[str, Any] = self.get("/api/v1/cluster")
        return found

    def set_state(self, state: str) -> None:
        """Change the cluster state, as ``whimbrel state set`` does.

        Raises:
            OperationError: It cannot be changed now, and has not been.
        """
        post_order(HOST, self._observer().admin_port, "/api/v1/state", {"state": state})

    def wait_until_safe(self, timeout_s: float = SAFE_TIMEOUT_S) -> float:
        """Wait until exactly the running members are the cluster and every replica is in step.

        Returns:
            Seconds waited.

        Raises:
            TimeoutError: Not within so many seconds; tells the last reason.
        """
        begin_s = time.monotonic()
        wait_until(self._look_safe, timeout_s, "safe")
        return time.monotonic() - begin_s

    def _look_safe(self, or_idle: bool = False) -> tuple[bool, str]:
        """Whether it is safe, and why not; with ``or_idle`` also whether it cannot become so."""
        try:
            found = self.status()
        except OperationError as problem:
            return False, str(problem)
        count = len(self.running())
        if found["members"] != count:
            return False, f"{found['members']} members on the list, {count} processes"
        is_idle = or_idle and not ClusterState(found["state"]).migration_allowed
        return bool(found["safe"]) or is_idle, str(found["reason"])

    def _observer(self) -> LocalMember:
        for member in self.running():
            if member.admin_port:
                return member
        raise OperationError("no member of the cluster runs")

    # -- clients --------------------------------------------------------------------------

    def client(self, **options: Any) -> Any:
        """The official client, connected; ended together with the cluster.

        Args:
            **options: Further options of ``hazelcast.HazelcastClient``.
        """
        import hazelcast

        chosen = {"cluster_name": self.name, "cluster_members": self.addresses(), **options}
        client = hazelcast.HazelcastClient(**chosen)
        self._clients.append(client)
        return client

    def _end_clients(self) -> None:
        while self._clients:
            with contextlib.suppress(Exception):
                self._clients.pop().shutdown()


def _free_ports(count: int, *, count_up: bool) -> list[int]:
    """Ports on which nobody listens now; from the default upward, with the admin port above each,
    or any.
    """
    with contextlib.ExitStack() as closing:
        found: list[int] = []
        if not count_up:
            for _ in range(count):
                place = closing.enter_context(socket.create_server((HOST, 0)))
                found.append(int(place.getsockname()[1]))
            return found
        pairs = (port for port in range(PORT_FIRST, PORT_MAX - ADMIN_OFFSET) if _is_free(port))
        free = (port for port in pairs if _is_free(port + ADMIN_OFFSET))
        return list(itertools.islice(free, count))


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def local_cluster(
    members: int = 3,
    *,
    name: str | None = None,
    settings: Mapping[str, object] | None = None,
    folder: str | os.PathLike[str] | None = None,
    network: FaultNetwork | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> LocalCluster:
    """Real member processes on this machine, as a context manager.

    ``with local_cluster(members=3) as cluster`` starts them and waits until all are on the list
    and every replica is in step; at the end everything is gone. Without ``with``, call ``start``
    and ``close``.

    Args:
        members: How many to start with.
        name: The cluster's name; by default one that nobody else uses, with ``data_dir`` "local".
        settings: Configuration keys for every member, as ``--set`` takes them.
        folder: Where logs go and stay; by default a temporary folder that is removed.
        network: Between the members, to be cut and healed; the caller closes it.
        data_dir: Where members keep their data, each in a directory of its own, beyond the end of
            the cluster (``stop`` and ``close``, or ``with``); by default they are in memory alone.

    Raises:
        UsageError: There is no such number of members.
    """
    own = "local" if data_dir is not None else f"local-{os.getpid()}-{next(_numbers)}"
    place = None if folder is None else Path(folder)
    disks = None if data_dir is None else Path(data_dir)
    return LocalCluster(
        members, name or own, settings or {}, place, network=network, data_dir=disks
    )
