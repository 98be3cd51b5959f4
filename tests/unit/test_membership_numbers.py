"""Numbers of members: never twice in a cluster's life (docs/design/0002, "Numbers").

The net asserts at every number that nobody else of the same cluster has or had it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.unit.membership_net import SECOND, SETTINGS, Host, Net, address_of

from whimbrel.core.context import Context
from whimbrel.core.effects import Note
from whimbrel.core.ids import MemberId
from whimbrel.core.membership.numbers import BLOCK_NUMBERS, STOCK_BLOCKS, Numbers, voter_of
from whimbrel.core.messages import GoodbyeTold, Heartbeat
from whimbrel.core.model import (
    NO_BALLOT,
    NO_NUMBER,
    NUMBERS_END,
    MemberInfo,
    MemberList,
    NumberGrant,
    Numbering,
    NumberProposal,
    NumbersAsked,
    NumbersTold,
)

ROUNDS = 6 * SECOND
"""Long enough for a decision: two questions, each with the answers of one heartbeat."""


def number(host: Host) -> int:
    return host.room.numbers.number


def is_block(host: Host) -> bool:
    """Whether the number comes from a decision and not from somebody's reserve."""
    return number(host) != NO_NUMBER and number(host) % BLOCK_NUMBERS == 0


def has_number(*hosts: Host) -> bool:
    return all(number(host) != NO_NUMBER for host in hosts)


def joiner(net: Net, port: int, *ports: int) -> Host:
    host = net.start(port, ports)
    net.run_until(lambda: host.joined)
    return host


# -- whole clusters -----------------------------------------------------------------------


def test_a_number_comes_with_the_first_list() -> None:
    """Goal: nobody waits for a number in a healthy cluster. Method: five join one by one."""
    net = Net()
    hosts = net.cluster(5)
    assert [number(host) for host in hosts] == [0, 8, 16, 24, 32]


def test_many_at_once_have_numbers_soon() -> None:
    """Goal: a fleet that starts together is not served from the stock alone. Method: twelve."""
    net = Net()
    hosts = [net.start(port, range(1, 13)) for port in range(1, 13)]
    net.run_until(lambda: net.agreed(hosts) and has_number(*hosts), ROUNDS)
    assert all(map(is_block, hosts))


def test_the_next_master_goes_on_with_the_numbers() -> None:
    """Goal: no number again after a change of master. Method: kill master after master."""
    net = Net()
    hosts = net.cluster(5)
    for port in (6, 7):
        net.run(ROUNDS)
        net.kill(hosts.pop(0))
        net.run_until(lambda: net.agreed(hosts))
        hosts.append(joiner(net, port, *range(1, 8)))
        net.run_until(lambda: has_number(*hosts), ROUNDS)
        assert is_block(hosts[-1])


def test_only_one_part_of_a_split_decides() -> None:
    """Goal: in both parts newcomers have numbers, in the smaller one from its master's reserve.

    Method: three and two go on alone, two join each; then one more master's worth joins the
    smaller part until its reserve is used up, which is told.
    """
    net = Net()
    hosts = net.cluster(5)
    net.run(ROUNDS)
    large, small = hosts[:3], hosts[3:]
    net.cut(large, small, both=True)
    net.run_until(lambda: net.agreed(large) and net.agreed(small))
    more = [joiner(net, port, 1) for port in (6, 7)]
    fewer = [joiner(net, port, 4) for port in (8, 9)]
    net.run(SETTINGS.heartbeat_timeout_us + ROUNDS)
    assert all(map(is_block, more))
    assert [number(host) for host in fewer] == [number(small[0]) + 1, number(small[0]) + 2]
    rest = [joiner(net, port, 4) for port in range(10, 16)]
    net.run(SETTINGS.heartbeat_timeout_us + ROUNDS)
    assert [number(host) for host in rest[:5]] == [number(small[0]) + k for k in range(3, 8)]
    assert number(rest[5]) == NO_NUMBER
    told = [note for note in small[0].notes if note.kind == "member_number_missing"]
    assert [note.fields["member"] for note in told] == [rest[5].id]


