"""The number of each member: 16 bits, never given twice in the life of a cluster (design 0002).

Numbers come in blocks: the first is the member's own, the others are its reserve, which it gives to
newcomers when it is master and has nothing else. Whose a block is, is a *decision*, one after the
other, each by the voters that the decision before it named: single-decree Paxos (Lamport, "Paxos
made simple", 2001), with the electorate of the next decision as part of the value (Lamport, Malkhi,
Zhou, "Reconfiguring a state machine", 2010). So of two parts of a split one at most gets blocks.

All of it travels in lists and heartbeats: no message is sent for it, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from whimbrel.core.check import check
from whimbrel.core.context import Context
from whimbrel.core.ids import MemberId
from whimbrel.core.model import (
    NO_BALLOT,
    NO_NUMBER,
    NUMBERS_END,
    Ballot,
    MemberInfo,
    MemberList,
    NumberGrant,
    Numbering,
    NumberProposal,
    NumbersAsked,
    NumbersTold,
    Voter,
    members_came,
)

BLOCK_NUMBERS = 8
"""A member's own number and a reserve of seven: newcomers that the smaller part of a split can take
in with one master. More would be fewer blocks: 8,192 members and masters in a cluster's life."""
STOCK_BLOCKS = 4
"""Blocks that a master asks for ahead of need, so that newcomers get theirs with their first list;
a stable master of a fleet that is started at once does not wait for a decision per member."""
FINAL_WORDS_MAX = 256
"""Members that left and whose last word on the numbers is known; the oldest are forgotten."""


def voter_of(info: MemberInfo) -> Voter:
    """The process behind an entry of the list."""
    return Voter(info.id, info.started_us, info.address)


def voters_of(members: MemberList) -> tuple[Voter, ...]:
    """The processes of a list, oldest first."""
    return tuple(map(voter_of, members.members))


def has_outlived(info: MemberInfo, voter: Voter) -> bool:
    """Whether a listed process shows that another one is no more: it has its place.

    Two processes cannot listen at one address, nor have one identity (M4). Nothing else shows it: a
    connection is refused by a wall between two parts of a network as well.
    """
    is_in_its_place = info.address == voter.address or info.id == voter.id
    return is_in_its_place and info.started_us > voter.started_us


class _Attempt:
    """A decision that this master tries to bring about."""

    __slots__ = ("answers", "ballot", "proposal")

    def __init__(self, ballot: Ballot) -> None:
        self.ballot = ballot
        self.proposal: NumberProposal | None = None
        """None in the first phase, in which voters say what they have accepted before."""
        self.answers: dict[Voter, NumbersTold] = {}
        """To the present phase."""


