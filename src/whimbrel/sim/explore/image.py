"""Copies and digests of one member, by walking everything that it is made of.

The walk knows no room of the core. It goes through every attribute, container and closure, so a
field that somebody adds is copied and counts in the digest without a word here; only what is
named in ``UNCOUNTED`` does not count. So two members with equal digests behave alike.

What is half-way through a generator is written down as what the generator knows and where it
stands; it cannot be copied, and is made again by taking its steps again (``lab``).

Frozen structs, strings, numbers and the like are shared between copies. What stands behind a
closure is copied with it: a planted bug's replacement belongs to its own copy.
"""

from __future__ import annotations

import enum
import types
from array import array
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Path = tuple[str, str]
"""(class, attribute)"""

UNCOUNTED: frozenset[Path] = frozenset(
    {
        ("Context", "_generations"),
        ("Context", "_armed"),
        ("Context", "_firing"),
        ("Member", "strangers_total"),
        ("MigrationReporter", "partitions_lost"),
        ("DataPlane", "counters"),
        ("MigrationReporter", "finished"),
        ("DiskLog", "counters"),
    }
)
"""Attributes that decide nothing: statistics for people, and the generations of timers (the
explorer delivers the newest firing of a timer only; which timers are armed counts, by deadline)."""

STORIES = ("cause", "causes")
"""What an attribute's name ends with that says which story something belongs to (docs/design/0016):
it decides nothing either, wherever it is."""
DIGEST_BYTES = 16
_SHARED = (
    type(None), bool, int, float, range, str, bytes, type, enum.Enum, types.ModuleType,
    types.MethodDescriptorType, msgspec.msgpack.Encoder, msgspec.msgpack.Decoder,
)  # fmt: skip


class CopyError(Exception):
    """Something of a graph is half-way through a generator."""


