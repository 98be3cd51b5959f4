"""Writes that a backup refuses because their partition has moved: done, or of unknown outcome.

R4, D1, ADL-24: what a planned move has taken along is not called failed, and it is acknowledged
only when the copies exist that an acknowledgement promises (docs/design/0013).
"""

from __future__ import annotations

import pytest
from tests.unit.replication_net import SECOND, Net, key, make_row, migration, value

from whimbrel.core.effects import Send
from whimbrel.core.ids import PartitionId, ReplicaIndex
from whimbrel.core.messages import StandingAnswered, StandingRequested, TransferSent
from whimbrel.core.model import MigrationInfo, MigrationKind, Standing
from whimbrel.core.replication.outbox import FAILED_STALE, FAILED_TIMEOUT, PendingReply

WRITTEN = {key(1): value("x")}


def late_write(names: str = "abcd") -> tuple[Net, PendingReply]:
    """``a`` is the primary and ``b`` the backup; a write is done that does not reach ``b``."""
    net = Net(names)
    net.set_row(0, "ab", 2)
    net.pump()
    net.cut("a", "b")
    reply = net.put("m", 1, "x")
    net.pump()
    return net, reply


def copy_to_c(net: Net) -> MigrationInfo:
    """The planned move from ``a`` to ``c``, as far as the copy."""
    info = migration(MigrationKind.MOVE, "c", 2, new=0, source="a", source_slots=(0, -1))
    net.migrate(info, "a")
    return info


def decide(net: Net, row: str, only: str = "abd") -> None:
    """The move is committed: at ``c`` first, then at the others."""
    net.set_row(0, "cb", 3, only="c")
    net.set_row(0, row, 3, only=only)
    if "a" in only:
        net["a"].plane.roles.end_source(PartitionId(0))


