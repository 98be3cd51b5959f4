"""Run the black-box acceptance tests that lie beside the checkout, minus the disputed ones.

A dispute is a line ``TEST_ID  # reason`` in ``tests/acceptance-disputes.txt``; a line without a
reason is refused, and a test id that does not exist fails the run, so that the list cannot rot.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISPUTES = ROOT / "tests" / "acceptance-disputes.txt"


def disputed() -> list[str]:
    """Ids of the disputed tests; exits with a message when a line has no reason."""
    found = []
    for number, line in enumerate(DISPUTES.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        test_id, mark, reason = line.partition(" # ")
        if not mark or not reason.strip():
            sys.exit(f"{DISPUTES.name}:{number}: a dispute needs ' # ' and a reason")
        found.append(test_id.strip())
    return found


def main() -> int:
    """Run the suite with this checkout's whimbrel; returns pytest's exit status."""
    folder = Path(sys.argv[1]).resolve()
    marks = sys.argv[2] if len(sys.argv) > 2 else "skeleton or partitions"
    program = ROOT / ".venv" / "bin" / "whimbrel"
    command = [sys.executable, "-m", "pytest", str(folder), "-c", str(folder / "pytest.ini")]
    command += ["--rootdir", str(folder), "-q", "-m", marks, "--whimbrel", str(program)]
    command += [word for test_id in disputed() for word in ("--deselect", test_id)]
    return subprocess.call(command, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
