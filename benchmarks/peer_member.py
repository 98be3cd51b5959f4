"""Whimbrel as a server of the peer harness: pass ``--server peer_member:WhimbrelCluster``.

The harness (``measure.py`` and its modules) stays as it is and must be importable; this module
only says how a member is started. What a member then obeys is in ``member_process``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cluster import Cluster  # type: ignore[import-not-found]  # beside measure.py

MEMBER = Path(__file__).resolve().parent / "member_process.py"


class WhimbrelCluster(Cluster):  # type: ignore[misc]  # the harness has no types of ours
    """Whimbrel members, one process each. ``-D key=value`` sets any configuration key."""

    def command_for_member(self, index: int) -> list[str]:
        """The command line that starts member ``index``."""
        properties = [f"{name}={value}" for name, value in self.properties.items()]
        return [
            sys.executable,
            str(MEMBER),
            f"port={self.port(index)}",
            f"cluster={self.name}",
            f"backups={self.backups}",
            f"members={','.join(self.addresses())}",
            *properties,
        ]