class Numbers:
    """One member's part in the numbers: as voter, as master, as one that gets a number."""

    def __init__(self, ctx: Context) -> None:
        """Begin without a number, and knowing of no decision.

        Args:
            ctx: Shared with the other rooms.
        """
        self._ctx = ctx
        self.on_changed: Callable[[], None] = lambda: None
        """Told that ``kept`` has changed."""
        self.when_durable: Callable[[Callable[[], None]], None] = lambda then: then()
        """Calls once ``kept`` outlives this process: at once where nothing is kept."""
        self._undurable = 0
        """Decisions of ours that might be forgotten yet."""
        self._me = Voter(ctx.id, ctx.started_us, ctx.me.address)
        self.number = NO_NUMBER
        """Ours as long as this process is in the cluster."""
        self._reserve = range(0)
        """Numbers of our own that we may give away."""
        # As voter.
        self._numbering: Numbering | None = None
        self._promised: Ballot = NO_BALLOT
        self._accepted: NumberProposal | None = None
        self._round = 0
        """The highest round of a ballot that we know of."""
        self._is_asked = False
        self._is_final = False
        """Whether we have said our last word."""
        self._final: dict[Voter, NumbersTold] = {}
        """The last words of members that left: they decide nothing any more."""
        self._outlived: dict[Voter, None] = {}
        """Voters whose process is no more (``has_outlived``)."""
        # As master.
        self._attempt: _Attempt | None = None
        self._blocks: list[range] = []
        """Ours, and given to nobody yet."""
        self._needing: dict[Voter, int] = {}
        """Listed members that are not known to have a number, and since when."""
        self._granted: dict[Voter, NumberGrant] = {}
        """What listed members were given by us."""
        self._unserved: dict[Voter, None] = {}
        """Members that we had nothing for, so that each is noted once."""
        self._decisions: dict[MemberId, int] = {}
        """The decision that each listed member has shown to know."""

    @property
    def kept(self) -> Numbering | None:
        """What must outlive this process: no number below ``free`` is given again."""
        numbering, accepted = self._numbering, self._accepted
        if numbering is None or accepted is None:
            return numbering
        free = max(numbering.free, accepted.numbering.free)
        return msgspec.structs.replace(numbering, free=free)

    # -- what happens to us ---------------------------------------------------------------

    def found(self) -> None:
        """We found a cluster: all numbers are free, and we decide alone."""
        self._numbering = Numbering(0, 0, (self._me,))
        self.on_changed()

    def resume(self, numbering: Numbering | None) -> None:
        """The cluster comes back from its files: we decide alone, beyond all that was given.

        A decision that had not reached any file may have given a master's stock, and a block to
        each voter. Nobody who made one is left, so no quorum of theirs is needed.

        Args:
            numbering: The latest decision that the files know; None if they know none.
        """
        if numbering is None:
            self.found()
            self._await_durable()
            return
        beyond = BLOCK_NUMBERS * (STOCK_BLOCKS + len(numbering.voters))
        free = min(numbering.free + beyond, NUMBERS_END)
        self._numbering = Numbering(numbering.decision + 1, free, (self._me,))
        self.on_changed()
        self._await_durable()

    def _await_durable(self) -> None:
        """Give nothing before this is durable: a recovery that is interrupted begins with the same
        files, and would give the same numbers again.
        """
        self._undurable += 1
        self.when_durable(self._is_durable)

    def _is_durable(self) -> None:
        self._undurable -= 1
        self._give()

    def list_installed(self, old: MemberList) -> None:
        """Another list is in place; as master see who has no number, and who is to decide."""
        ctx, members = self._ctx, self._ctx.members
        present = dict.fromkeys(voters_of(members))
        voters = () if self._numbering is None else self._numbering.voters
        for voter in voters:
            if voter not in present and any(has_outlived(info, voter) for info in members.members):
                self._outlived[voter] = None
        self._needing = {one: at for one, at in self._needing.items() if one in present}
        self._granted = {one: what for one, what in self._granted.items() if one in present}
        self._unserved = {one: None for one in self._unserved if one in present}
        self._decisions = {one: n for one, n in self._decisions.items() if ctx.is_member(one)}
        if not ctx.is_master:
            return
        if old.master == ctx.id:
            came = dict.fromkeys(members_came(old, members))
            self._need(voter_of(info) for info in members.members if info.id in came)
        if self.number == NO_NUMBER:
            self._need((self._me,))
        self._advance()

    def on_goodbye(self, leaver: MemberInfo, last: NumbersTold | None) -> None:
        """A member has left; what it said last counts for ever."""
        if last is None:
            return
        self._learn(last)
        self._final[voter_of(leaver)] = last
        while len(self._final) > FINAL_WORDS_MAX:
            del self._final[next(iter(self._final))]
        if self._ctx.is_master:
            self._advance()

    def last_word(self) -> NumbersTold:
        """We leave: what we say now stays true, because we decide nothing any more."""
        self._is_final = True
        self._attempt = None
        return self._told()

    # -- the voter ------------------------------------------------------------------------

    def on_asked(self, asked: NumbersAsked | None) -> None:
        """Our master asks, tells of decisions, and gives numbers. Repeated until we answer."""
        if asked is None or self._is_final:
            return
        self._take(asked.grants)
        known = -1 if self._numbering is None else self._numbering.decision
        if asked.numbering.decision > known:
            self._adopt(asked.numbering)
        if asked.numbering.decision >= known and asked.ballot >= self._promised:
            self._promised = asked.ballot
            if asked.proposal is not None:
                self._accepted = asked.proposal
                self.on_changed()
        self._round = max(self._round, asked.ballot[0])
        self._is_asked = True

    def take_word(self) -> NumbersTold | None:
        """What the next heartbeat tells our master: an answer, or that we have no number."""
        if not self._is_asked and self.number != NO_NUMBER:
            return None
        self._is_asked = False
        return self._told()

    def _told(self) -> NumbersTold:
        return NumbersTold(self.number, self._numbering, self._promised, self._accepted)

    def _take(self, grants: tuple[NumberGrant, ...]) -> None:
        """Our number is the first that we are given; whatever comes later is wasted."""
        for grant in grants:
            if grant.to == self._me and self.number == NO_NUMBER:
                self.number = grant.number
                self._reserve = range(grant.number + 1, grant.end)
                reserve = len(self._reserve)
                self._ctx.note("member_numbered", number=grant.number, reserve=reserve)

    def _adopt(self, numbering: Numbering) -> None:
        """A decision was made: the next one is by these voters."""
        self._numbering = numbering
        self._accepted = None
        self.on_changed()
        self._attempt = None
        self._final = {one: last for one, last in self._final.items() if one in numbering.voters}
        self._outlived = {one: None for one in self._outlived if one in numbering.voters}

    def _learn(self, told: NumbersTold) -> None:
        """Take over a decision that we have not heard of; give up a ballot that is too low."""
        ours, theirs = self._numbering, told.numbering
        self._round = max(self._round, told.promised[0])
        if theirs is not None and (ours is None or theirs.decision > ours.decision):
            self._adopt(theirs)
        elif self._attempt is not None and told.promised > self._attempt.ballot:
            self._attempt = None

    # -- the master -----------------------------------------------------------------------

    def word(self) -> NumbersAsked | None:
        """What lists and heartbeats of this master say of the numbers; None when there is nothing.

        It is the same for all members, and repeated until it has been heard.
        """
        numbering, attempt = self._numbering, self._attempt
        if numbering is None:
            return None
        self._give()
        grants = tuple(self._granted[one] for one in self._needing if one in self._granted)
        decisions = self._decisions
        is_known = all(decisions.get(one, -1) >= numbering.decision for one in self._ctx.others())
        if attempt is None and not grants and is_known:
            return None
        ballot = NO_BALLOT if attempt is None else attempt.ballot
        proposal = None if attempt is None else attempt.proposal
        return NumbersAsked(numbering, ballot, proposal, grants)

    def on_told(self, sender: MemberInfo, told: NumbersTold | None) -> None:
        """A member of our list answers, or says that it has no number."""
        if told is None or not self._ctx.is_master:
            return
        voter = voter_of(sender)
        if told.number == NO_NUMBER:
            self._need((voter,))
        else:
            self._needing.pop(voter, None)
        if told.numbering is not None:
            self._decisions[sender.id] = told.numbering.decision
        self._learn(told)
        self._count(voter, told)
        self._advance()

    def _need(self, voters: Iterable[Voter]) -> None:
        for voter in voters:
            self._needing.setdefault(voter, self._ctx.now_us)

    def _count(self, voter: Voter, told: NumbersTold) -> None:
        """Take an answer to the present phase of the attempt."""
        attempt, ours = self._attempt, self._numbering
        if attempt is None or ours is None or told.numbering is None:
            return
        if told.numbering.decision != ours.decision or told.promised != attempt.ballot:
            return
        if attempt.proposal is None or told.accepted == attempt.proposal:
            attempt.answers[voter] = told

    def _advance(self) -> None:
        """Go on for as long as nobody else's answer is missing: a single voter decides alone."""
        while self._step():
            pass
        self._give()

    def _step(self) -> bool:
        """One step towards the next decision; False when there is none to take."""
        numbering, attempt = self._numbering, self._attempt
        if numbering is None or self._is_final:
            return False
        if attempt is None:
            return self._begin(numbering)
        if not self._has_quorum(numbering, attempt):
            return False
        if attempt.proposal is None:
            self._propose(numbering, attempt)
        else:
            self._decide(numbering, attempt.proposal)
        return True

    def _begin(self, numbering: Numbering) -> bool:
        """First phase: nobody who answers will accept anything of a lower ballot."""
        is_short = not self._blocks and self._room(numbering) > 0
        if not is_short and numbering.voters == voters_of(self._ctx.members):
            return False
        self._round += 1
        self._promised = (self._round, self._ctx.id, self._ctx.started_us)
        self._attempt = _Attempt(self._promised)
        self._attempt.answers[self._me] = self._told()
        return True

    def _propose(self, numbering: Numbering, attempt: _Attempt) -> None:
        """Second phase: the value of the highest ballot that anybody accepted, or else our own."""
        last = [one for one in self._final.values() if one.numbering == numbering]
        earlier = [
            told.accepted
            for told in (*attempt.answers.values(), *last)
            if told.accepted is not None
        ]
        if earlier:
            found = max(earlier, key=lambda one: one.ballot)
            owner, value = found.owner, found.numbering
        else:
            waiting = sum(one not in self._granted for one in self._needing)
            wanted = max(0, STOCK_BLOCKS + waiting - len(self._blocks))
            free = numbering.free + BLOCK_NUMBERS * min(wanted, self._room(numbering))
            owner = self._me
            value = Numbering(numbering.decision + 1, free, voters_of(self._ctx.members))
        self._accepted = attempt.proposal = NumberProposal(attempt.ballot, owner, value)
        self.on_changed()
        attempt.answers = {self._me: self._told()}

    def _decide(self, before: Numbering, proposal: NumberProposal) -> None:
        """A quorum has accepted it: it is the decision, whoever else tries."""
        after = proposal.numbering
        check(before.free <= after.free <= NUMBERS_END, "decided numbers rise, up to their end")
        if proposal.owner == self._me:
            starts = range(before.free, after.free, BLOCK_NUMBERS)
            self._blocks += [range(start, start + BLOCK_NUMBERS) for start in starts]
        self._adopt(after)
        self._await_durable()

    def _room(self, numbering: Numbering) -> int:
        """Blocks that nobody owns."""
        return (NUMBERS_END - numbering.free) // BLOCK_NUMBERS

    def _has_quorum(self, numbering: Numbering, attempt: _Attempt) -> bool:
        """Whether those who answered are enough (see the argument in design 0002).

        Who left counts with its last word, unless that forbids our ballot. Of the others it takes
        more than half; or half, ourselves among them, when no process of the other half lives.
        """
        rest = [voter for voter in numbering.voters if not self._is_over(voter, attempt.ballot)]
        missing = [voter for voter in rest if voter not in attempt.answers]
        if 2 * len(missing) == len(rest):
            return self._me in rest and all(one in self._outlived for one in missing)
        return 2 * len(missing) < len(rest)

    def _is_over(self, voter: Voter, ballot: Ballot) -> bool:
        last = self._final.get(voter)
        return last is not None and last.promised <= ballot

    def _give(self) -> None:
        """Give numbers to those that have none, as far as we have any; none in a recovery."""
        if self._undurable or self._ctx.members.recovery is not None:
            return
        for voter, since_us in list(self._needing.items()):
            if voter in self._granted:
                continue
            given = self._next_numbers(since_us)
            if given:
                self._granted[voter] = NumberGrant(voter, given.start, given.stop)
            elif given is not None and voter not in self._unserved:
                self._unserved[voter] = None
                self._ctx.note("member_number_missing", "warning", member=voter.id)
        own = self._granted.get(self._me)
        if own is not None and self.number == NO_NUMBER:
            self._take((own,))
            del self._needing[self._me]

    def _next_numbers(self, since_us: int) -> range | None:
        """A block, or one of our reserve where a decision is long in coming.

        Returns:
            Empty when we have nothing to give, None when it is too early to say.
        """
        if self._blocks:
            return self._blocks.pop(0)
        if self._ctx.now_us - since_us < self._ctx.settings.heartbeat_timeout_us:
            return None
        given, self._reserve = self._reserve[:1], self._reserve[1:]
        return given
