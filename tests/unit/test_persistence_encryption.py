"""Encrypted files (0021): what stands in them, who can read them, and how keys come and go."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import random
from zlib import crc32

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.unit.keys import CLUSTER_ID, FIRST, SECOND, THIRD, encryption_with
from tests.unit.log_writer import Files, LogWriter, load, put
from tests.unit.persistence_rig import MAP, Rig, expected

from whimbrel.core.ids import Namespace
from whimbrel.core.persistence.encryption import (
    PLAIN,
    Encryption,
    KeyProblemError,
    PlainFiles,
    cluster_hash,
    key_id_of,
)
from whimbrel.core.persistence.format import (
    BLOCK_HEAD_BYTES,
    Cipher,
    DamageError,
    Header,
    KeyUse,
    Stream,
    checksum_of,
    decode_header,
    encode_block,
    encode_header,
    encrypt_body,
    name_record,
)
from whimbrel.core.persistence.metadata import CLUSTER_FILE, LogFiles
from whimbrel.core.persistence.segments import SegmentInfo
from whimbrel.errors import InvariantViolation, OverloadedError
from whimbrel.storage.encryption import AesCipher, AesKey
from whimbrel.structures.map.store import MapStore

LOG_ID = b"a log's 16 bytes"
SALT = bytes(range(32))
USE = KeyUse(FIRST.id, cluster_hash(CLUSTER_ID), SALT)
HEADER = Header(Stream.CHANGES, 1, 1, LOG_ID, USE)
BOTH_POLICIES = ("FULL_RECOVERY_ONLY", "PARTIAL_RECOVERY_MOST_RECENT")
CHANGES_1, CHANGES_2 = "log/changes-00000001.seg", "log/changes-00000002.seg"


# -- the bytes ----------------------------------------------------------------------------


def derived(secret: bytes, salt: bytes, purpose: bytes) -> bytes:
    """HKDF of RFC 5869 with SHA-256, for 32 bytes, from its definition."""
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    return hmac.new(extracted, purpose + b"\x01", hashlib.sha256).digest()


def test_golden_segment() -> None:
    """The bytes that docs/files.md describes, made from the definitions of RFC 5869 and of GCM."""
    header = encode_header(*HEADER)
    assert header[:40].hex() == (
        "5748494d42534547" "0200" "01" "01" "01000000" "0100000000000000"
        "61206c6f672773203136206279746573"
    )  # fmt: skip
    cluster = hashlib.blake2b(b"home", digest_size=16).digest()
    named = hashlib.blake2b(bytes([1]) * 32, digest_size=8, person=b"whimbrel key id").digest()
    assert header[40:96] == named + cluster + SALT
    assert header[96:] == crc32(header[:96]).to_bytes(4, "little")
    assert decode_header(header) == HEADER
    cipher = encryption_with(FIRST).cipher_of(HEADER)
    assert cipher is not None
    body = encrypt_body(cipher, 258, 1_700_000_000_000, 1, b"records", unsynced=2)
    key = derived(bytes([1]) * 32, SALT, b"whimbrel segment " + header)
    facts = bytes.fromhex("000000000102000002010000000000000068e5cf8b010000")
    nonce = bytes.fromhex("0201" + "00" * 10)
    assert body == AESGCM(key).encrypt(nonce, b"records", facts)
    assert len(body) == len(b"records") + 16
    name = name_record(7, Namespace("map/flights"))
    body = encrypt_body(cipher, 1, 1_700_000_000_000, 1, name, unsynced=0)
    block = encode_block(checksum_of(header), 1, 1_700_000_000_000, 1, body) + body
    assert block.hex() == (
        "57424c4b4031eed62f0000000100000001000000000000000068e5cf8b010000"
        "e7f5bb71d37f00fcd220eb8637edcb633c861ddd7e31f07f0c966b92a7d72155"
        "0ffa595f750636d6e0785552ebe5fe"
    )


def test_golden_file() -> None:
    """As docs/files.md describes files that are encrypted as a whole."""
    chance = bytes(range(32))
    data = Encryption([FIRST], chance).encrypt_file("cluster.meta", b"what the cluster is")
    salt = hashlib.blake2b(chance + (1).to_bytes(8, "little"), digest_size=32).digest()
    head = b"WHIMBENC" + bytes.fromhex("01000100") + FIRST.id + salt
    head += (len(b"what the cluster is") + 16).to_bytes(8, "little")
    key = derived(bytes([1]) * 32, salt, b"whimbrel file cluster.meta")
    body = AESGCM(key).encrypt(bytes(12), b"what the cluster is", head)
    assert data == head + crc32(head + body).to_bytes(4, "little") + body


@pytest.mark.parametrize("data", [b"", b"a few bytes", b"content" * 1_000])
def test_a_whole_file_comes_back(data: bytes) -> None:
    """With each key that was given; one of another kind is not taken for it."""
    made = encryption_with(SECOND).encrypt_file("manifest", data)
    assert data not in made or not data
    reader = encryption_with(FIRST, SECOND)
    assert reader.decrypt_file("manifest", "a/manifest", made) == data
    with pytest.raises(DamageError, match="was not written by who has the key"):
        reader.decrypt_file("history", "a/manifest", made)


def test_a_whole_file_that_was_changed_is_damaged() -> None:
    """S4: at every byte; with its checksum made right, too."""
    made = encryption_with(FIRST).encrypt_file("manifest", b"text")
    reader = encryption_with(FIRST, plain="read")
    for at in range(len(made)):
        changed = bytearray(made)
        changed[at] ^= 1
        if at < 8:  # it is another file then, which nobody would take for a manifest
            assert reader.decrypt_file("manifest", "m", bytes(changed)) == changed
            continue
        with pytest.raises(DamageError):
            reader.decrypt_file("manifest", "m", bytes(changed))
        changed[60:64] = crc32(changed[64:], crc32(changed[:60])).to_bytes(4, "little")
        if bytes(changed) == made:
            continue
        with pytest.raises((DamageError, KeyProblemError)):
            reader.decrypt_file("manifest", "m", bytes(changed))
    for length in range(8, len(made)):
        with pytest.raises(DamageError):
            reader.decrypt_file("manifest", "m", made[:length])


def test_a_key_is_never_shown() -> None:
    """What is printed of it is a hash."""
    assert repr(FIRST) == f"AesKey({FIRST.id.hex()})"
    assert (bytes([1]) * 32).hex() not in repr(FIRST) and FIRST.id != SECOND.id


# -- what was moved or replayed -------------------------------------------------------------


def history(encryption: Encryption) -> tuple[LogWriter, MapStore]:
    """Two closed segments with two changes each, and one that is open."""
    writer, store = LogWriter(encryption=encryption), MapStore()
    writer.held(3)
    for number in range(1, 6):
        writer.operation(3, number, put(store, f"key {number}", f"value {number}"))
        writer.flush(Stream.CHANGES)
        if number in (2, 4):
            writer.roll(Stream.CHANGES)
    return writer, store


def forged(file: bytes, at: int, body: bytes, **changes: int) -> bytes:
    """The block there with this body and, in its head, these fields; its checksum is right."""
    fields = {"flags": 12, "number": 16, "wall_ms": 24}
    head = bytearray(file[at : at + BLOCK_HEAD_BYTES])
    head[8:12] = len(body).to_bytes(4, "little")
    for name, value in changes.items():
        size = 4 if name == "flags" else 8
        head[fields[name] : fields[name] + size] = value.to_bytes(size, "little")
    head[4:8] = crc32(body, crc32(head[8:], checksum_of(file))).to_bytes(4, "little")
    return bytes(head) + body


def damaged(files: Files, writer: LogWriter, encryption: Encryption) -> DamageError:
    """What loading these files tells; the first one counts to its end."""
    log = writer.log()
    first = msgspec.structs.replace(log.segments[0], end=len(files[CHANGES_1]))
    with pytest.raises(DamageError) as found:
        load(files, LogFiles(log.log_id, (first, *log.segments[1:])), encryption=encryption)
    return found.value


def test_what_somebody_without_the_key_puts_in_a_blocks_place_is_told() -> None:
    """Number, time, flags and segment are bound: a block that stood elsewhere, or an earlier one
    of the same file, is not taken, though its checksum is right.
    """
    encryption = encryption_with(FIRST)
    writer, _ = history(encryption)
    one, two = writer.files[CHANGES_1], writer.files[CHANGES_2]
    first, second = writer.offsets[CHANGES_1][-2:]
    last = one[second + BLOCK_HEAD_BYTES :]
    before = one[first + BLOCK_HEAD_BYTES : second]
    number = int.from_bytes(one[second + 16 : second + 24], "little")
    elsewhere = two[writer.offsets[CHANGES_2][-1] + BLOCK_HEAD_BYTES :]
    for body, changes in (
        (before, {}),
        (elsewhere, {}),
        (last, {"wall_ms": 1}),
        (last, {"flags": 1}),
        (last, {"flags": 1 << 8}),
        (last[:-1] + bytes([last[-1] ^ 1]), {}),
        (b"", {}),
        (b"records of my own" * 3, {}),
    ):
        block = forged(one, second, body, number=number, **changes)
        found = damaged({**writer.files, CHANGES_1: one[:second] + block}, writer, encryption)
        assert (found.file, found.offset) == (CHANGES_1, second)
        assert found.why.startswith("it is whole, and was not written here by who has the key")
    same = forged(one, second, last, number=number)
    assert one[:second] + same == one, "unchanged it is what it was"


def test_a_segment_of_another_time_or_cluster_is_told() -> None:
    """An earlier life of the same log had a segment of that number, too; so may another cluster."""
    encryption = encryption_with(FIRST)
    writer, _ = history(encryption)
    other, _ = history(encryption)
    found = damaged({**writer.files, CHANGES_1: other.files[CHANGES_1]}, writer, encryption)
    assert found.why == "it was written at another time than the one that is listed"
    use = KeyUse(FIRST.id, cluster_hash("another"), writer.log().segments[0].salt)
    header = encode_header(Stream.CHANGES, 1, 1, writer.log_id, use)
    files = {**writer.files, CHANGES_1: header + writer.files[CHANGES_1][len(header) :]}
    assert damaged(files, writer, encryption).why == "it belongs to another cluster"
    plain, _ = history(PLAIN)
    files = {**writer.files, CHANGES_1: plain.files[CHANGES_1]}
    assert "not encrypted, and its list" in damaged(files, writer, encryption).why
    files = {**plain.files, CHANGES_1: writer.files[CHANGES_1]}
    assert "it is encrypted, and its list" in damaged(files, plain, PLAIN).why


def test_all_of_a_header_goes_into_the_key() -> None:
    """So nothing of it can be changed, even where nobody compares it with a list."""
    encryption = encryption_with(FIRST)
    changed = (
        HEADER._replace(stream=Stream.IMAGES),
        HEADER._replace(number=2),
        HEADER._replace(first_block=2),
        HEADER._replace(log_id=b"another log's id"),
        HEADER._replace(use=USE._replace(cluster=bytes(16))),
        HEADER._replace(use=USE._replace(salt=bytes(32))),
    )
    cipher = encryption.cipher_of(HEADER)
    assert cipher is not None
    body = cipher.encrypt(1, b"", b"records")
    assert cipher.decrypt(1, b"", body) == b"records"
    for header in changed:
        other = encryption.cipher_of(header)
        assert other is not None and other.decrypt(1, b"", body) is None


# -- nonces -------------------------------------------------------------------------------


class Ledger:
    """What was encrypted under which derived key and number."""

    def __init__(self) -> None:
        self.seen: dict[tuple[bytes, bytes, int], tuple[bytes, bytes]] = {}

    def note(self, salt: bytes, purpose: bytes, number: int, facts: bytes, body: bytes) -> None:
        """No two things under one key and number, not even the same."""
        assert (salt, purpose, number) not in self.seen
        self.seen[salt, purpose, number] = (facts, body)


class WatchedKey(AesKey):
    """A key that writes down what it is used for."""

    def __init__(self, secret: bytes, ledger: Ledger) -> None:
        super().__init__(secret)
        self._ledger = ledger

    def cipher(self, salt: bytes, purpose: bytes) -> AesCipher:
        """One that notes each encryption."""
        made, ledger = super().cipher(salt, purpose), self._ledger

        class Watched(AesCipher):
            def encrypt(self, number: int, facts: bytes, body: bytes) -> bytes:
                ledger.note(salt, purpose, number, facts, body)
                return made.encrypt(number, facts, body)

        watched = Watched.__new__(Watched)
        watched._aead = made._aead
        return watched


@pytest.mark.parametrize("seed", range(2))
def test_no_nonce_comes_twice(seed: int) -> None:
    """Under one key: after deaths in the middle of works, full disks that are tried again, and old
    copies of the whole directory that are put back.
    """
    ledger, generator = Ledger(), random.Random(seed)
    key = WatchedKey(bytes([1]) * 32, ledger)
    rig = Rig(seed, segment_bytes=2_000)
    rig.keys = lambda: encryption_with(key)
    rig.die(power=False)
    old = rig.disk.fork(random.Random(seed))
    for _ in range(15):
        rig.begin()
        assert not rig.stopped and not rig.problems
        for number in range(generator.randrange(1, 20)):
            value = generator.randbytes(generator.choice((10, 100, 3_000)))
            with contextlib.suppress(OverloadedError):
                rig.put(b"key %d" % number, value)
            if generator.random() < 0.2:
                rig.disk.bytes_max = rig.disk.used_bytes + 100
            rig.turn()
            if generator.random() < 0.5:
                rig.work()
            rig.disk.bytes_max = None
        if rig.works and generator.random() < 0.5:
            rig.disk.carry_out_part(rig.works[0].commands)
        kind = generator.random()
        if kind < 0.3:
            old = rig.disk.fork(random.Random(seed))
            old.crash()
        elif kind < 0.6:
            rig.disk = old.fork(random.Random(seed))
        rig.die(power=generator.random() < 0.5)
    assert len(ledger.seen) > 80


def test_a_segment_encrypts_a_number_once() -> None:
    """Whatever goes wrong above it: a check stops the member first."""
    segment = SegmentInfo(Stream.CHANGES, 1, 1)
    segment.open(LOG_ID, CLUSTER_ID, encryption_with(FIRST))
    segment.encode(1, 0, 0, b"a", 0)
    segment.encode(2, 0, 0, b"b", 0)
    for number in (1, 2):
        with pytest.raises(InvariantViolation):
            segment.encode(number, 0, 0, b"c", 0)


def test_salts_do_not_come_again() -> None:
    """Counted within a process; made of its own chance in each."""
    salts = [
        use.salt
        for encryption in (encryption_with(FIRST), encryption_with(FIRST))
        for _ in range(50)
        if (use := encryption.fresh_use(CLUSTER_ID)) is not None
    ]
    assert len(set(salts)) == 100
    with pytest.raises(InvariantViolation):
        Encryption([FIRST], b"too little")


# -- members ------------------------------------------------------------------------------


def everything(rig: Rig) -> dict[str, bytes]:
    """All files that there are."""
    return {name: bytes(file.data) for name, file in rig.disk._files.items()}


def with_keys(rig: Rig, *chosen: AesKey, plain: PlainFiles = "refuse") -> None:
    """The next processes have these keys; the present one ends."""
    rig.keys = lambda: encryption_with(*chosen, plain=plain) if chosen else PLAIN
    rig.die(power=True)


def written(*chosen: AesKey, **settings: object) -> Rig:
    """A member that has written with these keys."""
    rig = Rig(0, **settings)
    with_keys(rig, *chosen)
    rig.begin()
    for number in range(60):
        rig.put(b"secret key %d" % (number % 10), b"secret value %d" % number * 9)
        rig.turn()
    rig.carry_on()
    return rig


def test_nothing_of_the_users_lies_there_in_the_clear() -> None:
    """Keys, values, names and addresses are in plain files, and in encrypted ones they are not."""
    for chosen, is_seen in ((), True), ((FIRST,), False):
        rig = written(*chosen, segment_bytes=1_000)
        files = everything(rig)
        assert {"cluster.meta"} < set(files) and any("images" in name for name in files)
        for word in (b"secret key", b"secret value", b"kept", b"127.0.0.1"):
            assert any(word in data for data in files.values()) is is_seen
        rig.die(power=True)
        rig.begin()
        assert rig.content() == expected(rig.acknowledged)


@pytest.mark.parametrize("policy", BOTH_POLICIES)
@pytest.mark.parametrize(
    ("wrote", "has", "words"),
    [
        ((FIRST,), (), f"key {FIRST.id.hex()}, which is not given; add it to what"),
        ((FIRST,), (SECOND, THIRD), f"not among the keys that are given ({SECOND.id.hex()}, "),
        ((), (FIRST,), 'plain_files = "read"'),
    ],
)
def test_files_that_cannot_be_read_end_the_start(
    policy: str, wrote: tuple[AesKey, ...], has: tuple[AesKey, ...], words: str
) -> None:
    """Whatever the policy says of damaged files: these are sound. Nothing is touched."""
    rig = written(*wrote, recovery_policy=policy)
    with_keys(rig, *has)
    before = everything(rig)
    went_on: list[bool] = []
    rig.files.begin(lambda: went_on.append(True))
    rig.settle()
    (reason,) = rig.stopped
    assert reason.startswith("cluster.meta is ") and words in reason
    assert reason.endswith("nothing was changed")
    assert not went_on and everything(rig) == before
    with_keys(rig, *wrote)
    rig.begin()
    assert rig.content() == expected(rig.acknowledged)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (((FIRST,), "refuse"), ((SECOND, FIRST), "refuse")),
        (((), "refuse"), ((FIRST,), "read")),
        (((FIRST,), "refuse"), ((FIRST,), "write")),
    ],
)
def test_the_log_is_rewritten_under_another_key(
    before: tuple[tuple[AesKey, ...], PlainFiles], after: tuple[tuple[AesKey, ...], PlainFiles]
) -> None:
    """A key that is new, encryption that is switched on or off: what lies there is read, what is
    written is under the new key, and by and by all of it is, without a write of a client.
    """
    rig = written(*before[0], segment_bytes=1_000)
    with_keys(rig, *after[0], plain=after[1])
    rig.begin()
    assert rig.content() == expected(rig.acknowledged)
    log = rig.files.log
    assert log is not None and log.bytes_of_other_keys == 0
    assert len([one for one in rig.notes if one.kind == "log_rewritten"]) == 1
    assert rig.files.figures()["disk_other_keys_bytes"] == 0
    current = b"" if after[1] == "write" else after[0][0].id
    for name, data in everything(rig).items():
        if name.startswith("log/"):
            header = decode_header(data)
            assert header is not None and (header.use.key_id if header.use else b"") == current
        elif name == CLUSTER_FILE:
            assert key_id_of(name, data) == current
    with_keys(rig, *(() if after[1] == "write" else after[0][:1]))
    rig.begin()
    assert rig.content() == expected(rig.acknowledged) and not rig.stopped


def test_a_log_of_which_nothing_is_needed_gets_another_key_as_well() -> None:
    """The newest images stay when nobody needs them (0017), but not under another key."""
    rig = written(FIRST, segment_bytes=1_000)
    for partition in rig.plane.partitions:
        rig.plane.holdings.discard(partition, MAP)
    rig.carry_on()
    assert any("images" in name for name in everything(rig))
    with_keys(rig, SECOND, FIRST)
    rig.begin()
    log = rig.files.log
    assert log is not None and log.bytes_of_other_keys == 0
    with_keys(rig, SECOND)
    rig.begin()
    assert not rig.stopped and rig.content() == {}


def test_without_another_key_nothing_is_rewritten() -> None:
    """It is a rotation that costs, and no start."""
    rig = written(FIRST, segment_bytes=1_000)
    rig.die(power=True)
    rig.begin()
    assert "log_rewritten" not in [one.kind for one in rig.notes]
    log = rig.files.log
    assert log is not None and log.counters["disk_images"] == 0


def test_a_rotation_that_is_interrupted_anywhere_is_gone_on_with() -> None:
    """By processes with the one key first, or the other, and a loss of power between them."""
    rig = written(FIRST, segment_bytes=1_000)
    for turn in range(12):
        with_keys(rig, *((SECOND, FIRST) if turn % 3 else (FIRST, SECOND)))
        rig.rise()
        rig.put(b"turn", b"%d" % turn)
        rig.settle()
        for _ in range(turn):
            if not rig.fire():
                break
            rig.work()
        assert rig.content() == expected(rig.acknowledged)
    with_keys(rig, SECOND, FIRST)
    rig.begin()
    with_keys(rig, SECOND)
    rig.begin()
    assert rig.content() == expected(rig.acknowledged) and not rig.stopped


def test_a_history_for_backups_is_under_the_current_key() -> None:
    """Its list is written as the log is; one whose key is missing ends the start and stays."""
    rig = written(FIRST, segment_bytes=1_000)
    log = rig.files.log
    assert log is not None
    log.retire(log.retired.begin_history("backups/b", ()))
    for number in range(100):
        rig.put(b"key", b"x" * 200 + b"%d" % number)
        rig.turn()
    rig.carry_on()
    kept = log.retired.history
    assert kept.segments
    data = everything(rig)["backups/.history/list"]
    assert key_id_of("list", data) == FIRST.id
    with_keys(rig, SECOND, FIRST)
    rig.begin()
    log = rig.files.log
    assert log is not None and log.retired.history.segments[: len(kept.segments)] == kept.segments
    fresh = everything(rig)["backups/.history/list"]
    assert key_id_of("list", fresh) == SECOND.id
    rig.disk._files["backups/.history/list"].data[:] = data
    with_keys(rig, SECOND)
    rig.begin()
    (reason,) = rig.stopped
    assert reason.startswith("backups/.history/list is encrypted with key")


def test_rot_is_told_without_the_key() -> None:
    """S4: the checksum is over what is encrypted, so that a look needs no key."""
    writer, _ = history(encryption_with(FIRST))
    whole = writer.files[CHANGES_1]
    for at in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[at] ^= 1
        with pytest.raises(DamageError) as found:
            load({**writer.files, CHANGES_1: bytes(changed)}, writer.log(), encryption=Blind())
        assert found.value.file == CHANGES_1


class Blind(Encryption):
    """Knows no key and reads all the same, without a look into blocks."""

    def check_readable(self, file: str, key_id: bytes) -> None:
        """Whatever it is."""

    def cipher_of(self, header: Header) -> Cipher | None:
        """None."""
        return None
