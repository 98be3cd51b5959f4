"""Bugs of timers and of orders that are no orders."""

from __future__ import annotations

from whimbrel.core.ids import MemberId
from whimbrel.serving.engine import Engine
from whimbrel.sim.bug import Bug, replace


def members_in_set_order(engine: Engine) -> None:
    """Members are told things in the order of a set of strings: another one in each process."""
    ctx = engine.member.ctx
    others = ctx.others

    def shuffled() -> list[MemberId]:
        return list(set(others()))

    replace(ctx, "others", shuffled)


def timer_generation_ignored(engine: Engine) -> None:
    """Any firing of a timer counts, also one that was replaced or taken back."""
    ctx = engine.member.ctx
    take_timer = ctx.take_timer

    def fire(key: str, generation: int) -> bool:
        take_timer(key, generation)
        return True

    replace(ctx, "take_timer", fire)


BUGS: tuple[Bug, ...] = (
    Bug(members_in_set_order, "kill", ("X3",)),
    Bug(timer_generation_ignored, "swarm", ("X1", "L1", "X2", "D6", "D1")),
)
