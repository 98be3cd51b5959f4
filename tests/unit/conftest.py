"""Fixtures that more than one file of unit tests uses."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit import keys
from tests.unit.migration_net import BOTH_SIZES, SETTINGS, Net


@pytest.fixture(params=BOTH_SIZES)
def both_sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plays a test in one piece and in several: the rule is the same in both."""
    usual = msgspec.structs.replace(SETTINGS, partition_count=request.param)
    monkeypatch.setattr(Net, "usual_settings", usual)


@pytest.fixture(params=["plain", "encrypted"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plays a test with files as they are and with encrypted ones: what is told is the same."""
    monkeypatch.setattr(keys, "usual", (keys.FIRST,) if request.param == "encrypted" else ())
