"""Two parts of a structure of numbered items that live on after a split (core.merging.past)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., None])


def histories(history: st.SearchStrategy[list[int]]) -> Callable[[F], F]:
    """What clients did before a split and in both parts, and the lineages of both primaries."""
    lineages = st.sampled_from([(1, 3), (2, 1), (2, 3)])
    drawn: Any = given(before=history, here=history, there=history, lineages=lineages)
    found: Any = settings(max_examples=150, deadline=None, derandomize=True)
    return lambda test: found(drawn(test))


def parted(
    store: T,
    copied: Callable[[T], T],
    live: Callable[[T, list[int], str, int], list[bytes]],
    past: tuple[list[int], list[int], list[int]],
    lineages: tuple[int, int],
) -> tuple[T, list[bytes]]:
    """Let a store and a copy live (before the split, in its own part, in the copy's); returns the
    copy and what was put into it since.
    """
    before, here, there = past
    live(store, before, "both", 1)
    small = copied(store)
    live(store, here, "big", lineages[0])
    return small, live(small, there, "small", lineages[1])
