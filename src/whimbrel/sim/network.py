"""The simulated network: pipes between places, with the semantics of TCP connections.

A *place* is a machine with a name (``m1``, ``c2``). A *path* is what lies between two places in
one direction: delay, clogs, cuts. A *pipe* is one direction of one connection: what goes in comes
out in the same order or, when the connection breaks, an unknown suffix of it never comes out.
Loss inside a connection is therefore a delay; only a break loses anything. The module knows no
members and no messages.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from whimbrel.sim.scheduler import Scheduler

Deliver = Callable[[Any], None]
DELAY_US_MAX = 1_400_000
"""No item takes longer, on a slow path neither. Two that follow each other within an interval and a
late timer then arrive within the shortest heartbeat timeout, 3 s; to silence a member for longer is
a fault of its own, which whoever judges the run knows of."""


class NetworkProfile(msgspec.Struct, frozen=True):
    """How slow and how nasty the paths of one run are. All spans in microseconds."""

    delay_us: int = 150
    """Least one-way delay."""
    tail_us: int = 200
    """Mean of the exponential part of the delay."""
    spike_probability: float = 0.0
    """How often a delay gets a spike (a lost packet that is sent again)."""
    spike_us: int = 200_000
    """Mean length of a spike."""


class Path:
    """One direction between two places."""

    __slots__ = ("clogged_until_us", "cut", "double_us", "gap_us", "slow_factor", "stalled")

    def __init__(self) -> None:
        self.cut = False
        """Nothing arrives; senders do not notice until their connection times out."""
        self.clogged_until_us = 0
        """Nothing arrives before this moment."""
        self.slow_factor = 1
        self.gap_us = 1
        """Least span between two items of a pipe: what is left of the bandwidth."""
        self.double_us = 0
        """Control messages arrive once more, up to this much later; 0 for once only."""
        self.stalled: list[Pipe] = []
        """Pipes that had something due while the path was cut."""


class Pipe:
    """One direction of one connection, in order."""

    __slots__ = (
        "_busy",
        "_last_due_us",
        "_network",
        "closed",
        "deliver",
        "ended",
        "path",
        "queue",
    )

    def __init__(self, network: Network, path: Path, deliver: Deliver) -> None:
        self._network = network
        self.path = path
        self.deliver = deliver
        self.queue: deque[tuple[int, Any]] = deque()
        self.closed = False
        self.ended = False
        """No further item is taken; what is inside still comes out."""
        self._last_due_us = 0
        self._busy = False

    def send(self, item: Any) -> None:
        """Put something in; ignored once the pipe is closed."""
        if self.closed or self.ended:
            return
        network = self._network
        due_us = network.scheduler.now_us + network.draw_delay_us(self.path)
        earliest_us = self._last_due_us + self.path.gap_us
        if due_us < earliest_us:
            due_us = earliest_us
        self._last_due_us = due_us
        self.queue.append((due_us, item))
        if not self._busy:
            self._busy = True
            network.scheduler.at(due_us, self.pump)

    def pump(self) -> None:
        """Deliver what is due, then wait for the next item."""
        path, queue, scheduler = self.path, self.queue, self._network.scheduler
        now_us = scheduler.now_us
        if path.cut:
            path.stalled.append(self)
            return
        if path.clogged_until_us > now_us:
            scheduler.at(path.clogged_until_us, self.pump)
            return
        while queue and queue[0][0] <= now_us:
            self.deliver(queue.popleft()[1])
            if self.closed:
                return
        if queue:
            scheduler.at(queue[0][0], self.pump)
        else:
            self._busy = False
            self.closed = self.ended

    def close(self) -> None:
        """End the pipe; whatever is inside is lost."""
        self.closed = True
        self.queue.clear()

    def end(self, keep: int) -> None:
        """Take no more; the first ``keep`` items still arrive in time, the rest is lost."""
        while len(self.queue) > keep:
            self.queue.pop()
        self.ended = True
        if not self.queue:
            self.closed = True


class Network:
    """All paths of one run."""

    def __init__(
        self, scheduler: Scheduler, generator: random.Random, profile: NetworkProfile
    ) -> None:
        self.scheduler = scheduler
        self.profile = profile
        self._random = generator.random
        self._tail = generator.expovariate
        self._generator = generator
        self._paths: dict[tuple[str, str], Path] = {}
        self.isolated: dict[str, None] = {}
        """Places whose cuts are never healed."""

    def path(self, source: str, destination: str) -> Path:
        """The path from one place to another."""
        path = self._paths.get((source, destination))
        if path is None:
            path = self._paths[source, destination] = Path()
        return path

    def draw_delay_us(self, path: Path) -> int:
        """How long the next item takes, 1 to ``DELAY_US_MAX``."""
        profile = self.profile
        delay_us = profile.delay_us + int(self._tail(1.0) * profile.tail_us)
        if profile.spike_probability and self._random() < profile.spike_probability:
            delay_us += int(self._tail(1.0) * profile.spike_us)
        return min(max(1, delay_us * path.slow_factor), DELAY_US_MAX)

    def open_pipe(self, source: str, destination: str, deliver: Deliver) -> Pipe:
        """A new pipe from one place to another."""
        return Pipe(self, self.path(source, destination), deliver)

    def reset(self, pipe: Pipe) -> None:
        """Break a pipe: a random prefix of what is in flight still arrives, the rest is lost."""
        if pipe.closed or pipe.ended:
            return
        waiting = len(pipe.queue)
        pipe.end(0 if pipe.path.cut else self._generator.randint(0, waiting))

    # -- faults ---------------------------------------------------------------------------

    def cut(self, source: str, destination: str) -> None:
        """Let nothing through in this direction until ``heal``."""
        self.path(source, destination).cut = True

    def heal(self, source: str, destination: str) -> None:
        """Let what was held back arrive, each pipe in its order."""
        path = self.path(source, destination)
        path.cut = False
        self._release(path)

    def heal_all(self) -> None:
        """End every cut, clog and slowness, but for places that are isolated for good."""
        for (source, destination), path in self._paths.items():
            if source in self.isolated or destination in self.isolated:
                continue
            path.cut = False
            path.clogged_until_us = 0
            path.slow_factor = 1
            path.gap_us = 1
            path.double_us = 0
            self._release(path)

    def clog(self, source: str, destination: str, span_us: int) -> None:
        """Hold everything of this direction back for a while."""
        path = self.path(source, destination)
        path.clogged_until_us = max(path.clogged_until_us, self.scheduler.now_us + span_us)

    def _release(self, path: Path) -> None:
        stalled, path.stalled = path.stalled, []
        for pipe in stalled:
            if not pipe.closed:
                self.scheduler.after(self.draw_delay_us(path), pipe.pump)

    def is_cut(self, source: str, destination: str) -> bool:
        """Whether nothing gets through in this direction now."""
        return self.path(source, destination).cut