def _is_frozen_struct(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen


class _Kinds:
    """What is known about classes, worked out once for each."""

    def __init__(self) -> None:
        self.shared: dict[type, bool] = {}
        self.slots: dict[type, tuple[str, ...]] = {}

    def is_shared(self, kind: type) -> bool:
        """Whether values of a class never change and refer to nothing that does."""
        known = self.shared.get(kind)
        if known is None:
            native = issubclass(kind, _SHARED) or kind.__module__ in ("struct", "_struct")
            known = self.shared[kind] = native or _is_frozen_struct(kind)
        return known

    def slots_of(self, kind: type) -> tuple[str, ...]:
        """The slots of a class and of its bases, in order."""
        known = self.slots.get(kind)
        if known is None:
            names: dict[str, None] = {}
            for base in reversed(kind.__mro__):
                slots = base.__dict__.get("__slots__", ())
                for name in (slots,) if isinstance(slots, str) else slots:
                    if name not in ("__dict__", "__weakref__"):
                        names[name] = None
            if issubclass(kind, msgspec.Struct):
                names.update(dict.fromkeys(kind.__struct_fields__))
            known = self.slots[kind] = tuple(names)
        return known


_KINDS = _Kinds()


class _Cloner:
    """One copy of one graph."""

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}

    def clone(self, value: Any) -> Any:
        """The copy of a value, the same one each time."""
        kind = type(value)
        if _KINDS.is_shared(kind):
            return value
        found = self.done.get(id(value))
        if found is not None:
            return found
        maker = _CLONERS.get(kind)
        if maker is not None:
            return maker(self, value)
        return self._tuple(value) if issubclass(kind, tuple) else self._instance(value, kind)

    def _instance(self, value: Any, kind: type[Any]) -> Any:
        is_struct = issubclass(kind, msgspec.Struct)
        copy = self.done[id(value)] = value.__copy__() if is_struct else object.__new__(kind)
        clone = self.clone
        attributes = getattr(value, "__dict__", None)
        if attributes is not None:
            mine = copy.__dict__
            for name, part in attributes.items():
                mine[name] = clone(part)
        put = setattr if is_struct else object.__setattr__
        for name in _KINDS.slots_of(kind):
            part = getattr(value, name, _MISSING)
            if part is not _MISSING:
                put(copy, name, clone(part))
        return copy

    def _list(self, value: list[Any]) -> list[Any]:
        copy: list[Any] = []
        self.done[id(value)] = copy
        clone = self.clone
        copy.extend([clone(part) for part in value])
        return copy

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        copy: dict[Any, Any] = {}
        self.done[id(value)] = copy
        clone = self.clone
        for key, part in value.items():
            copy[clone(key)] = clone(part)
        return copy

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Also of a class with named fields; one whose parts are shared is shared itself."""
        parts = [self.clone(part) for part in value]
        copy = value
        if any(mine is not part for mine, part in zip(parts, value, strict=True)):
            make = getattr(type(value), "_make", tuple)
            copy = make(parts)
        self.done[id(value)] = copy
        return copy

    def _set(self, value: set[Any]) -> set[Any]:
        copy = {self.clone(part) for part in value}
        self.done[id(value)] = copy
        return copy

    def _deque(self, value: deque[Any]) -> deque[Any]:
        copy: deque[Any] = deque(maxlen=value.maxlen)
        self.done[id(value)] = copy
        copy.extend([self.clone(part) for part in value])
        return copy

    def _flat(self, value: Any) -> Any:
        copy = self.done[id(value)] = value[:]
        return copy

    def _method(self, value: types.MethodType) -> types.MethodType:
        copy = types.MethodType(self.clone(value.__func__), self.clone(value.__self__))
        self.done[id(value)] = copy
        return copy

    def _builtin(self, value: types.BuiltinMethodType) -> Any:
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return value
        return getattr(self.clone(owner), value.__name__)

    def _iterator(self, value: Any) -> Any:
        """At the same place of a copy of what it goes through."""
        _, (through,), *place = value.__reduce__()
        copy = self.done[id(value)] = iter(self.clone(through))
        if place:
            copy.__setstate__(place[0])
        return copy

    def _generator(self, value: types.GeneratorType[Any, Any, Any]) -> Any:
        if value.gi_frame is None:
            return value  # it is over
        raise CopyError(f"{value.__qualname__} cannot be copied")

    def _function(self, value: types.FunctionType) -> types.FunctionType:
        if value.__closure__ is None:
            return value
        cells = tuple(types.CellType() for _ in value.__closure__)
        copy = types.FunctionType(
            value.__code__, value.__globals__, value.__name__, value.__defaults__, cells
        )
        copy.__kwdefaults__ = value.__kwdefaults__
        self.done[id(value)] = copy
        for mine, cell in zip(cells, value.__closure__, strict=True):
            mine.cell_contents = self.clone(cell.cell_contents)
        return copy


_MISSING = object()
_PLAIN = (type(None), bool, int, float, range, str, bytes)
"""Shared kinds whose text says all; the others are tools, equal in all members."""
_CALLABLE = (types.FunctionType, types.MethodType, types.BuiltinMethodType)
_ITERATORS: tuple[type, ...] = (type(iter(())), type(iter([])))
_CLONERS: dict[type, Callable[[_Cloner, Any], Any]] = {
    list: _Cloner._list,
    dict: _Cloner._dict,
    tuple: _Cloner._tuple,
    set: _Cloner._set,
    deque: _Cloner._deque,
    bytearray: _Cloner._flat,
    array: _Cloner._flat,
    types.MethodType: _Cloner._method,
    types.BuiltinMethodType: _Cloner._builtin,
    types.GeneratorType: _Cloner._generator,
    **dict.fromkeys(_ITERATORS, _Cloner._iterator),
    types.FunctionType: _Cloner._function,
}


def clone(root: T) -> T:
    """A copy of a member that shares nothing with it that may change.

    Raises:
        CopyError: It is in the middle of something that cannot be copied.
    """
    copy: T = _Cloner().clone(root)
    return copy


class _Scribe:
    """Writes a graph down so that equal texts mean equal graphs."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.seen: dict[int, int] = {}

    def write(self, value: Any) -> None:
        """Add a value; one that was met before is written as its number."""
        kind = type(value)
        words = self.words
        if _KINDS.is_shared(kind):
            is_plain = kind in _PLAIN or issubclass(kind, (str, enum.Enum, msgspec.Struct))
            name = value.__qualname__ if isinstance(value, type) else kind.__name__
            words.append(repr(value) if is_plain else name)
            return
        number = self.seen.get(id(value))
        if number is not None:
            words.append(f"@{number}")
            return
        self.seen[id(value)] = len(self.seen)
        if kind is dict:
            words.append("{")
            for key, part in value.items():
                self.write(key)
                self.write(part)
            words.append("}")
        elif kind in (list, deque) or issubclass(kind, tuple):
            words.append("[")
            for part in value:
                self.write(part)
            words.append("]")
        elif kind is set:
            words.append(repr(sorted(map(repr, value))))
        elif kind in (bytearray, array):
            words.append(repr(value))
        elif kind in _CALLABLE:
            self._callable(value)
        elif kind is types.GeneratorType or kind in _ITERATORS:
            self._half_way(value, kind)
        else:
            self._instance(value, kind)

    def _callable(self, value: Any) -> None:
        """A function by its name and by what it holds on to."""
        if isinstance(value, types.FunctionType):
            self.words.append(value.__qualname__)
            for cell in value.__closure__ or ():
                self.write(cell.cell_contents)
            return
        owner = value.__self__
        self.words.append(getattr(value, "__func__", value).__qualname__)
        if not isinstance(owner, types.ModuleType):
            self.write(owner)

    def _half_way(self, value: Any, kind: type) -> None:
        """A generator or an iterator: what it knows and where it stands, unless it is over."""
        if kind in _ITERATORS:
            _, (through,), *place = value.__reduce__()
            self.words.append(kind.__name__)
            if place:
                self.words.append(str(place[0]))
                self.write(through)
            return
        self.words.append(value.__qualname__)
        frame = value.gi_frame
        if frame is not None:
            self.words.append(str(frame.f_lasti))
            self.write(frame.f_locals)
            self.write(value.gi_yieldfrom)

    def _instance(self, value: Any, kind: type) -> None:
        name = kind.__name__
        self.words.append(name)
        for attribute, part in getattr(value, "__dict__", {}).items():
            if (name, attribute) not in UNCOUNTED and not attribute.endswith(STORIES):
                self.words.append(attribute)
                self.write(part)
        for attribute in _KINDS.slots_of(kind):
            if (name, attribute) not in UNCOUNTED and not attribute.endswith(STORIES):
                self.write(getattr(value, attribute, None))


def digest(root: object, *beside: object) -> bytes:
    """What a member is, in ``DIGEST_BYTES`` bytes, and what else belongs to it.

    The order of dictionaries counts, because the core may iterate them; identity counts as far
    as one object is met twice.
    """
    scribe = _Scribe()
    scribe.write(root)
    for part in beside:
        scribe.write(part)
    text = "\x1f".join(scribe.words)
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
