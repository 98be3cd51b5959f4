"""Which keys the files below a data directory are encrypted with: ``whimbrel files``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whimbrel.core.backups.manifest import DEFAULT_PLACE, MANIFEST_FILE
from whimbrel.core.persistence.encryption import Encryption, key_id_in
from whimbrel.core.persistence.format import ENCRYPTED_HEADER_BYTES, LOG_FOLDER
from whimbrel.core.persistence.metadata import CLUSTER_FILE
from whimbrel.core.persistence.retired import HISTORY_FILE

OTHER_FOLDERS = (DEFAULT_PLACE, "aside")
FILES_OF_ONE = (CLUSTER_FILE, MANIFEST_FILE, HISTORY_FILE.rpartition("/")[2])
"""Names of what is encrypted as a whole, wherever it lies."""


@dataclass(slots=True)
class KeyCount:
    """How much is encrypted with one key, or with none."""

    key: bytes
    is_given: bool
    files: int = 0
    size: int = 0
    """Of what a member starts from."""
    other_files: int = 0
    """In backups below the directory, in what is kept for the next one, and set aside."""

    @property
    def name(self) -> str:
        """As it is shown."""
        return self.key.hex()

    def document(self) -> dict[str, Any]:
        """For ``--json``; ``key`` is null for what is not encrypted."""
        return {
            "key": self.name or None,
            "given": self.is_given,
            "files": self.files,
            "bytes": self.size,
            "other_files": self.other_files,
        }


class KeysInUse:
    """Looks at the heads of all files that may be encrypted."""

    def __init__(self, folder: Path, encryption: Encryption) -> None:
        self._given = encryption.key_ids
        self._uses: dict[bytes, KeyCount] = {}
        for file in (folder / CLUSTER_FILE, *sorted((folder / LOG_FOLDER).glob("*.seg"))):
            self._look(file, is_other=False)
        for other in OTHER_FOLDERS:
            for file in sorted((folder / other).rglob("*")):
                if file.suffix == ".seg" or file.name in FILES_OF_ONE:
                    self._look(file, is_other=True)

    def uses(self) -> list[KeyCount]:
        """By key, plain files first."""
        return [self._uses[key] for key in sorted(self._uses)]

    def _look(self, file: Path, *, is_other: bool) -> None:
        try:
            with file.open("rb") as source:
                key = key_id_in(source.read(ENCRYPTED_HEADER_BYTES))
            size = file.stat().st_size
        except OSError:  # gone since, or no file
            return
        if key is None:
            return
        use = self._uses.setdefault(key, KeyCount(key, not key or key in self._given))
        if is_other:
            use.other_files += 1
        else:
            use.files += 1
            use.size += size


def print_keys(rows: list[dict[str, Any]]) -> None:
    """A table of them."""
    from whimbrel.cli.render import print_rows, safe, size, table

    lines = [
        (
            safe(one["key"] or "not encrypted"),
            "" if one["given"] else "not given",
            str(one["files"]),
            size(one["bytes"]),
            str(one["other_files"]),
        )
        for one in rows
    ]
    columns = ("key", "", ">files", ">size", ">in backups and aside")
    print_rows(table(*columns), lines, "")
