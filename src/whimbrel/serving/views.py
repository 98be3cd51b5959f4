"""What clients are told about the cluster: the member list and who owns which partition.

A client registers once, on one of its connections, and gets both views at once and after every
change (FN-22). Partition views are coalesced: a rebalancing commits many migrations a second, and a
client that is late is merely forwarded.
"""

from __future__ import annotations

import re
import struct

from whimbrel.core.ids import MemberId
from whimbrel.core.model import MemberInfo
from whimbrel.serialization.uuids import uuid_bytes
from whimbrel.serving.hub import Hub
from whimbrel.serving.session import Connection
from whimbrel.wire.codec import encode_event, encode_response
from whimbrel.wire.custom_types import ClientMember, MemberVersion

VIEW_INTERVAL_US = 100_000
"""Least time between two partition views."""
VIEW_INTERVAL_PER_PARTITION_US = 20
"""Added for each partition: a view of 20,011 partitions has 80 KB."""

ZONE_ATTRIBUTE = "hazelcast.partition.group.zone"
HOST_ATTRIBUTE = "hazelcast.partition.group.host"
"""Names under which clients know the places of members."""

_REGISTER = "Client.addClusterViewListener"
_NUMBER = re.compile("[0-9]{1,2}")
"""A part of a version; clients know each as one byte."""
_CORRELATION = struct.Struct("<q")
_CORRELATION_AT = 10
"""Offset of the correlation id in a message: behind the frame header and the type."""


def with_correlation(message: bytes, correlation: int) -> bytes:
    """The same message for another registration."""
    head, tail = message[:_CORRELATION_AT], message[_CORRELATION_AT + 8 :]
    return head + _CORRELATION.pack(correlation) + tail


def client_member(info: MemberInfo) -> ClientMember:
    """A member of our list as clients know it."""
    parts = info.version.split(".")[:3]
    numbers = [int(part) if _NUMBER.fullmatch(part) else 0 for part in parts]
    version = MemberVersion(*[*numbers, 0, 0, 0][:3])
    places = {ZONE_ATTRIBUTE: info.zone, HOST_ATTRIBUTE: info.host}
    attributes = {name: value for name, value in places.items() if value}
    return ClientMember(info.address, uuid_bytes(info.id), attributes, info.lite, version, {})


class Views:
    """The view listeners of one member's clients."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.listeners: dict[Connection, int] = {}
        """With the correlation ids of their registrations."""
        self._members_view = b""
        self._members_version = -1
        self._told_version = -1
        self._partitions_view = b""
        self._partitions_version = 0
        self.table_dirty = True
        self._due_us = 0

    def register(self, connection: Connection, correlation: int) -> None:
        """Answer the registration and send both views."""
        self.listeners[connection] = correlation
        hub = self._hub
        hub.deliver(connection, encode_response(_REGISTER, correlation))
        hub.deliver(connection, with_correlation(self._members(), correlation))
        if self.table_dirty:
            self._push_partitions(but=connection)
        if self._partitions_view:
            hub.deliver(connection, with_correlation(self._partitions_view, correlation))

    def drop(self, connection: Connection) -> None:
        """The connection is gone."""
        self.listeners.pop(connection, None)

    def members_changed(self) -> None:
        """A new member list is installed: tell it at once.

        Clients end their connections to members that are gone, so they hear first where what
        those members served is now.
        """
        version = self._hub.ctx.members.version
        if version != self._told_version:
            if self.table_dirty and self.listeners:
                self._push_partitions(but=None)
            self._told_version = version
            self._push(self._members(), but=None)

    def table_changed(self) -> None:
        """Rows changed; ``flush`` tells it when it is time."""
        self.table_dirty = True

    def flush(self) -> None:
        """Send the partition view when it changed and the last one is long enough ago."""
        if self.table_dirty and self.listeners and self._hub.ctx.now_us >= self._due_us:
            self._push_partitions(but=None)

    def _push(self, view: bytes, but: Connection | None) -> None:
        for connection, correlation in self.listeners.items():
            if connection is not but:
                self._hub.deliver(connection, with_correlation(view, correlation))

    def _push_partitions(self, but: Connection | None) -> None:
        ctx = self._hub.ctx
        count = ctx.settings.partition_count
        self.table_dirty = False
        self._due_us = ctx.now_us + VIEW_INTERVAL_US + VIEW_INTERVAL_PER_PARTITION_US * count
        owned: dict[MemberId, list[int]] = {}
        for pid, row in enumerate(self._hub.table.rows):
            if row[0] is not None:
                owned.setdefault(row[0], []).append(pid)
        if not owned:
            return
        self._partitions_version += 1
        self._partitions_view = encode_event(
            _REGISTER,
            "partitions_view",
            0,
            version=self._partitions_version,
            partitions=list(owned.items()),
        )
        self._push(self._partitions_view, but)

    def _members(self) -> bytes:
        members = self._hub.ctx.members
        if members.version != self._members_version:
            self._members_version = members.version
            self._members_view = encode_event(
                _REGISTER,
                "members_view",
                0,
                version=members.version,
                member_infos=[client_member(info) for info in members.members],
            )
        return self._members_view