def test_merged_parts_have_new_numbers() -> None:
    """Goal: who gave way is new and so is its number. Method: a split is healed."""
    net = Net()
    net.respawn = True
    hosts = net.cluster(5)
    net.run(ROUNDS)
    before = {number(host) for host in hosts}
    net.cut(hosts[:3], hosts[3:], both=True)
    net.run_until(lambda: net.agreed(hosts[:3]) and net.agreed(hosts[3:]))
    net.heal()
    net.run_until(lambda: len(net.live()) == 5 and net.agreed(), 120 * SECOND)
    net.run_until(lambda: has_number(*net.live()), ROUNDS)
    new = [number(host) for host in net.live() if host not in hosts]
    assert len(new) == 2
    assert not before & set(new)


def test_half_of_two_waits_for_proof() -> None:
    """Goal: one of two goes on with the main numbers only once the other is surely dead.

    Method: the older one dies; a newcomer elsewhere gets of the reserve, one that has the dead
    one's address proves its death, and what comes after has blocks again.
    """
    net = Net()
    first, second = net.cluster(2)
    net.run(ROUNDS)
    net.kill(first)
    net.run_until(lambda: net.agreed([second]))
    third = joiner(net, 3, 2)
    net.run_until(lambda: has_number(third), SETTINGS.heartbeat_timeout_us + 2 * SECOND)
    assert number(third) == number(second) + 1
    fourth = joiner(net, 1, 2)
    net.run_until(lambda: has_number(fourth), ROUNDS)
    assert is_block(fourth)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2)])
def test_leavers_hold_nothing_up(order: tuple[int, ...]) -> None:
    """Goal: four of five that leave gracefully do not cost the cluster its numbers.

    Method: all ask at once, so that more than half is gone before anything is decided.
    """
    net = Net()
    hosts = net.cluster(5)
    net.run(ROUNDS)
    for index in order:
        net.leave(hosts[index])
    net.run_until(lambda: net.agreed([hosts[4]]))
    newcomer = joiner(net, 6, 5)
    net.run_until(lambda: has_number(newcomer), SECOND)
    assert is_block(newcomer)


def test_lost_words_are_said_again() -> None:
    """Goal: numbers come though a third of all messages is lost. Method: that."""
    net = Net(seed=3, loss=0.3)
    hosts = net.cluster(4)
    net.kill(hosts.pop(0))
    net.run_until(lambda: net.agreed(hosts), 120 * SECOND)
    hosts.append(net.start(5, range(1, 6)))
    net.run_until(lambda: net.agreed(hosts) and has_number(*hosts), 120 * SECOND)


def test_nothing_is_said_when_all_is_known() -> None:
    """Goal: at rest the numbers cost no byte. Method: look at heartbeats of a calm cluster."""
    net = Net()
    hosts = net.cluster(3)
    net.run(2 * ROUNDS)
    said: list[Heartbeat] = []

    def watch(_source: Host, _target: Host, message: object) -> bool:
        if isinstance(message, Heartbeat):
            said.append(message)
        return False

    net.lost = watch
    net.run(3 * SECOND)
    assert len(said) >= 3 * len(hosts)
    assert all(beat.asked is None and beat.told is None for beat in said)


# -- one member ---------------------------------------------------------------------------


def info(index: int, started_us: int = 0) -> MemberInfo:
    return MemberInfo(MemberId(f"m{index}"), address_of(index), started_us=started_us)


