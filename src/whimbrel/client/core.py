"""What a client knows, without any input or output: one connection's state, and the cluster's.

``Channel`` turns calls into bytes and received bytes into answers and events; ``ClusterView``
keeps the member list and who owns which partition. ``bulk`` drives both over sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mmh3
import msgspec

from whimbrel.core.ids import Address
from whimbrel.core.partition.hashing import HASH_SEED, partition_hash, partition_of
from whimbrel.errors import AuthenticationError, GridError, ProtocolError
from whimbrel.serialization.data import DATA_HEADER_BYTES, HASH_BYTES, NO_HASH
from whimbrel.wire.codec import decode_event, decode_response, encode_request
from whimbrel.wire.custom_types import ClientMember
from whimbrel.wire.errors import decode_errors, exception_of
from whimbrel.wire.frames import ANSWERS, AUTHENTICATED, EVENT, PRELUDE, MessageSplitter, RawMessage
from whimbrel.wire.protocol_table import ERROR_TYPE

AUTHENTICATED_STATUS = 0
CREDENTIALS_STATUS = 1
SERIALIZATION_VERSION = 1
CLIENT_TYPE = "WMB"
CLIENT_VERSION = "5.7.0"
_INT_MIN = -(1 << 31)
FIRST_POINTER: list[tuple[int, int]] = [(0x7FFF_FFFF, -1)]
"""Iteration pointer with which a walk over a partition begins."""


class Answer(msgspec.Struct, frozen=True):
    """The end of a call: fields, or the error the member told."""

    correlation: int
    fields: dict[str, Any]
    error: GridError | None = None


class Event(msgspec.Struct, frozen=True):
    """Something that happened; ``correlation`` is that of the registration."""

    correlation: int
    name: str
    fields: dict[str, Any]


class Channel:
    """One connection to a member, as far as bytes are concerned."""

    def __init__(self, cluster_name: str, client_id: bytes, client_name: str) -> None:
        self._cluster_name = cluster_name
        self._client_id = client_id
        self._client_name = client_name
        self._splitter = MessageSplitter(AUTHENTICATED, ANSWERS)
        self._correlation = 0

    def hello(self) -> tuple[int, bytes]:
        """Correlation and bytes of the prelude and the authentication that open a connection."""
        correlation, request = self.request(
            "Client.authentication",
            -1,
            cluster_name=self._cluster_name,
            uuid=self._client_id,
            client_type=CLIENT_TYPE,
            serialization_version=SERIALIZATION_VERSION,
            client_version=CLIENT_VERSION,
            client_name=self._client_name,
            labels=[],
            routing_mode=1,
        )
        return correlation, PRELUDE + request

    def request(self, message: str, partition: int, /, **fields: Any) -> tuple[int, bytes]:
        """Correlation and bytes of a call; raises ProtocolError when fields do not fit."""
        self._correlation += 1
        return self._correlation, encode_request(message, self._correlation, partition, 0, **fields)

    def receive(self, data: bytes) -> list[Answer | Event]:
        """What the received bytes complete, in order.

        Raises:
            ProtocolError: The member does not follow the protocol; the connection is useless.
        """
        return [_meaning(message) for message in self._splitter.feed(data)]

    def check_welcome(self, answer: Answer, address: Address) -> dict[str, Any]:
        """The fields of an authentication that succeeded.

        Raises:
            AuthenticationError: The member refused; the text names the cluster and the address.
        """
        if answer.error is not None:
            raise AuthenticationError(f"{address} refused to talk: {answer.error}")
        status = answer.fields["status"]
        if status == CREDENTIALS_STATUS:
            raise AuthenticationError(
                f"the member at {address} does not belong to a cluster named "
                f"{self._cluster_name!r} that needs no credentials"
            )
        if status != AUTHENTICATED_STATUS:
            raise AuthenticationError(f"{address} refused the connection with status {status}")
        return answer.fields


def _meaning(message: RawMessage) -> Answer | Event:
    correlation = message[5]
    if message[7] & EVENT:
        _, event, fields = decode_event(message)
        return Event(correlation, event, fields)
    if message[4] == ERROR_TYPE:
        return Answer(correlation, {}, exception_of(decode_errors(message)))
    return Answer(correlation, decode_response(message)[1])


class ClusterView:
    """Members and owners of partitions, as the cluster last told."""

    def __init__(self) -> None:
        self.members: dict[bytes, ClientMember] = {}
        """By uuid, oldest first."""
        self.owners: list[bytes | None] = []
        """Uuid of the owner per partition; None while nobody owns it."""
        self._member_version = -1
        self._partition_version = -1

    def registered_again(self) -> None:
        """Another member tells from now on: its version numbers start over."""
        self._member_version = self._partition_version = -1

    def started(self, partition_count: int) -> None:
        """Learn the number of partitions, which never changes while a cluster lives.

        Raises:
            ProtocolError: It is not what it was, or not positive.
        """
        if partition_count < 1:
            raise ProtocolError(f"the cluster claims to have {partition_count} partitions")
        if not self.owners:
            self.owners = [None] * partition_count
        elif len(self.owners) != partition_count:
            raise ProtocolError(
                f"the cluster had {len(self.owners)} partitions and now claims {partition_count}"
            )

    def apply(self, event: Event) -> bool:
        """Take in an event of the view listener; whether it changed anything."""
        version = event.fields.get("version", -1)
        if event.name == "members_view" and version > self._member_version:
            self._member_version = version
            self.members = {member.uuid: member for member in event.fields["member_infos"]}
            return True
        if event.name == "partitions_view" and version > self._partition_version:
            self._partition_version = version
            for uuid, partitions in event.fields["partitions"]:
                for partition in partitions:
                    if 0 <= partition < len(self.owners):
                        self.owners[partition] = uuid
            return True
        return False

    def owner_of(self, partition: int) -> bytes | None:
        """The owner of a partition that is on the member list; None for no partition."""
        if not 0 <= partition < len(self.owners):
            return None
        owner = self.owners[partition]
        return owner if owner in self.members else None

    def address_of(self, uuid: bytes) -> Address | None:
        """Where clients reach a member; None when it is not on the list."""
        member = self.members.get(uuid)
        return None if member is None else member.address

    def partition_of(self, key: bytes) -> int:
        """The partition of a key given as Data."""
        return partition_of(partition_hash(key), len(self.owners))

    def partitions_of(self, keys: Sequence[bytes]) -> list[int]:
        """The partition of each key; the same numbers as ``partition_of``, for many keys."""
        count, hash_of, at = len(self.owners), mmh3.hash, DATA_HEADER_BYTES
        found = []
        for key in keys:
            if key[:HASH_BYTES] == NO_HASH and len(key) >= at:
                code = hash_of(key[at:], HASH_SEED)
                found.append(abs(code) % count if code != _INT_MIN else 0)
            else:
                found.append(int(partition_of(partition_hash(key), count)))
        return found
