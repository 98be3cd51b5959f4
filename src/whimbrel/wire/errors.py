"""Errors on the client protocol: codes, names, and our exceptions behind them.

Clients map errors by code; the class name and the text are for people. What they repeat: FN-22.
"""

from __future__ import annotations

from typing import Final

from whimbrel.errors import (
    AuthenticationError,
    GridError,
    IllegalMonitorStateError,
    IllegalStateError,
    IndeterminateError,
    OperationError,
    OverloadedError,
    PartitionLostError,
    ProtocolError,
    RetryableError,
    SerializationError,
    SplitBrainProtectionError,
    StaleSequenceError,
    StateForbidsError,
    UnsupportedError,
    UsageError,
)
from whimbrel.wire.custom_types import ErrorHolder
from whimbrel.wire.field_codec import value_codec
from whimbrel.wire.frame_io import FrameReader, FrameWriter
from whimbrel.wire.frames import RawMessage
from whimbrel.wire.protocol_table import ERROR_TYPE

AUTHENTICATION: Final = 3
CALLER_NOT_MEMBER: Final = 8
GENERIC: Final = 18
INSTANCE_NOT_ACTIVE: Final = 19
OVERLOAD: Final = 20
SERIALIZATION: Final = 21
ILLEGAL_ARGUMENT: Final = 23
ILLEGAL_MONITOR_STATE: Final = 26
ILLEGAL_STATE: Final = 27
MEMBER_LEFT: Final = 33
OPERATION_TIMEOUT: Final = 38
PARTITION_MIGRATING: Final = 39
SPLIT_BRAIN_PROTECTION: Final = 42
RETRYABLE: Final = 46
RETRYABLE_IO: Final = 47
SOCKET: Final = 50
STALE_SEQUENCE: Final = 51
TARGET_NOT_MEMBER: Final = 53
UNSUPPORTED_OPERATION: Final = 61
WRONG_TARGET: Final = 62
NO_DATA_MEMBER: Final = 67
MESSAGE_TOO_BIG: Final = 69
INDETERMINATE: Final = 80
NODE_ID_OUT_OF_RANGE: Final = 81
TARGET_NOT_REPLICA: Final = 82
CANNOT_REPLICATE: Final = 90

ALWAYS_RETRIED: Final = frozenset(
    {
        CALLER_NOT_MEMBER,
        INSTANCE_NOT_ACTIVE,
        MEMBER_LEFT,
        PARTITION_MIGRATING,
        RETRYABLE,
        RETRYABLE_IO,
        SOCKET,
        TARGET_NOT_MEMBER,
        WRONG_TARGET,
        TARGET_NOT_REPLICA,
        CANNOT_REPLICATE,
    }
)
"""Codes after which clients repeat any call: only to be sent when nothing has happened."""

