"""Whatever happens to some fragments, what is loaded is what a dictionary says.

Of a log whose end is torn off it is what the dictionary said before that block.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.log_writer import LogWriter, content, entries, load, put, state

from whimbrel.core.persistence.format import Stream
from whimbrel.structures.map.store import MapStore

CHANGES, IMAGES = Stream.CHANGES, Stream.IMAGES
PARTITIONS = 3
KEYS = 4
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("put", "put", "put", "remove", "clear", "drop", "image", "image", "piece", "piece",
             "roll changes", "roll images", "state")
        ),
        st.integers(0, PARTITIONS - 1),
        st.integers(0, KEYS - 1),
        st.booleans(),
    ),
    max_size=60,
)  # fmt: skip
Contents = dict[int, tuple[dict[str, str], int]]
"""By partition, what is held and our own counter."""


class Twin:
    """The same steps on stores and on a log."""

    def __init__(self, *, flushes_always: bool) -> None:
        self.writer = LogWriter()
        self.stores: dict[int, MapStore] = {}
        self.values: dict[int, int] = {}
        self.images: dict[int, tuple[int, int, Any]] = {}
        """By partition, the image that is being made: number, floor, cursor."""
        self.seen: dict[int, Contents] = {1: {}}
        """What was held before the block of that number."""
        self._copies: dict[int, None] = {}
        """Partitions whose fragment began with a content of which the log has no image yet."""
        self._flushes_always = flushes_always
        self._image = 0

    def step(self, what: str, pid: int, key: int, is_flushed: bool) -> None:
        """Take one step."""
        writer = self.writer
        if what.startswith("roll"):
            writer.roll(CHANGES if what == "roll changes" else IMAGES)
        elif pid not in self.stores:
            self.stores[pid], self.values[pid] = MapStore(), 0
            if key < KEYS // 2:
                writer.held(pid)
            else:
                put(self.stores[pid], "copied", "content")
                self._copies[pid] = None
                self._begin_image(pid)
        else:
            self._change(what, pid, key)
        if is_flushed or self._flushes_always:
            self.seen[writer.flush(CHANGES)] = self.contents()

    def _change(self, what: str, pid: int, key: int) -> None:
        store, writer = self.stores[pid], self.writer
        if what == "drop":
            writer.dropped(pid)
            del self.stores[pid]
            self.images.pop(pid, None)
            self._copies.pop(pid, None)
        elif what == "state":
            self.values[pid] += 10
            writer.state(pid, state(self.values[pid]))
        elif what == "image" and pid not in self.images:
            self._begin_image(pid)
        elif what in ("image", "piece"):
            self._piece(pid)
        else:
            self.values[pid] += 1
            if what == "put":
                operation = put(store, f"key {key}", f"value {self.values[pid]}")
            elif what == "remove":
                operation = store.remove(f"key {key}".encode())[1]
            else:
                operation = store.clear()
            writer.operation(pid, self.values[pid], operation)

    def _begin_image(self, pid: int) -> None:
        self._image += 1
        floor = self.writer.next_block[CHANGES]
        self.images[pid] = self._image, floor, self.stores[pid].open_cursor()
        self.writer.state(pid, state(self.values[pid]))

    def _piece(self, pid: int) -> None:
        if pid not in self.images:
            return
        image, floor, cursor = self.images[pid]
        chunk, _, is_last = self.stores[pid].export(cursor, 1)
        self.writer.chunk(pid, image, chunk)
        if is_last:
            self.writer.image_end(pid, image)
            self.writer.imaged(pid, image, floor)
            del self.images[pid]
            self._copies.pop(pid, None)

    def contents(self) -> Contents:
        """What is held now, as far as the log has it."""
        return {
            pid: (entries(store), self.values[pid])
            for pid, store in self.stores.items()
            if pid not in self._copies
        }


@settings(max_examples=300, deadline=None)
@given(STEPS, st.booleans())
def test_what_is_loaded_is_what_was_held(
    steps: list[tuple[str, int, int, bool]], flushes_always: bool
) -> None:
    """S1, S3: content and counters of every fragment, whatever images and segments there are."""
    twin = Twin(flushes_always=flushes_always)
    for step in steps:
        twin.step(*step)
    log = twin.writer.log()
    loading = load(twin.writer.files, log)
    assert _loaded(loading) == twin.contents()
    assert _loaded(load(twin.writer.files, log)) == twin.contents()


@settings(max_examples=200, deadline=None)
@given(STEPS, st.data())
def test_what_is_torn_off_leaves_what_was_before(
    steps: list[tuple[str, int, int, bool]], data: st.DataObject
) -> None:
    """S2: the newest segment of changes ends anywhere: what was held before that block, exactly."""
    twin = Twin(flushes_always=True)
    for step in steps:
        twin.step(*step)
    log, writer = twin.writer.log(), twin.writer
    file = writer.newest(CHANGES)
    whole = writer.files[file]
    length = data.draw(st.integers(0, len(whole)))
    loading = load({**writer.files, file: whole[:length]}, log)
    block = loading.next_block[CHANGES]
    assert _loaded(loading) == twin.seen[max(one for one in twin.seen if one <= block)]


def _loaded(loading: Any) -> Contents:
    found = content(loading)
    return {one.partition_id: (found[one.partition_id], one.value) for one in loading.fragments}
