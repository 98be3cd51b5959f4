"""Key hash, partition index and table stamp against the published and derived vectors."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from whimbrel.core.partition.hashing import (
    calculate_stamp,
    partition_hash,
    partition_of,
    stamp_hash,
)
from whimbrel.errors import SerializationError, UsageError

CASES = json.loads((Path(__file__).parents[1] / "data" / "planner-cases.json").read_text())


def group(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = CASES["groups"][name]["cases"]
    return cases


@pytest.mark.parametrize("case", group("key_hash_raw") + group("key_hash_whole_keys"))
def test_key_hash_vectors(case: dict[str, Any]) -> None:
    """Goal: keys go where official clients send them. Method: payload behind a header with no
    stored hash; published hashes and ids for 271 partitions.
    """
    data = struct.pack(">iI", 0, 0xFFFFFFF5) + bytes.fromhex(case["payload_hex"])
    assert partition_hash(data) == case["hash"]
    assert partition_hash(memoryview(data)) == case["hash"]
    assert partition_of(case["hash"], 271) == case["partition_id_of_271"]


def test_stored_hash_wins() -> None:
    """Goal: partition-aware keys go to the partition of their partition key. Method: headers with
    a hash stored, positive and negative.
    """
    for stored in (1, -1, 2**31 - 1, -(2**31)):
        assert partition_hash(struct.pack(">iI", stored, 0) + b"anything") == stored


@pytest.mark.parametrize("size", [0, 1, 7])
def test_truncated_key_is_refused(size: int) -> None:
    """Goal: a key without a whole header is a clear error. Method: shorter data."""
    with pytest.raises(SerializationError, match="at least 8 bytes"):
        partition_hash(bytes(size))


@pytest.mark.parametrize("case", group("hash_to_index"))
def test_hash_to_index_vectors(case: dict[str, Any]) -> None:
    """Goal: absolute value modulo count, the smallest number to 0, no partitions an error."""
    if "error" in case:
        with pytest.raises(UsageError, match="positive"):
            partition_of(case["hash"], case["count"])
    else:
        assert partition_of(case["hash"], case["count"]) == case["index"]


@pytest.mark.parametrize("case", group("stamp_hash_raw"))
def test_stamp_hash_vectors(case: dict[str, Any]) -> None:
    """Goal: the early 64-bit variant with a sign-extended tail (PIM-16). Method: raw inputs."""
    result = stamp_hash(bytes.fromhex(case["input_hex"]))
    assert result == case["hash"]
    assert result != case.get("wrong_hash_if_tail_bytes_are_masked")


@pytest.mark.parametrize("case", [c for c in group("stamp_vectors") if c["partition_count"]])
def test_stamp_vectors(case: dict[str, Any]) -> None:
    """Goal: stamps of whole tables (PIM-16). Method: constant versions, and version = id."""
    count = case["partition_count"]
    constant = case.get("constant_version")
    versions = list(range(count)) if constant is None else [constant] * count
    assert calculate_stamp(versions) == case["stamp"]


def test_stamp_depends_on_each_version_and_its_place() -> None:
    """Goal: any single change, and any exchange, shows (PIM-16). Method: 40 versions, all of them
    changed in turn, neighbours exchanged.
    """
    versions = list(range(100, 140))
    stamps = [calculate_stamp(versions)]
    for pid in range(40):
        changed = list(versions)
        changed[pid] += 1
        stamps.append(calculate_stamp(changed))
    for pid in range(39):
        swapped = list(versions)
        swapped[pid], swapped[pid + 1] = swapped[pid + 1], swapped[pid]
        stamps.append(calculate_stamp(swapped))
    assert len(set(stamps)) == len(stamps)