_NAMES: tuple[tuple[str, str], ...] = (
    ("java.lang.", "1 ArrayIndexOutOfBoundsException 2 ArrayStoreException"),
    ("com.hazelcast.client.", "3 AuthenticationException"),
    ("javax.cache.", "4 CacheException"),
    ("javax.cache.integration.", "5 CacheLoaderException 7 CacheWriterException"),
    ("com.hazelcast.cache.", "6 CacheNotExistsException"),
    ("com.hazelcast.spi.exception.", "8 CallerNotMemberException"),
    ("java.util.concurrent.", "9 CancellationException"),
    ("java.lang.", "10 ClassCastException 11 ClassNotFoundException"),
    ("java.util.", "12 ConcurrentModificationException"),
    ("com.hazelcast.internal.cluster.impl.", "13 ConfigMismatchException"),
    ("com.hazelcast.spi.exception.", "14 DistributedObjectDestroyedException"),
    ("java.io.", "15 EOFException 22 IOException 36 NotSerializableException"),
    ("javax.cache.processor.", "16 EntryProcessorException"),
    ("java.util.concurrent.", "17 ExecutionException"),
    ("com.hazelcast.core.", "18 HazelcastException 19 HazelcastInstanceNotActiveException"),
    ("com.hazelcast.core.", "20 HazelcastOverloadException"),
    ("com.hazelcast.nio.serialization.", "21 HazelcastSerializationException"),
    ("java.lang.", "23 IllegalArgumentException 24 IllegalAccessException"),
    ("java.lang.", "25 IllegalAccessError 26 IllegalMonitorStateException"),
    ("java.lang.", "27 IllegalStateException 28 IllegalThreadStateException"),
    ("java.lang.", "29 IndexOutOfBoundsException 30 InterruptedException"),
    ("com.hazelcast.internal.util.", "31 AddressUtil$InvalidAddressException"),
    ("com.hazelcast.config.", "32 InvalidConfigurationException"),
    ("com.hazelcast.core.", "33 MemberLeftException"),
    ("java.lang.", "34 NegativeArraySizeException 37 NullPointerException"),
    ("java.util.", "35 NoSuchElementException"),
    ("com.hazelcast.core.", "38 OperationTimeoutException"),
    ("com.hazelcast.spi.exception.", "39 PartitionMigratingException"),
    ("com.hazelcast.query.", "40 QueryException"),
    ("com.hazelcast.map.", "41 QueryResultSizeExceededException"),
    ("com.hazelcast.splitbrainprotection.", "42 SplitBrainProtectionException"),
    ("com.hazelcast.map.", "43 ReachedMaxSizeException"),
    ("java.util.concurrent.", "44 RejectedExecutionException"),
    ("com.hazelcast.spi.exception.", "45 ResponseAlreadySentException"),
    ("com.hazelcast.spi.exception.", "46 RetryableHazelcastException 47 RetryableIOException"),
    ("java.lang.", "48 RuntimeException 49 SecurityException"),
    ("java.net.", "50 SocketException 59 URISyntaxException"),
    ("com.hazelcast.ringbuffer.", "51 StaleSequenceException"),
    ("com.hazelcast.spi.exception.", "52 TargetDisconnectedException"),
    ("com.hazelcast.spi.exception.", "53 TargetNotMemberException"),
    ("java.util.concurrent.", "54 TimeoutException"),
    ("com.hazelcast.topic.", "55 TopicOverloadException"),
    ("com.hazelcast.transaction.", "56 TransactionException 57 TransactionNotActiveException"),
    ("com.hazelcast.transaction.", "58 TransactionTimedOutException"),
    ("java.io.", "60 UTFDataFormatException"),
    ("java.lang.", "61 UnsupportedOperationException"),
    ("com.hazelcast.spi.exception.", "62 WrongTargetException"),
    ("javax.transaction.xa.", "63 XAException"),
    ("java.security.", "64 AccessControlException"),
    ("javax.security.auth.login.", "65 LoginException"),
    ("javax.security.auth.callback.", "66 UnsupportedCallbackException"),
    ("com.hazelcast.partition.", "67 NoDataMemberInClusterException"),
    ("com.hazelcast.replicatedmap.", "68 ReplicatedMapCantBeCreatedOnLiteMemberException"),
    ("com.hazelcast.client.impl.protocol.exception.", "69 MaxMessageSizeExceeded"),
    ("com.hazelcast.wan.", "70 WanQueueFullException"),
    ("java.lang.", "71 AssertionError 72 OutOfMemoryError 73 StackOverflowError"),
    ("com.hazelcast.memory.", "74 NativeOutOfMemoryError"),
    ("com.hazelcast.spi.exception.", "75 ServiceNotFoundException"),
    ("com.hazelcast.durableexecutor.", "76 StaleTaskIdException"),
    ("com.hazelcast.scheduledexecutor.", "77 DuplicateTaskException 78 StaleTaskException"),
    ("com.hazelcast.core.", "79 LocalMemberResetException"),
    ("com.hazelcast.core.", "80 IndeterminateOperationStateException"),
    ("com.hazelcast.flakeidgen.impl.", "81 NodeIdOutOfRangeException"),
    ("com.hazelcast.crdt.", "82 TargetNotReplicaException"),
    ("com.hazelcast.crdt.", "83 MutationDisallowedException"),
    ("com.hazelcast.core.", "84 ConsistencyLostException"),
    ("com.hazelcast.cp.internal.session.", "85 SessionExpiredException"),
    ("com.hazelcast.cp.internal.datastructures.exception.", "86 WaitKeyCancelledException"),
    ("com.hazelcast.cp.lock.exception.", "87 LockAcquireLimitReachedException"),
    ("com.hazelcast.cp.lock.exception.", "88 LockOwnershipLostException"),
    ("com.hazelcast.cp.exception.", "89 CPGroupDestroyedException 90 CannotReplicateException"),
    ("com.hazelcast.cp.exception.", "91 LeaderDemotedException"),
    ("com.hazelcast.cp.exception.", "92 StaleAppendRequestException 93 NotLeaderException"),
    ("com.hazelcast.internal.cluster.impl.", "94 VersionMismatchException"),
    ("java.lang.", "95 NoSuchMethodError 96 NoSuchMethodException"),
    ("java.lang.", "97 NoSuchFieldError 98 NoSuchFieldException 99 NoClassDefFoundError"),
)


