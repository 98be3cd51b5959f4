"""The benchmark of paper 05, in small: real members, of which one goes and comes back."""

from __future__ import annotations

import pytest

from whimbrel.bench import paper_persistence
from whimbrel.bench.paper_persistence import FULL, ONE_BACKUP, PLANNED, STABLE
from whimbrel.bench.paper_persistence_live import NOTHING, TENTH, Mode, Size

SIZE = Size(entries=1_240, value_bytes=2_048, partitions=31)
MODES = (
    Mode(FULL, STABLE, compares=False, backups=3, changes=(NOTHING,)),
    Mode(PLANNED, STABLE, compares=True, backups=3, changes=(NOTHING, TENTH)),
    Mode(ONE_BACKUP, STABLE, compares=True, backups=1, changes=(NOTHING,)),
)


def test_a_member_returns_with_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """APR-54, APR-61, APR-63: the flow of paper 05. With a backup on every member a kill
    copies nothing, with one it does; a return in full sends every record, with a base none or
    what has changed; nothing fails, is planned twice or is lost.
    """
    monkeypatch.setattr(paper_persistence, "MODES", MODES)
    steps: list[tuple[int, int]] = []
    figures = paper_persistence.run(lambda done, total: steps.append((done, total)), size=SIZE)
    assert all("reason" not in row for row in figures["rows"]), figures["rows"]
    rows = {(row["mode"], row["change"], row["event"]): row for row in figures["rows"]}
    assert len(rows) == 2 * sum(len(mode.changes) for mode in MODES)
    assert rows[FULL, NOTHING, "kill"]["records"] == rows[PLANNED, TENTH, "kill"]["records"] == 0
    assert rows[ONE_BACKUP, NOTHING, "kill"]["records"] > SIZE.entries // 4
    full, same = rows[FULL, NOTHING, "restart"], rows[PLANNED, NOTHING, "restart"]
    assert full["records"] == SIZE.entries and full["copies_whole"] == SIZE.partitions
    assert same["records"] == same["sum_bytes"] == 0 and same["copies_same"] == SIZE.partitions
    tenth = rows[PLANNED, TENTH, "restart"]
    assert tenth["changed"] == SIZE.entries // 10 <= tenth["records"] < SIZE.entries // 5
    assert tenth["copies_whole"] == tenth["copies_same"] == 0
    for row in rows.values():
        assert row["failed"] == 0 and row["plans"] == 1 and row["migrations"] > 0
        assert row["seconds"] > 0 and row.get("lost", 0) == row.get("wrong", 0) == 0
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1][0] == steps[-1][1]
