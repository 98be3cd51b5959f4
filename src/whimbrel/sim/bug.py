"""Bugs put in on purpose, and protections switched off: methods replaced from outside.

The core has no switch for any of them. A rule is trusted only after it has caught one; a scenario
file shows something only if it fails without the protection that it names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from whimbrel.core.ids import Address
from whimbrel.core.model import MemberInfo
from whimbrel.core.persistence.encryption import Encryption
from whimbrel.core.settings import CoreSettings
from whimbrel.errors import UsageError
from whimbrel.serving.engine import Engine
from whimbrel.sim.structures.configured import MAPS_ONLY
from whimbrel.structures.kinds import KINDS

_BY_PLACE: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_ANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def new_engine(
    me: MemberInfo, settings: CoreSettings, started_us: int, encryption: Encryption
) -> Engine:
    """An engine as it is."""
    return Engine(me, settings, KINDS, started_us, encryption)


class Bug:
    """A planted bug: what it is, how it is put in, where it shows soonest, what may catch it."""

    def __init__(
        self,
        plant: Callable[[Engine], None],
        profile: str,
        rules: tuple[str, ...],
        seeds: range = range(1, 201),
        *,
        keeps_identity: bool = False,
        kinds: tuple[str, ...] = MAPS_ONLY,
    ) -> None:
        self.name = plant.__name__
        self.profile = profile
        self.rules = rules
        """Rules one of which must be the first that is broken."""
        self.seeds = seeds
        self.keeps_identity = keeps_identity
        """Whether a process that starts again takes the identity its address had before."""
        self.kinds = kinds
        """Kinds of structures that clients use."""
        self.plant = plant
        """Puts the bug into an engine."""
        self._identities: dict[Address, MemberInfo] = {}

    def make_engine(
        self, me: MemberInfo, settings: CoreSettings, started_us: int, encryption: Encryption
    ) -> Engine:
        """An engine with the bug in it."""
        if self.keeps_identity:
            me = self._identities.setdefault(me.address, me)
        engine = new_engine(me, settings, started_us, encryption)
        self.plant(engine)
        return engine

    def begin_run(self) -> None:
        """A new run: forget the identities of the last one."""
        self._identities.clear()


def replace(owner: object, name: str, method: Callable[..., Any]) -> None:
    """Give one object another method; its class stays as it is.

    Raises:
        UsageError: It does not take all that the one takes which it stands for: the first call
            would end the member, and not show what the bug does.
    """
    wanted = inspect.signature(getattr(owner, name)).parameters.values()
    by_place = [one.name for one in wanted if one.kind in _BY_PLACE]
    by_name = {one.name: one for one in wanted if one.kind is inspect.Parameter.KEYWORD_ONLY}
    if not any(one.kind in _ANY for one in wanted):  # else it stands for something else already
        try:
            inspect.signature(method).bind(*by_place, **by_name)
        except TypeError as error:
            raise UsageError(f"{method.__qualname__} is no {name}: {error}") from error
    vars(owner)[name] = method


def nothing(*_: Any) -> None:
    """Stand in for a method that is switched off."""
