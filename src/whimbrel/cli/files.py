"""``whimbrel files``: what a data directory holds and what in it is damaged. Only ever reads."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from whimbrel.cli.http import AsJson, print_json
from whimbrel.cli.keys_in_use import KeysInUse, print_keys
from whimbrel.core.ids import Namespace, PartitionId, index_in, split_namespace
from whimbrel.core.persistence.commands import FileSize
from whimbrel.core.persistence.encryption import (
    PLAIN,
    Encryption,
    KeyProblemError,
    cluster_hash,
)
from whimbrel.core.persistence.format import (
    ENCRYPTED_HEADER_BYTES,
    LENGTH_MAX,
    LOG_FOLDER,
    RECORD,
    RECORD_BYTES,
    WITH_CONTROL,
    Block,
    Cipher,
    DamageError,
    FragmentState,
    Header,
    SegmentReader,
    Stream,
    decode_header,
    segment_file,
    segment_of,
    split_prefix,
)
from whimbrel.core.persistence.loading import Account, Loading
from whimbrel.core.persistence.metadata import (
    CLUSTER_FILE,
    OPEN,
    ClusterFile,
    Segment,
    decode_cluster_file,
)
from whimbrel.core.replication.fragments import Fragment
from whimbrel.errors import OperationError, UsageError
from whimbrel.runtime import identity
from whimbrel.storage.keys import keys_from_command, keys_from_file

if TYPE_CHECKING:
    from rich.console import Console

ASIDE = "aside"
PIECE_BYTES = 1024 * 1024
MS_PER_S = 1_000
KEY_TIMEOUT_S = 10.0
LOOKS_MAX = 3
"""Looks at files of a running member, which may change under ours."""

Json = dict[str, Any]


def files(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Data directory of a member")],
    key_file: Annotated[
        str | None,
        typer.Option("--key-file", metavar="FILE", help="Keys, as persistence.encryption.key_file"),
    ] = None,
    key_command: Annotated[
        str | None,
        typer.Option("--key-command", metavar="COMMAND", help="The same, printed by a command"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What lies in a data directory, and what in it is damaged; changes nothing.

    No member has to run. Of one that runs the last blocks may be missing here. Also for what was
    set aside: DIR/aside/NAME. Encrypted files need their keys; without any, checksums are looked at
    and it is said which keys there are. Ends with 1 when anything is damaged, or when keys are
    given and one is missing.

    Examples: whimbrel files /var/lib/grid; whimbrel files --json /var/lib/grid
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory")
    encryption = _encryption(key_file, key_command)
    for _ in range(LOOKS_MAX):
        look = _Look(directory, encryption)
        document = look.document()
        if not look.damage or document["process"] is None or look.is_current():
            break
    if as_json:
        print_json(document)
    else:
        _print(document)
    if look.damage:
        names = ", ".join(dict.fromkeys(one.file for one in look.damage))
        raise OperationError(f"{directory}: damage in {names}")
    if look.unread and encryption.key_ids:
        missing = ", ".join(use.name for use in look.keys.uses() if not use.is_given)
        raise OperationError(f"{directory}: not looked into without key {missing}")


def _encryption(key_file: str | None, key_command: str | None) -> Encryption:
    """Reads with the keys that are given, and whatever is not encrypted."""
    if key_file and key_command:
        raise UsageError("--key-file and --key-command exclude each other")
    if key_file:
        keys = keys_from_file(key_file)
    elif key_command:
        keys = keys_from_command(key_command, KEY_TIMEOUT_S)
    else:
        return PLAIN
    return Encryption(keys, plain="write")


@dataclass
class _Scan:
    """What was found in one segment."""

    file: str
    size: int
    is_listed: bool | None
    """None where the list cannot be read."""
    end: int
    blocks: int = 0
    torn: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    key: str | None = None
    is_read: bool = True
    """Whether its blocks were looked into."""

    def document(self) -> Json:
        return {
            "file": self.file,
            "listed": self.is_listed,
            "open": self.is_listed is True and self.end == OPEN,
            "blocks": self.blocks,
            "bytes": self.size,
            "torn_bytes": self.torn,
            "first_at": _moment(self.first_ms),
            "last_at": _moment(self.last_ms),
            "key": self.key,
        }


@dataclass
class _Look:
    """One look at a directory."""

    folder: Path
    encryption: Encryption
    unread: list[str] = field(default_factory=list)
    """Files whose keys were not given."""
    damage: list[DamageError] = field(default_factory=list)
    bytes_of: dict[int, int] = field(default_factory=dict)
    """By number of a structure, bytes of all records that speak of it."""
    account: Account = field(default_factory=Account)
    meta: bytes | None = None

    def document(self) -> Json:
        """All that was found."""
        self.keys = KeysInUse(self.folder, self.encryption)
        process = _process_in(self.folder)
        cluster = self._cluster()
        member = self._member(cluster)
        scans = list(self._scans(cluster))
        if cluster is not None and not self.damage and not self.unread:
            self._check_as_a_member(cluster)
        aside = self.folder / ASIDE
        return {
            "directory": str(self.folder),
            "process": process,
            "member": member,
            "cluster": None if cluster is None else _cluster_document(cluster),
            "structures": self._structures(),
            "segments": [scan.document() for scan in scans],
            "keys": [use.document() for use in self.keys.uses()],
            "unread": self.unread,
            "aside": sorted(one.name for one in aside.iterdir()) if aside.is_dir() else [],
            "damage": [
                {"file": one.file, "offset": one.offset, "why": one.why} for one in self.damage
            ],
        }

    def is_current(self) -> bool:
        """Whether the file of the cluster is still the one that was looked at."""
        return self._bytes(CLUSTER_FILE) == self.meta

    def _bytes(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def _cluster(self) -> ClusterFile | None:
        self.meta = self._bytes(CLUSTER_FILE)
        if self.meta is None:
            if (self.folder / LOG_FOLDER).is_dir() and any(self._sizes()):
                self.damage.append(DamageError(CLUSTER_FILE, 0, "it is gone, its log is there"))
            return None
        try:
            data = self.encryption.decrypt_file(CLUSTER_FILE, CLUSTER_FILE, self.meta)
            return decode_cluster_file(data)
        except DamageError as found:
            self.damage.append(found)
        except KeyProblemError:
            self.unread.append(CLUSTER_FILE)
        return None

    def _member(self, cluster: ClusterFile | None) -> str | None:
        """The uuid that a start would take."""
        try:
            record = identity.read_record(self.folder / identity.FILE)
        except ValueError as problem:
            self.damage.append(DamageError(identity.FILE, 0, str(problem)))
            return None
        if record is None:
            if self.meta is not None:
                why = f"it is gone, {CLUSTER_FILE} is there"
                self.damage.append(DamageError(identity.FILE, 0, why))
            return None
        if cluster is not None and cluster.member != record.uuid:
            why = f"it names {record.uuid}; {CLUSTER_FILE} is of {cluster.member}"
            self.damage.append(DamageError(identity.FILE, 0, why))
        return record.uuid

    # -- the log --------------------------------------------------------------------------

    def _sizes(self) -> dict[str, int]:
        """Bytes of each segment that is there."""
        found: dict[str, int] = {}
        for path in sorted((self.folder / LOG_FOLDER).glob("*")):
            name = f"{LOG_FOLDER}/{path.name}"
            if segment_of(name) is not None:
                found[name] = path.stat().st_size
        return found

    def _scans(self, cluster: ClusterFile | None) -> Iterator[_Scan]:
        """Every segment that is listed or there; damage in one hides no other."""
        sizes = self._sizes()
        listed: dict[str, Segment] = {}
        if cluster is not None:
            for segment in cluster.log.segments:
                listed[segment_file(segment.stream, segment.number)] = segment
        names = (*sizes, *listed)
        places = {name: place for name in names if (place := segment_of(name)) is not None}
        for name in sorted(places, key=places.__getitem__):
            if name in sizes:
                yield self._scan(name, sizes[name], listed.get(name), cluster)
            elif listed[name].end:
                self.damage.append(DamageError(name, 0, "it is gone"))

    def _scan(
        self, name: str, size: int, listed: Segment | None, cluster: ClusterFile | None
    ) -> _Scan:
        """Read one segment. Where none is known to be listed each may end anywhere."""
        end = OPEN if listed is None else listed.end
        scan = _Scan(name, size, None if cluster is None else listed is not None, end)
        with (self.folder / name).open("rb") as file:
            header = decode_header(file.read(ENCRYPTED_HEADER_BYTES))
            file.seek(0)
            if listed is not None and cluster is not None:
                of_cluster = cluster_hash(cluster.members.cluster_id)
                header = listed.header(cluster.log.log_id, of_cluster)
            if header is None or not end:
                return scan
            reader = SegmentReader(name, *header, cipher=self._cipher(scan, header))
            left = size if end == OPEN else min(size, end)
            try:
                while left > 0 and (data := file.read(min(left, PIECE_BYTES))):
                    left -= len(data)
                    self._count(scan, header.stream, reader.feed(data))
                scan.torn = reader.finish(may_be_torn=end == OPEN)
                if end > reader.sound_bytes:
                    why = f"{end - reader.sound_bytes} bytes are missing at its end"
                    raise DamageError(name, reader.sound_bytes, why)
            except DamageError as problem:
                if scan.is_listed is not False:
                    self.damage.append(problem)
        return scan

    def _cipher(self, scan: _Scan, header: Header) -> Cipher | None:
        """What its blocks are decrypted with; None when they are not encrypted, or cannot be."""
        if header.use is not None:
            scan.key = header.use.key_id.hex()
        try:
            return self.encryption.cipher_of(header)
        except KeyProblemError:
            scan.is_read = False
            self.unread.append(scan.file)
            return None

    def _count(self, scan: _Scan, stream: int, blocks: list[Block]) -> None:
        """What is in some blocks."""
        unpack, bytes_of = RECORD.unpack_from, self.bytes_of
        for block in blocks:
            scan.blocks += 1
            scan.last_ms = block.wall_ms
            if scan.first_ms is None:
                scan.first_ms = block.wall_ms
            if scan.is_listed is False or not scan.is_read:
                continue
            body = block.body
            at, end = 0, len(body)
            while at + RECORD_BYTES <= end:
                prefix, _, what = unpack(body, at)
                size = RECORD_BYTES + (what & LENGTH_MAX)
                at += size
                structure = split_prefix(prefix)[0]
                bytes_of[structure] = bytes_of.get(structure, 0) + size
            if stream == Stream.CHANGES and block.flags & WITH_CONTROL:
                try:
                    self.account.take(block)
                except (ValueError, msgspec.MsgspecError) as problem:
                    raise DamageError(scan.file, block.offset, str(problem)) from None

    def _check_as_a_member(self, cluster: ClusterFile) -> None:
        """What a start would find that no file shows by itself."""
        found = tuple(FileSize(name, size) for name, size in self._sizes().items())
        try:
            loading = Loading(
                cluster.log,
                found,
                _nothing,
                _never,
                encryption=self.encryption,
                cluster_id=cluster.members.cluster_id,
            )
            while commands := loading.next_commands():
                answers: list[bytes] = []
                for read in commands:
                    with (self.folder / read.file).open("rb") as file:
                        file.seek(read.offset)
                        answers.append(file.read(read.bytes_max))
                loading.take(answers)
        except DamageError as problem:
            self.damage.append(problem)

    def _structures(self) -> list[Json]:
        """Each structure that the log names, by kind and name."""
        partitions: dict[int, int] = {}
        for prefix in self.account.held:
            structure = split_prefix(prefix)[0]
            partitions[structure] = partitions.get(structure, 0) + 1
        rows = []
        for structure, namespace in self.account.names.items():
            kind, name = split_namespace(namespace)
            rows.append(
                {
                    "kind": kind,
                    "name": name,
                    "partitions": partitions.get(structure, 0),
                    "bytes": self.bytes_of.get(structure, 0),
                }
            )
        return sorted(rows, key=lambda row: (row["kind"], row["name"]))


def _nothing(_pid: PartitionId, _namespace: Namespace) -> bool:
    """Wants no fragment: the log is only checked."""
    return False


def _never(_pid: PartitionId, namespace: Namespace, _state: FragmentState) -> Fragment:
    raise NotImplementedError(f"{namespace} was not wanted")


def _process_in(folder: Path) -> str | None:
    """The process that holds the lock, None when nobody does.

    The lock is taken for as long as it takes to give it back, and only shared.
    """
    try:
        with (folder / identity.LOCK).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return lock.read(32).decode("ascii", "replace").strip() or "unknown"
            fcntl.flock(lock, fcntl.LOCK_UN)
    except FileNotFoundError:
        pass
    return None


def _cluster_document(file: ClusterFile) -> Json:
    """What ``cluster.meta`` says."""
    members = file.members
    indexes = [index_in(state.row, file.member) for state in file.rows]
    return {
        "name": file.cluster_name,
        "id": members.cluster_id,
        "version": members.cluster_version,
        "state": members.state.value,
        "has_left": file.has_left,
        "members": [
            {
                "uuid": info.id,
                "address": str(info.address),
                "lite": info.lite,
                "missing": is_missing,
            }
            for is_missing, listed in ((False, members.members), (True, members.missing))
            for info in listed
        ],
        "partitions": {
            "count": file.partition_count,
            "version_sum": sum(state.version for state in file.rows),
            "primaries": sum(index == 0 for index in indexes),
            "backups": sum(index > 0 for index in indexes),
        },
        "losses": len(file.losses),
    }


def _moment(moment_ms: int | None) -> str | None:
    if moment_ms is None:
        return None
    moment = datetime.fromtimestamp(moment_ms / MS_PER_S, UTC)
    return moment.isoformat(timespec="milliseconds")


# -- text ---------------------------------------------------------------------------------


def _print(document: Json) -> None:
    from whimbrel.cli.render import console, print_rows, safe, size, table

    out = console()
    _print_head(out, document)
    cluster = document["cluster"]
    if cluster is not None:
        members = [
            (
                safe(one["address"]),
                safe(one["uuid"]),
                "lite" if one["lite"] else "data",
                "missing" if one["missing"] else "",
            )
            for one in cluster["members"]
        ]
        print_rows(table("address", "uuid", "kind", ""), members, "no members")
    held = [
        (safe(one["name"]), safe(one["kind"]), str(one["partitions"]), size(one["bytes"]))
        for one in document["structures"]
    ]
    print_rows(table("structure", "kind", ">partitions", ">in the log"), held, "no structures")
    segments = [
        (
            safe(one["file"]),
            _state_of(one),
            str(one["blocks"]),
            size(one["bytes"]),
            size(one["torn_bytes"]) if one["torn_bytes"] else "",
            safe(one["first_at"] or "-"),
            safe(one["last_at"] or "-"),
        )
        for one in document["segments"]
    ]
    columns = ("segment", "", ">blocks", ">size", ">torn off", "first block", "last block")
    print_rows(table(*columns), segments, "no log")
    if any(one["key"] for one in document["keys"]):
        print_keys(document["keys"])
    if document["unread"]:
        out.print(f"not looked into without a key: {', '.join(map(safe, document['unread']))}")
    if document["aside"]:
        out.print(f"set aside: {', '.join(map(safe, document['aside']))}")
    if document["damage"]:
        damage = [
            (safe(one["file"]), str(one["offset"]), safe(one["why"])) for one in document["damage"]
        ]
        print_rows(table("damaged", ">offset", "why"), damage, "")
    else:
        out.print("[bold green]nothing is damaged[/]")


def _print_head(out: Console, document: Json) -> None:
    """Whose files these are, in a few lines."""
    from whimbrel.cli.render import number, safe

    out.print(f"{safe(document['directory'])}: member {safe(document['member'] or 'unknown')}")
    if document["process"] is not None:
        out.print(f"in use by a running member, process {safe(document['process'])}")
    cluster = document["cluster"]
    if cluster is None:
        out.print("nothing is known of a cluster")
        return
    left = "; left gracefully, with nothing behind" if cluster["has_left"] else ""
    words = f"cluster {cluster['name']} ({cluster['id']}), version {cluster['version']}"
    out.print(f"{safe(words)}, {safe(cluster['state'])}{left}")
    found = cluster["partitions"]
    out.print(
        f"{number(found['count'])} partitions, sum of versions {number(found['version_sum'])}; "
        f"primary of {number(found['primaries'])}, backup of {number(found['backups'])}"
    )
    if cluster["losses"]:
        out.print(f"{number(cluster['losses'])} partitions have lost data (whimbrel losses)")


def _state_of(segment: Json) -> str:
    if segment["listed"] is False:
        return "not listed"
    return "open" if segment["open"] else ""
