"""Heartbeats are on time while data move, between real processes; the members' own figures."""

from __future__ import annotations

from whimbrel.bench import heartbeats

MIB = 192
SLACK_S = 1.0
"""A tenth of the time-out: this machine does everything at once."""


def test_heartbeats_are_on_time_while_data_move() -> None:
    """GCM-42, M-rules: a join and a leave move half of 192 MiB twice, in chunks between which
    heartbeats are sent; no member is ever late by a tenth of the time-out.
    """
    figures = heartbeats.run(MIB)
    moved = figures["bytes_moved"]
    assert isinstance(moved, int)
    assert moved > MIB << 19, figures
    for part in ("after_join", "after_leave"):
        members = figures[part]
        assert isinstance(members, dict)
        assert len(members) >= 3
        for values in members.values():
            gap_s = values["heartbeat_gap_longest_seconds"]
            assert heartbeats.INTERVAL_S / 2 < gap_s < heartbeats.INTERVAL_S + SLACK_S, figures
            assert 0 < values["loop_step_longest_seconds"] < SLACK_S, figures
