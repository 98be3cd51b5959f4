"""What lies where in a place for backups, and reading and writing it, step by step.

PLACE/ID/MEMBER/begun            the member takes part
                log/...          segments that no earlier backup has
                cluster.meta     what the cluster was at the cut
                manifest         the backup is whole; written last
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, cast

from whimbrel.core.backups.flow import Fail, Resume, Wait, Work
from whimbrel.core.backups.manifest import MANIFEST_FILE, check_id
from whimbrel.core.ids import MemberId, Namespace, PartitionId
from whimbrel.core.messages.backups import PartToRead, SeenBackup
from whimbrel.core.persistence.commands import Answer, Command, Failure, FileSize, List, Read
from whimbrel.core.persistence.encryption import Encryption, KeyProblemError
from whimbrel.core.persistence.format import DamageError, FragmentState, Stream, segment_file
from whimbrel.core.persistence.loading import Loading
from whimbrel.core.persistence.metadata import (
    CLUSTER_FILE,
    ClusterFile,
    LogFiles,
    Segment,
    decode_cluster_file,
)
from whimbrel.core.replication.fragments import Fragment
from whimbrel.core.stimuli import DiskFailed
from whimbrel.errors import GridError, OperationError, UsageError

BEGUN_FILE: Final = "begun"
MANIFEST_BYTES_MAX: Final = 256 * 1024 * 1024
META_BYTES_MAX: Final = 256 * 1024 * 1024

Submit = Callable[
    [tuple[Command, ...], Callable[[tuple[Answer, ...]], None], Callable[[DiskFailed], None]], None
]
Wanted = Callable[[PartitionId, Namespace], bool]
Make = Callable[[PartitionId, Namespace, FragmentState], Fragment]


class FileGoneError(OperationError):
    """A file is not there."""


class PartRead(NamedTuple):
    """What was read of a part: ``meta`` is what the cluster was, fragments are held by nobody."""

    meta: ClusterFile
    fragments: list[Fragment]


class PlaceFiles:
    """Reads and writes places for backups, through the disk of one member."""

    def __init__(self, submit: Submit, encryption: Encryption) -> None:
        """``submit`` has commands carried out, as that of a log."""
        self._submit = submit
        self._encryption = encryption

    def do(self, *commands: Command) -> Wait:
        """Have commands carried out; resumes with their answers."""

        def wait(resume: Resume, fail: Fail) -> None:
            def failed(why: DiskFailed) -> None:
                kind = FileGoneError if why.failure is Failure.MISSING else OperationError
                fail(kind(f"{why.failure.value} ({why.detail})"))

            self._submit(commands, resume, failed)

        return wait

    def listed(self, place: str) -> Work[list[FileSize]]:
        """All files below a place."""
        (found,) = yield self.do(List(place, is_deep=True))
        return list(cast("tuple[FileSize, ...]", found))

    def look(self, place: str) -> Work[tuple[SeenBackup, ...]]:
        """What backups there are, by id."""
        sizes: dict[str, dict[MemberId, int]] = {}
        manifests: dict[str, FileSize] = {}
        for one in (yield from self.listed(place)):
            parts = one.file.removeprefix(f"{place}/").split("/")
            if len(parts) < 3 or not _is_id(parts[0]):
                continue
            of_members = sizes.setdefault(parts[0], {})
            member = MemberId(parts[1])
            of_members[member] = of_members.get(member, 0) + one.size
            if parts[2:] == [MANIFEST_FILE]:
                manifests.setdefault(parts[0], one)
        found: list[SeenBackup] = []
        for name in sorted(sizes):
            data, problem = b"", ""
            if name in manifests:
                data, problem = yield from self._manifest(manifests[name])
            members = sizes[name]
            found.append(SeenBackup(name, tuple(members), data, sum(members.values()), problem))
        return tuple(found)

    def _manifest(self, file: FileSize) -> Work[tuple[bytes, str]]:
        """The bytes of a manifest; none where it is not to be had, and why."""
        try:
            (answer,) = yield self.do(Read(file.file, 0, min(file.size, MANIFEST_BYTES_MAX)))
        except FileGoneError:  # it is being deleted
            return b"", ""
        data = cast("bytes", answer)
        try:  # an empty one says that the backup is not whole any more
            plain = data and self._encryption.decrypt_file(MANIFEST_FILE, file.file, data)
        except (DamageError, KeyProblemError) as problem:
            return b"", str(problem)
        return plain, ""

    def meta(self, folder: str) -> Work[ClusterFile]:
        """What the cluster was when a part was cut, from the folder of the part.

        Raises:
            DamageError: That is damaged.
            KeyProblemError: It can be read with none of the keys.
        """
        file = f"{folder}/{CLUSTER_FILE}"
        (data,) = yield self.do(Read(file, 0, META_BYTES_MAX))
        plain = self._encryption.decrypt_file(CLUSTER_FILE, file, cast("bytes", data))
        try:
            return decode_cluster_file(plain)
        except DamageError as problem:
            raise DamageError(file, problem.offset, problem.why) from None

    def read_part(
        self,
        place: str,
        backup: str,
        part: PartToRead,
        wanted: Wanted,
        make: Make,
        until_ms: int | None,
        tell: Callable[[int, int], None],
    ) -> Work[PartRead]:
        """Read a part to its end, with all that it needs of earlier backups.

        Args:
            place: Where backups lie.
            backup: The one whose part it is.
            part: Which, and of what it consists.
            wanted: As that of ``Loading``.
            make: As that of ``Loading``.
            until_ms: What was written later is checked and does not count.
            tell: Told how far it is, in bytes.

        Raises:
            DamageError: Some file is gone or damaged.
            KeyProblemError: One can be read with none of the keys.
        """
        meta = yield from self.meta(f"{place}/{backup}/{part.source}")
        places = {
            segment_file(Stream(one.stream), one.number): f"{place}/{one.home}/{part.source}/"
            for one in part.files
        }
        sizes: list[FileSize] = []
        for folder in dict.fromkeys(places.values()):
            for one in (yield from self.listed(folder.removesuffix("/"))):
                name = one.file.removeprefix(folder)
                if places.get(name) == folder:
                    sizes.append(FileSize(name, one.size))
        segments = tuple(
            Segment(Stream(one.stream), one.number, one.first_block, one.end, one.key_id, one.salt)
            for one in part.files
        )
        log = LogFiles(bytes.fromhex(part.log_id), segments)
        try:
            loading = Loading(
                log, sizes, wanted, make, until_ms, self._encryption, meta.members.cluster_id
            )
            while commands := loading.next_commands():
                tell(loading.bytes_loaded, loading.bytes_total)
                reads = [Read(places[one.file] + one.file, *one_span(one)) for one in commands]
                loading.take((yield self.do(*reads)))
        except DamageError as problem:
            raise DamageError(
                places.get(problem.file, f"{place}/{backup}/{part.source}/") + problem.file,
                problem.offset,
                problem.why,
            ) from None
        tell(loading.bytes_total, loading.bytes_total)
        return PartRead(meta, loading.fragments)


def one_span(read: Read) -> tuple[int, int]:
    """Where a read begins, and how much it asks for."""
    return read.offset, read.bytes_max


def nothing(_pid: PartitionId, _namespace: Namespace) -> bool:
    """Wants no fragment: a part is only checked."""
    return False


def never(_pid: PartitionId, namespace: Namespace, _state: FragmentState) -> Fragment:
    """Makes no fragment, because none is wanted."""
    raise GridError(f"{namespace} was not wanted")


def _is_id(text: str) -> bool:
    try:
        check_id(text)
    except UsageError:
        return False
    return True
