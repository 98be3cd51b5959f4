"""Goal: the undisturbed course of everything the migration room does."""

from __future__ import annotations

import pytest
from tests.unit.migration_net import Net

pytestmark = pytest.mark.usefixtures("both_sizes")


def test_first_arrangement_join_and_crash() -> None:
    """One member, then two, then three, then one dies: always settled, whole and equal."""
    net = Net()
    net.add("a")
    net.settle()
    net.fill()
    net.check()
    net.add("b")
    net.settle()
    net.check()
    net.add("c")
    net.settle()
    net.check()
    net.crash("b")
    net.settle()
    net.check()
    net.crash("a")
    net.settle()
    net.check()