class One:
    """One member's part in the numbers, with a list that the test says."""

    def __init__(self, index: int, count: int = 3) -> None:
        self.all = [info(k) for k in range(1, count + 1)]
        self.ctx = Context(info(index), SETTINGS)
        self.numbers = Numbers(self.ctx)
        self.voters = tuple(map(voter_of, self.all))

    def list(self, *indexes: int) -> None:
        """These members are listed now, in this order."""
        old = self.ctx.members
        infos = tuple(self.all[index - 1] for index in indexes)
        self.ctx.members = MemberList(old.version + 1, infos)
        self.numbers.list_installed(old)

    def ask(self, round_: int, by: int = 1, proposal: NumberProposal | None = None) -> NumbersTold:
        """Ask as master ``by`` for the decision after the first; returns the answer."""
        numbering = Numbering(1, 40, self.voters)
        ballot = (round_, MemberId(f"m{by}"), 0)
        self.numbers.on_asked(NumbersAsked(numbering, ballot, proposal))
        told = self.numbers.take_word()
        assert told is not None
        return told

    def wish(self, round_: int, by: int = 1) -> NumberProposal:
        after = Numbering(2, 48, self.voters)
        return NumberProposal((round_, MemberId(f"m{by}"), 0), self.voters[by - 1], after)

    def hears(self, index: int, told: NumbersTold) -> None:
        self.numbers.on_told(self.all[index - 1], told)


def test_a_voter_keeps_its_promise() -> None:
    """Goal: nothing of a lower ballot is accepted (Paxos P1a). Method: ask out of order."""
    one = One(3)
    assert one.ask(2, by=2).promised[0] == 2
    told = one.ask(1, by=1, proposal=one.wish(1))
    assert told.promised[0] == 2
    assert told.accepted is None
    assert one.ask(2, by=2, proposal=one.wish(2, by=2)).accepted == one.wish(2, by=2)


def test_a_master_ends_what_another_began() -> None:
    """Goal: a value that may be decided is decided, and its numbers stay its owner's (P2c).

    Method: the second of three finds that the third had accepted the first one's wish.
    """
    one = One(2)
    one.ask(1)
    one.list(2, 3)
    word = one.numbers.word()
    assert word is not None
    assert word.proposal is None
    one.hears(3, NumbersTold(16, word.numbering, word.ballot, one.wish(1)))
    word = one.numbers.word()
    assert word is not None
    assert word.proposal is not None
    assert (word.proposal.owner, word.proposal.numbering) == (one.voters[0], one.wish(1).numbering)
    one.hears(3, NumbersTold(16, word.numbering, word.ballot, word.proposal))
    word = one.numbers.word()
    assert word is not None
    assert word.numbering == one.wish(1).numbering
    assert not word.grants, "the numbers are the first one's, who has no use for them"


def test_a_higher_promise_makes_it_begin_anew() -> None:
    """Goal: a master whose ballot is too low takes a higher one. Method: one answer says so."""
    one = One(2)
    one.ask(1)
    one.list(2, 3)
    word = one.numbers.word()
    assert word is not None
    one.hears(3, NumbersTold(16, word.numbering, (9, MemberId("m1"), 0)))
    word = one.numbers.word()
    assert word is not None
    assert word.ballot == (10, one.ctx.id, 0)


def test_a_last_word_counts_only_below_its_promise() -> None:
    """Goal: a leaver that had promised a rival more holds the lower ballot up, and shows what it
    had accepted. Method: its last word has a higher ballot and a value.
    """
    one = One(2)
    one.ask(1)
    one.list(2, 3)
    rival = one.wish(7)
    last = NumbersTold(16, Numbering(1, 40, one.voters), rival.ballot, rival)
    one.numbers.on_goodbye(one.all[0], last)
    word = one.numbers.word()
    assert word is not None
    assert word.ballot[0] == 8
    one.hears(3, NumbersTold(16, word.numbering, word.ballot))
    word = one.numbers.word()
    assert word is not None
    assert word.proposal is not None
    assert word.proposal.owner == one.voters[0]


def test_who_has_left_says_nothing_more() -> None:
    """Goal: a last word stays true. Method: ask one that has said it."""
    one = One(3)
    one.ask(1)
    last = one.numbers.last_word()
    one.numbers.on_asked(NumbersAsked(Numbering(1, 40, one.voters), (5, MemberId("m2"), 0)))
    assert one.numbers.last_word() == last


