"""How a run uses a kind of structure and judges it: the one interface between the two.

A kind of structure is a package under ``structures`` with a ``StructureModel``, its ledgers
(``history.Ledger``), its operations (``history.Operation``) and the rules that are its own. What
holds for data of any kind, that nothing acknowledged is lost for example, is asked of its ledgers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sized
from typing import Any, ClassVar, TypeVar

from whimbrel.core.replication.fragments import Store
from whimbrel.core.settings import CoreSettings
from whimbrel.sim.history import Ledger, Operation, Reply
from whimbrel.sim.world import ClientProcess, World
from whimbrel.wire.frames import RawMessage

L = TypeVar("L", bound=Ledger)
S = TypeVar("S", bound=Store)


def store_as(kind: type[S], store: Store) -> S:
    """A store, known to be of this class.

    Raises:
        TypeError: It is another structure's.
    """
    if not isinstance(store, kind):
        raise TypeError(f"the store is no {kind.__name__}")
    return store


class StructureModel(ABC):
    """Calls on the structures of one kind in one run, and what their answers mean."""

    kind: ClassVar[str]
    """As in a namespace."""
    service_name: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    """Structures that every client makes sure of."""
    doomed_name: ClassVar[str]
    """A structure that is destroyed now and then."""
    listener: ClassVar[str] = ""
    """Name of the message by which the first client listens; empty when nobody does."""

    def __init__(self, world: World) -> None:
        self.world = world

    # -- calls ----------------------------------------------------------------------------

    @abstractmethod
    def draw(self, client: ClientProcess) -> Operation:
        """Begin the next operation of a client's sequence."""

    @abstractmethod
    def read(self, client: ClientProcess, ledger: Ledger) -> Operation:
        """Begin to ask what a ledger shows."""

    @abstractmethod
    def write(self, client: ClientProcess, ledger: Ledger) -> Operation:
        """Begin a plain change."""

    @abstractmethod
    def draw_target(self) -> Ledger:
        """What a write of a flood changes."""

    @abstractmethod
    def draw_doomed(self) -> list[Ledger]:
        """What is written before ``doomed_name`` is destroyed."""

    @abstractmethod
    def doom(self) -> Callable[[], None]:
        """The order to destroy goes out: what to do once it is answered."""

    def gone_once_destroyed(self, held: dict[L, None]) -> Callable[[], None]:
        """For ``doom``: what is held now must be gone then; what is written after that, need not.

        Args:
            held: Ledgers of what was acknowledged; those that are gone leave it.
        """
        doomed = tuple(held)

        def gone() -> None:
            for ledger in doomed:
                held.pop(ledger, None)
                self.world.history.destroyed[ledger] = None

        return gone

    @abstractmethod
    def final_reads(self) -> list[Ledger]:
        """What clients look at in the end."""

    # -- answers --------------------------------------------------------------------------

    @abstractmethod
    def ended(self, operation: Operation, reply: Reply) -> None:
        """A client knows how its operation ended: book what it saw and what it changed."""

    def listen(self, correlation: int, local_only: bool) -> bytes:
        """The request that ``listener`` names."""
        raise NotImplementedError(f"nobody listens to a {self.kind}")

    def heard(self, client: ClientProcess, message: RawMessage) -> None:
        """A listener was told of something."""
        raise NotImplementedError(f"nobody listens to a {self.kind}")

    # -- what members hold ----------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def content(store: Store) -> Sized:
        """Everything that equal replicas have in common, as long as ``len(store)``."""

    @staticmethod
    def merge_policy(settings: CoreSettings, name: str) -> str:
        """By what a structure is merged after a split; empty where there is nothing to choose."""
        return ""

    @staticmethod
    @abstractmethod
    def merge_problem(
        policy: str, is_merged: bool, before: Any, store: Store | None, chunk: bytes
    ) -> str:
        """What the merge of a chunk did and the policy does not allow; empty when it does (D10).

        Args:
            policy: Of the structure.
            is_merged: Whether the chunk was taken in now, not refused or known.
            before: A copy of the content before, None when there was no store.
            store: What the primary holds now.
            chunk: What a part that yields had, in the form of the kind.
        """
