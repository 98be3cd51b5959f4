"""A steady client with a ledger: what was acknowledged must be there at the end.

Runs as a process of its own (``python -m whimbrel.demo.probe``), with the official client, so
that nothing else gets into its way. It writes number after number, each under a key of its own,
reads an earlier one back after each write, and measures how long each call takes. When its stdin
ends, it reads everything that was acknowledged and prints what it found.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

MAP: Final = "probe"
PAUSE_S: Final = 0.02
"""From one write to the next, when calls are quick."""
WRITES_MAX: Final = 60_000
"""The probe ends its round after so many writes, so that its ledger stays small."""
CALL_TIMEOUT_S: Final = 30.0
CHECK_KEYS: Final = 1_000
"""Keys that are read back at once."""
CHECK_ATTEMPTS: Final = 10
TELL_S: Final = 0.5
"""How often it tells its progress."""
SHOWN_MAX: Final = 10
"""Lost writes that are shown."""
_STEP: Final = 7_919
"""A prime: walks over earlier numbers in no pattern a cache would like."""


class Ledger:
    """What was tried and what came of it."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        """Numbers whose write returned."""
        self.unknown = 0
        """Writes that ended with an error: they may or may not have happened."""
        self.failed_reads = 0
        self.wrong_reads = 0
        """Reads that did not give what had been acknowledged."""
        self.samples: list[tuple[float, float, int]] = []
        """Begin (monotonic seconds), duration in seconds, 0 for a write and 1 for a read."""
        self.errors: list[str] = []

    def note(self, error: Exception) -> None:
        """Keep the text of the first errors."""
        if len(self.errors) < SHOWN_MAX:
            self.errors.append(f"{type(error).__name__}: {error}"[:300])


def write_one(target: Any, number: int, ledger: Ledger) -> None:
    """Write a number and note what came of it."""
    begin_s = time.monotonic()
    try:
        target.set(f"n{number}", number)
        ledger.acknowledged.append(number)
    except Exception as error:
        ledger.unknown += 1
        ledger.note(error)
    ledger.samples.append((begin_s, time.monotonic() - begin_s, 0))


def read_one(target: Any, number: int, ledger: Ledger) -> None:
    """Read a number that was acknowledged earlier and compare."""
    if not ledger.acknowledged:
        return
    chosen = ledger.acknowledged[number * _STEP % len(ledger.acknowledged)]
    begin_s = time.monotonic()
    try:
        if target.get(f"n{chosen}") != chosen:
            ledger.wrong_reads += 1
    except Exception as error:
        ledger.failed_reads += 1
        ledger.note(error)
    ledger.samples.append((begin_s, time.monotonic() - begin_s, 1))


def check(target: Any, ledger: Ledger) -> list[int]:
    """Read everything that was acknowledged; the numbers that are not there.

    Raises:
        Exception: The last error, when the cluster could not be read in ``CHECK_ATTEMPTS``.
    """
    lost = []
    for start in range(0, len(ledger.acknowledged), CHECK_KEYS):
        part = ledger.acknowledged[start : start + CHECK_KEYS]
        found = _get_all(target, [f"n{number}" for number in part])
        lost += [number for number in part if found.get(f"n{number}") != number]
    return lost


def _get_all(target: Any, keys: list[str]) -> dict[str, int]:
    for attempt in range(CHECK_ATTEMPTS):
        try:
            found: dict[str, int] = target.get_all(keys)
            return found
        except Exception:
            if attempt == CHECK_ATTEMPTS - 1:
                raise
            time.sleep(0.5)
    return {}


def run(target: Any, stop: threading.Event, tell: Any) -> Ledger:
    """Write and read until told to stop.

    Args:
        target: The map, blocking.
        stop: Set when it is time to end.
        tell: Called with a dict now and then.
    """
    ledger = Ledger()
    told_s = 0.0
    for number in range(WRITES_MAX):
        begin_s = time.monotonic()
        write_one(target, number, ledger)
        read_one(target, number, ledger)
        if begin_s - told_s >= TELL_S:
            told_s = begin_s
            tell({"acknowledged": len(ledger.acknowledged), "unknown": ledger.unknown})
        if stop.wait(max(0.0, PAUSE_S - (time.monotonic() - begin_s))):
            break
    return ledger


def main(arguments: Sequence[str]) -> None:
    """Run as a process: cluster name, then addresses."""
    import hazelcast

    logging.getLogger("hazelcast").setLevel(logging.CRITICAL)
    stop = threading.Event()
    threading.Thread(target=_await_end, args=(stop,), daemon=True).start()
    client = hazelcast.HazelcastClient(
        cluster_name=arguments[0],
        cluster_members=list(arguments[1:]),
        invocation_timeout=CALL_TIMEOUT_S,
        fail_on_indeterminate_operation_state=True,
    )
    target = client.get_map(MAP).blocking()
    ledger = run(target, stop, _tell)
    lost = check(target, ledger)
    client.shutdown()
    _tell(
        {
            "acknowledged": len(ledger.acknowledged),
            "unknown": ledger.unknown,
            "failed_reads": ledger.failed_reads,
            "wrong_reads": ledger.wrong_reads,
            "lost": len(lost),
            "first_lost": lost[:SHOWN_MAX],
            "errors": ledger.errors,
            "samples": ledger.samples,
        }
    )


def _await_end(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def _tell(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
