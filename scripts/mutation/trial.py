"""Run tests and simulator seeds against one changed module, in processes of their own.

The parent has imported pytest and nothing of ours. A child takes the changed text for one module
through the import system, so that no file changes, and runs what it is told until something fails.
Its limits are in CPU seconds, because the machine may be busy with other things.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import CodeType, ModuleType

import hypothesis
import pytest

from mutation.places import PACKAGE, SOURCE, Mutant

ROOT = SOURCE.parent
BUILD = ROOT / "build"
MEMORY_BYTES = 3 * 2**30
CPU_LEAST_S = 20
CPU_FACTOR = 6
"""A child gets so many times what the unchanged code took."""
WALL_FACTOR = 20
"""Of the CPU limit: only a child that waits for nothing at all meets it."""
POLL_S = 0.02
WHOLE_CORE = "whimbrel.sim.run"
"""Importing it imports every room of the core."""
PROFILE = "mutants"
PROFILES = (
    *("swarm", "kill", "move", "leave", "pause", "network", "reset", "split", "over"),
    *("ambush", "topology", "operator", "clients"),
    *("mixed", "states", "roles", "snares", "uneven", "nap", "oneway", "merge"),
    *("serial", "serial-move", "upgrade"),
)
SIM_RUNS = 40
"""Seeds over the profiles in turn."""


@dataclass(frozen=True)
class Fate:
    """What became of a mutant in one child."""

    stage: str
    """``import``, ``unit``, ``property``, ``scenario``, ``sim``, ``time``; empty: it survived."""
    by: str
    """The test or simulator run that failed."""
    cpu_s: float = 0.0


SURVIVED = Fate("", "")


class _ChangedLoader(importlib.machinery.SourceFileLoader):
    """Loads a module from a text that is not in its file."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


class _ChangedModule(importlib.abc.MetaPathFinder):
    """Finds the one module that is changed."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = mutant.module
        self._path = str(PACKAGE / mutant.file)
        self._text = mutant.source()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        loader = _ChangedLoader(fullname, self._path, self._text)
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


class Chosen:
    """A pytest plugin: run these tests in this order, and remember the first failure.

    A name is that of a test, of all cases of a test, or of a file.
    """

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self.failed = ""
        self.ran: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what was chosen."""
        places = {item: self._place(item.nodeid) for item in items}
        items[:] = sorted(
            (item for item in items if places[item] < len(self._order)), key=places.__getitem__
        )

    def _place(self, test: str) -> int:
        names = (test, test.split("[")[0], test.split("::")[0])
        return min(self._order.get(name, len(self._order)) for name in names)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported fails, too."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember."""
        if report.failed and not self.failed:
            self.failed = report.nodeid
        if report.when == "call":
            self.ran.append(report.nodeid)


def prepare() -> None:
    """What the parent does once: our sources first on the path, and a calm hypothesis."""
    for folder in (str(SOURCE), str(ROOT)):
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = str(SOURCE)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(BUILD / "mutants-hypothesis")
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    (BUILD / "mutants-tmp").mkdir(parents=True, exist_ok=True)
    hypothesis.settings.register_profile(
        PROFILE, derandomize=True, database=None, deadline=None, phases=phases
    )
    hypothesis.settings.load_profile(PROFILE)


def sim_runs() -> list[str]:
    """The simulator runs, as ``sim/PROFILE/SEED``."""
    runs = range(SIM_RUNS)
    return [f"sim/{PROFILES[n % len(PROFILES)]}/{n // len(PROFILES) + 1}" for n in runs]


def run_tests(tests: Sequence[str], plugin: Chosen | None = None) -> str:
    """The test that failed first, in this process; empty when none did."""
    stops = ["-x"] if plugin is None else []
    plugin = plugin or Chosen(tests)
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    words = [*stops, "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line", "-c"]
    words += [str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "--strict-markers"]
    words += [f"--basetemp={BUILD / 'mutants-tmp' / str(os.getpid())}"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    words += [f"--hypothesis-profile={PROFILE}"]
    pytest.main([*words, *files], plugins=[plugin])
    return plugin.failed


def run_sim(run: str) -> bool:
    """Whether a simulator run breaks no rule."""
    simulate = importlib.import_module("whimbrel.sim.run").simulate
    _, profile, seed = run.split("/")
    return not simulate(int(seed), profile).violations


def run_sims(runs: Sequence[str]) -> str:
    """The simulator run that failed first, in this process; empty when none did."""
    for run in runs:
        try:
            if not run_sim(run):
                return run
        except Exception:  # a crash of the simulator is a failure like any other
            return run
    return ""


def stage_of(name: str) -> str:
    """The stage that a test or a run belongs to."""
    return "sim" if name.startswith("sim/") else name.split("/")[1]


def in_child(work: Callable[[], object], cpu_s: float) -> tuple[object, str, float]:
    """Do something in a child.

    Returns:
        Its result, what stopped it (``""``, ``time``, ``died``), and the CPU seconds it took.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _be_child(work, writing, cpu_s)
    os.close(writing)
    deadline = time.monotonic() + WALL_FACTOR * cpu_s
    with os.fdopen(reading, "rb") as pipe:
        while True:
            done, status, usage = os.wait4(pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.wait4(pid, 0)
                return None, "time", cpu_s
            time.sleep(POLL_S)
        taken_s = usage.ru_utime + usage.ru_stime
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
            return None, "time", taken_s
        text = pipe.read()
    return (json.loads(text), "", taken_s) if text else (None, "died", taken_s)


def _be_child(work: Callable[[], object], writing: int, cpu_s: float) -> None:
    """Work within the limits, write the result, end."""
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    limit_s = int(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 2))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    result = b""
    try:
        result = json.dumps(work()).encode()
    finally:
        os.write(writing, result)  # a result is shorter than a pipe's buffer
        os._exit(0)


def judge(mutant: Mutant, names: Sequence[str], calm_s: float) -> Fate:
    """What becomes of a mutant with these tests, or these simulator runs, in this order.

    Args:
        mutant: The change.
        names: Test ids as pytest writes them, or runs as ``sim_runs`` does; not both.
        calm_s: CPU seconds that all of them take without the change.
    """

    def work() -> dict[str, object]:
        sys.meta_path.insert(0, _ChangedModule(mutant))
        try:
            importlib.import_module(WHOLE_CORE)
            importlib.import_module(mutant.module)
        except BaseException as problem:
            return asdict(Fate("import", repr(problem)))
        is_sim = bool(names) and names[0].startswith("sim/")
        failed = run_sims(names) if is_sim else run_tests(names) if names else ""
        return asdict(Fate(stage_of(failed), failed) if failed else SURVIVED)

    result, stopped, cpu_s = in_child(work, CPU_LEAST_S + CPU_FACTOR * calm_s)
    if stopped or not isinstance(result, dict):
        return Fate("time" if stopped == "time" else "import", f"the process {stopped}", cpu_s)
    return Fate(str(result["stage"]), str(result["by"]), cpu_s)