def _class_names() -> dict[int, str]:
    table = {}
    for package, words in _NAMES:
        parts = words.split()
        for code, name in zip(parts[::2], parts[1::2], strict=True):
            table[int(code)] = package + name
    return table


CLASS_NAMES: dict[int, str] = _class_names()
"""Error code to the Java class that clients know it by."""

_BY_ERROR: tuple[tuple[type[GridError], int], ...] = (
    (RetryableError, RETRYABLE),
    (IndeterminateError, INDETERMINATE),
    (PartitionLostError, GENERIC),
    (OverloadedError, OVERLOAD),
    (SplitBrainProtectionError, SPLIT_BRAIN_PROTECTION),
    (UnsupportedError, UNSUPPORTED_OPERATION),
    (StateForbidsError, ILLEGAL_STATE),
    (IllegalStateError, ILLEGAL_STATE),
    (IllegalMonitorStateError, ILLEGAL_MONITOR_STATE),
    (StaleSequenceError, STALE_SEQUENCE),
    (UsageError, ILLEGAL_ARGUMENT),
    (ProtocolError, ILLEGAL_ARGUMENT),
    (SerializationError, SERIALIZATION),
    (AuthenticationError, AUTHENTICATION),
)
"""First match wins; everything else is GENERIC."""

_BY_CODE: dict[int, type[GridError]] = {
    **dict.fromkeys(ALWAYS_RETRIED, RetryableError),
    INDETERMINATE: IndeterminateError,
    OVERLOAD: OverloadedError,
    SPLIT_BRAIN_PROTECTION: SplitBrainProtectionError,
    UNSUPPORTED_OPERATION: UnsupportedError,
    SERIALIZATION: SerializationError,
    AUTHENTICATION: AuthenticationError,
    ILLEGAL_ARGUMENT: UsageError,
    ILLEGAL_MONITOR_STATE: IllegalMonitorStateError,
    STALE_SEQUENCE: StaleSequenceError,
    ILLEGAL_STATE: UsageError,
}

_write_holders, _read_holders = value_codec("list_ErrorHolder")


def code_of(error: BaseException) -> int:
    """The code that tells a client about an exception of ours."""
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return GENERIC


def encode_error(correlation: int, code: int, text: str) -> bytes:
    """The error response to the call ``correlation``.

    Args:
        correlation: The call's number.
        code: One of the codes of this module.
        text: One sentence for people: what happened and what can be done. Never user data.
    """
    head = ERROR_TYPE.to_bytes(4, "little") + correlation.to_bytes(8, "little", signed=True)
    out = FrameWriter(head + b"\0", 0)
    name = CLASS_NAMES.get(code, CLASS_NAMES[GENERIC])
    _write_holders(out, [ErrorHolder(code, name, text, [])])
    return out.finish()


def encode_exception(correlation: int, error: BaseException) -> bytes:
    """The error response for an exception: code by its class, text from its message."""
    return encode_error(correlation, code_of(error), str(error))


def decode_errors(message: RawMessage) -> list[ErrorHolder]:
    """The error and its causes in an error response.

    Raises:
        ProtocolError: The message is no error response.
    """
    if message[4] != ERROR_TYPE:
        raise ProtocolError("the message is no error response")
    holders: list[ErrorHolder] = _read_holders(FrameReader(message[0], message[3]))
    if not holders:
        raise ProtocolError("an error response without an error")
    return holders


def exception_of(holders: list[ErrorHolder]) -> GridError:
    """Our exception for an error that a member told; its text names code and class."""
    first = holders[0]
    name = first.class_name.rpartition(".")[2]
    text = f"{first.message or name} (error {first.error_code}, {name})"
    return _BY_CODE.get(first.error_code, OperationError)(text)
