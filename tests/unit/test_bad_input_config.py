"""Bad configuration, by the numbers of the checklist; what the loader's own tests leave open."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest
from tests.unit.engine_pump import Pump

from whimbrel.config import describe, load, split_setting
from whimbrel.config.settings import RuntimeSettings
from whimbrel.errors import ConfigError
from whimbrel.runtime.identity import open_identity
from whimbrel.runtime.sockets import open_ports
from whimbrel.serialization.data import to_data

SECRETS = ("password", "secret", "token", "credential", "certificate", "keystore")


def refused(file: Path, text: str) -> list[str]:
    file.write_text(text)
    with pytest.raises(ConfigError) as problem:
        load(str(file))
    return problem.value.problems


def test_each_wrong_value_is_told_with_its_line(tmp_path: Path) -> None:
    """Goal: bad input 25, 26: a text where seconds are needed, zero, negative numbers,
    overflow, fractions, an unknown key, a misspelt one: all at once, each with file and line.
    """
    file = tmp_path / "grid.toml"
    told = refused(
        file,
        '[membership]\nheartbeat_timeout_s = "30"\nclaim_timeout_s = 0\nleave_retry_s = -1\n'
        "[migration]\nmax_parallel = 1.5\ntimeout_s = 1e300\n[partition]\n"
        "count = 9223372036854775808\ncuont = 3\n[network]\nbogus = true\n",
    )
    lines = {int(text.split(":")[1]): text for text in told}
    assert sorted(lines) == [2, 3, 4, 6, 7, 9, 10, 12]
    assert "seconds" in lines[2]
    assert "whole number" in lines[6]
    assert "between" in lines[3]
    assert "between" in lines[9]
    assert "did you mean partition.count?" in lines[10]
    assert "unknown key" in lines[12]
    assert file.read_text().startswith("[membership]")


def test_keys_given_twice_in_a_file(tmp_path: Path) -> None:
    """Goal: bad input 27: a key written twice, or a table written twice, is no valid file."""
    file = tmp_path / "grid.toml"
    (one,) = refused(file, "[partition]\ncount = 3\ncount = 5\n")
    assert one.startswith(f"{file}:3: ")
    (two,) = refused(file, "[partition]\ncount = 3\n[member]\nlite = true\n[partition]\n")
    assert two.startswith(f"{file}:5: ")


def test_more_backups_than_members_is_no_mistake() -> None:
    """Goal: bad input 28: a map may ask for more backups than there are members; writes wait
    for those that can exist (docs/guarantees.md), and seven or more are refused at the start.
    """
    pump = Pump()
    pump.form(1)
    client = pump.client(pump.nodes[0])
    fields = {"name": "b2 x", "key": to_data(1), "thread_id": 1}
    client.call("Map.set", 3, **fields, value=to_data(2), ttl=-1)
    assert client.call("Map.get", 3, **fields) == to_data(2)
    with pytest.raises(ConfigError, match="between 0 and 6"):
        load(flags=[split_setting("map.x.backup_count=7")])


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EADDRINUSE, "data port 5799 is in use on 127.0.0.1"),
        (errno.EACCES, "choose a higher one"),
        (errno.EADDRNOTAVAIL, "set network.host"),
        (errno.EINVAL, "cannot be opened"),
    ],
)
def test_ports_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    """Goal: bad input 29: taken, privileged or foreign: the sentence says what to do. Method:
    a socket whose bind fails, since a test may run with every right.
    """

    class Stubborn(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(number, "no")

    monkeypatch.setattr(socket, "socket", Stubborn)
    with pytest.raises(ConfigError) as refusal:
        open_ports(RuntimeSettings(port=5799))
    assert words in str(refusal.value)


def test_data_directories_that_cannot_be_had(tmp_path: Path) -> None:
    """Goal: bad input 29: a place below a file, another cluster's or another member's
    directory is refused by name and left as it is.
    """
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError, match=str(file)):
        open_identity(str(file / "below"), "dev")
    first = open_identity(str(tmp_path / "data"), "dev")
    with pytest.raises(ConfigError, match="in use by another member"):
        open_identity(str(tmp_path / "data"), "dev")
    first.release()
    with pytest.raises(ConfigError, match="belongs to cluster 'dev'"):
        open_identity(str(tmp_path / "data"), "prod")
    again = open_identity(str(tmp_path / "data"), "dev")
    assert again.member == first.member
    again.release()
    assert file.read_text() == "mine"


def test_there_is_no_secret_to_lose() -> None:
    """Goal: bad input 30: no key holds a secret, so none can be weak or readable by others;
    instead a port that the network can reach needs a word of its own. A key for a secret must
    bring the checks of its file with it, then this test changes.
    """
    assert not [row for row in describe() if any(word in str(row["key"]) for word in SECRETS)]
    with pytest.raises(ConfigError, match=r"network\.insecure"):
        load(flags=[split_setting("network.host=192.0.2.1")])


def test_a_file_of_one_gibibyte_is_not_read(tmp_path: Path) -> None:
    """Goal: bad input 31: the size is looked at before the content."""
    file = tmp_path / "huge.toml"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 30)
    with pytest.raises(ConfigError, match=str(1 << 30)):
        load(str(file))