def test_a_late_decision_is_taken_over_and_an_early_one_is_not() -> None:
    """Goal: who is behind learns, whoever tells. Method: a follower knows more than its master."""
    one = One(2)
    one.ask(1)
    one.list(2, 3)
    later = Numbering(5, 80, one.voters[1:])
    one.hears(3, NumbersTold(16, later, NO_BALLOT))
    word = one.numbers.word()
    assert word is not None
    assert word.numbering == later
    one.numbers.on_asked(NumbersAsked(Numbering(1, 40, one.voters), (50, MemberId("m1"), 0)))
    told = one.numbers.last_word()
    assert told.numbering == later
    assert told.promised[0] < 50


def test_the_first_number_is_kept() -> None:
    """Goal: a second grant changes nothing. Method: two, and one for somebody else."""
    one = One(3)
    grants = [NumberGrant(one.voters[k], n, n + 8) for k, n in ((0, 8), (2, 24), (2, 32))]
    numbering = Numbering(1, 40, one.voters)
    one.numbers.on_asked(NumbersAsked(numbering, NO_BALLOT, None, tuple(grants)))
    assert one.numbers.number == 24


def test_numbers_come_to_an_end() -> None:
    """Goal: when no block is left newcomers get the reserve, then nothing, and nothing wraps.

    Method: a founder of whose numbers one block is left over.
    """
    one = One(1, count=12)
    one.numbers.found()
    one.numbers._numbering = Numbering(9, NUMBERS_END - BLOCK_NUMBERS, one.voters[:1])
    one.list(1)
    assert one.numbers.number == NUMBERS_END - BLOCK_NUMBERS
    one.list(*range(1, 11))
    assert one.numbers.word() is not None
    one.ctx.now_us += SETTINGS.heartbeat_timeout_us
    word = one.numbers.word()
    assert word is not None
    given = [grant.number for grant in word.grants]
    assert given == list(range(NUMBERS_END - BLOCK_NUMBERS + 1, NUMBERS_END))
    notes = [one.kind for one in one.ctx.effects if isinstance(one, Note)]
    assert notes.count("member_number_missing") == 2


def test_a_stock_is_asked_for_ahead() -> None:
    """Goal: newcomers find blocks ready. Method: what a founder has decided for itself."""
    one = One(1)
    one.numbers.found()
    one.list(1)
    told = one.numbers.last_word()
    assert told.numbering == Numbering(1, (STOCK_BLOCKS + 1) * BLOCK_NUMBERS, one.voters[:1])


@pytest.mark.parametrize("message", [Heartbeat(3, None), GoodbyeTold(MemberId("m1"))])
def test_words_of_an_older_build_are_read(message: msgspec.Struct) -> None:
    """Goal: messages without the new fields are taken. Method: cut them off."""
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    for count in (3, 4):
        older = msgspec.msgpack.encode(fields[:count])
        assert msgspec.msgpack.decode(older, type=type(message)) == message


def test_nothing_is_given_before_a_decision_is_durable() -> None:
    """Goal: a recovery that dies and begins again with the same files gives no number twice.
    Method: a master alone, whose disk answers late; what it has by then is on the disk.
    """
    ctx = Context(MemberInfo(MemberId("a"), address_of(1)), SETTINGS, 1)
    numbers = Numbers(ctx)
    waiting: list[Callable[[], None]] = []
    numbers.when_durable = waiting.append
    numbers.resume(Numbering(3, 80, (voter_of(ctx.me),)))
    before, ctx.members = ctx.members, MemberList(7, (ctx.me,), cluster_id="c")
    numbers.list_installed(before)
    assert numbers.number == NO_NUMBER
    while waiting:
        kept = numbers.kept
        waiting.pop(0)()
    assert kept is not None and 80 < numbers.number < kept.free