@pytest.mark.parametrize("first", ["row", "refusal"])
def test_a_moved_write_is_acknowledged_when_its_backup_is_in_step(first: str) -> None:
    """Whichever of the new row and the refusal comes first: the reply waits for the second copy
    and then says success, also to a client that counts acknowledgements itself.
    """
    net, reply = late_write()
    copy_to_c(net)
    decide(net, "cb", "abd" if first == "row" else "bd")
    net.drop = lambda sender, target, what: sender == "b" and isinstance(what, StandingAnswered)
    net.mend("a", "b")
    net.pump()
    if first == "refusal":
        assert not reply.failed and reply.remaining == 1
        decide(net, "cb", "a")
    net.advance(SECOND // 10)
    assert not reply.failed and reply.remaining == 1 and not net["a"].plane.outgoing.completed
    net.drop = None
    net.advance(2 * SECOND)
    assert net["b"].content(0, "m") == net["c"].content(0, "m") == WRITTEN
    assert net["a"].plane.outgoing.completed == [reply] and not reply.failed
    assert (reply.remaining, reply.released) == (0, 1)


def test_a_moved_write_waits_as_long_as_its_backup_lacks_it() -> None:
    """R4: a single copy is not what an acknowledgement promises."""
    net, reply = late_write()
    copy_to_c(net)
    decide(net, "cb")
    net.cut("c", "b")
    net.mend("a", "b")
    net.advance(5 * SECOND)
    assert net["b"].content(0, "m") == {}
    assert not reply.failed and reply.remaining == 1
    net.mend("c", "b")
    net.advance(5 * SECOND)
    assert net["b"].content(0, "m") == WRITTEN
    assert reply.remaining == 0 and not reply.failed


def test_a_moved_write_whose_backup_never_comes_into_step_is_of_unknown_outcome() -> None:
    """C1: it waits no longer than any other for its backups."""
    net, reply = late_write()
    copy_to_c(net)
    decide(net, "cb")
    net.cut("c", "b")
    net.mend("a", "b")
    net.advance(12 * SECOND)
    assert reply.failed == FAILED_TIMEOUT and net["a"].plane.outgoing.completed == [reply]
    net.mend("c", "b")
    net.advance(5 * SECOND)
    assert net["a"].plane.outgoing.completed == [reply]


@pytest.mark.parametrize("first", ["row", "refusal"])
def test_a_former_backup_is_not_waited_for(first: str) -> None:
    """The backup has lost its seat as well: its successor was copied from the new primary."""
    net, reply = late_write()
    copy_to_c(net)
    decide(net, "cb", "abd" if first == "row" else "bd")
    info = migration(MigrationKind.MOVE, "d", 3, new=1, source="b", source_slots=(1, -1))
    net.migrate(info, "c")
    net.set_row(0, "cd", 4, only="abcd" if first == "row" else "bcd")
    net.mend("a", "b")
    net.pump()
    if first == "refusal":
        assert not reply.failed and reply.remaining == 1
        decide(net, "cb", "a")
        net.set_row(0, "cd", 4, only="a")
    assert reply.remaining == 0 and not reply.failed
    assert net["a"].plane.outgoing.completed == [reply]


def test_a_backup_that_leaves_is_not_waited_for() -> None:
    """As with acknowledgements: whoever is off the list keeps nobody waiting."""
    net, reply = late_write()
    copy_to_c(net)
    decide(net, "cb")
    net.cut("c", "b")
    net.mend("a", "b")
    net.advance(SECOND)
    assert reply.remaining == 1
    net.crash("b")
    net.set_members("acd")
    assert reply.remaining == 0 and not reply.failed


def test_a_write_that_only_the_dead_primary_had_is_not_acknowledged() -> None:
    """D1: the new primary dies before the backup has anything; the write is gone."""
    net, reply = late_write()
    copy_to_c(net)
    decide(net, "cb")
    net.cut("c", "b")
    net.mend("a", "b")
    net.advance(SECOND)
    net.crash("c")
    net.set_members("abd")
    net.set_row(0, "b", 5, only="bd")
    net.advance(SECOND)
    assert net["b"].content(0, "m") == {}
    assert reply.failed == FAILED_STALE


def test_two_changes_that_are_heard_at_once_are_no_planned_move() -> None:
    """D1: the move, the new primary's death and another backup, of all of which we hear at the end:
    that nobody of the former row is left says nothing about the write.
    """
    net, reply = late_write()
    copy_to_c(net)
    decide(net, "cb", "bd")
    net.crash("c")
    net.set_members("abd")
    net.set_row(0, "b", 5, only="bd")
    info = migration(MigrationKind.MOVE, "d", 5, new=0, source="b", source_slots=(0, -1))
    net.migrate(info, "b")
    net.set_row(0, "d", 6)
    net["a"].plane.roles.end_source(PartitionId(0))
    net.advance(SECOND)
    assert net["d"].content(0, "m") == {}
    assert reply.failed == FAILED_STALE and net["a"].plane.outgoing.completed == [reply]


def test_words_of_another_term_are_not_believed() -> None:
    """An answer about an earlier primary; a question about one that the backup does not know."""
    net, reply = late_write()
    copy_to_c(net)
    decide(net, "cb")
    net.cut("c", "b")
    net.mend("a", "b")
    net.advance(SECOND)
    late = StandingAnswered(PartitionId(0), 2, Standing.IN_STEP)
    net["a"].plane.on_message(net["b"].id, late)
    assert reply.remaining == 1 and not reply.failed
    net["d"].plane.partitions[0].take_row(make_row("cd"), 3, ReplicaIndex(1))
    net["d"].plane.on_message(net["a"].id, StandingRequested(PartitionId(0), 4))
    (said,) = [what.message for what in net["d"].ctx.effects if isinstance(what, Send)]
    assert said == StandingAnswered(PartitionId(0), 4, Standing.BEHIND)


@pytest.mark.parametrize(("row", "version"), [("cb", 9), ("db", 3)])
def test_only_the_row_of_the_move_itself_tells_that_it_was_committed(
    row: str, version: int
) -> None:
    """ADL-24, D1: the new primary may have come back without the write, or be another one."""
    net, reply = late_write()
    copy_to_c(net)
    net.set_row(0, row, version)
    net["a"].plane.roles.end_source(PartitionId(0))
    net.mend("a", "b")
    net.advance(SECOND)
    assert reply.failed == FAILED_STALE


def test_a_primary_after_the_next_tells_nothing() -> None:
    """D1: the move is known, but its destination has been replaced before the backup was asked."""
    net, reply = late_write()
    copy_to_c(net)
    decide(net, "cb")
    net.cut("c", "b")
    net.mend("a", "b")
    net.advance(SECOND)
    net.set_row(0, "db", 5, only="ad")
    assert reply.failed == FAILED_STALE


def test_a_backup_that_knows_what_it_lacks_is_not_in_step() -> None:
    """R4: the new primary's versions are there, its data are not."""
    net, reply = late_write()
    copy_to_c(net)
    net.drop = lambda sender, target, what: isinstance(what, TransferSent)
    decide(net, "cb")
    net.mend("a", "b")
    net.advance(5 * SECOND)
    assert net["b"].plane.partitions[0].is_confirmed and net["b"].content(0, "m") == {}
    assert reply.remaining == 1 and not reply.failed


@pytest.mark.parametrize("row", ["ba", "b", "c", "cb"])
def test_a_row_without_a_move_tells_nothing(row: str) -> None:
    """D1, D3: somebody else is the primary and got nothing from us; the outcome is unknown."""
    net, reply = late_write()
    net.set_row(0, row, 4)
    net.mend("a", "b")
    net.pump()
    assert reply.failed == FAILED_STALE and net["a"].plane.outgoing.completed == [reply]


def test_a_move_that_fails_changes_nothing() -> None:
    """ADL-43: we stay the primary, and the backup acknowledges as ever."""
    net, reply = late_write()
    info = copy_to_c(net)
    net["c"].plane.roles.rollback_destination(info)
    net.set_row(0, "ab", 4)
    net["a"].plane.roles.end_source(PartitionId(0))
    net.mend("a", "b")
    net.pump()
    assert reply.remaining == 0 and not reply.failed and reply.released == 0
    assert not net["a"].plane.roles._copied


def test_a_refusal_that_no_row_explains_yet_waits_for_its_row() -> None:
    """Until we know how we lost the partition nobody's word decides a write of ours: the backup
    may be in step with a primary that never had it. Method: an answer before the row.
    """
    net, reply = late_write()
    copy_to_c(net)
    decide(net, "cb", "bd")
    net.mend("a", "b")
    net.pump()
    early = StandingAnswered(
        PartitionId(0), net["a"].plane.partitions[0].primary_since, Standing.IN_STEP
    )
    net["a"].plane.on_message(net["b"].id, early)
    assert reply.remaining == 1 and not reply.failed and not net["a"].plane.outgoing.completed
