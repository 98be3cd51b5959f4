"""One form of an address everywhere: ``host:port``, an IPv6 host in brackets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.admin_fakes import as_node, fakes
from tests.unit.engine_pump import Pump

from whimbrel.admin.documents import ClusterDocuments, MemberUnknownError
from whimbrel.cli.http import Admin
from whimbrel.client.bulk import parse_address as client_address
from whimbrel.config import load, parse_address
from whimbrel.config.loader import Flag
from whimbrel.config.values import is_loopback, parse_host
from whimbrel.core.ids import Address
from whimbrel.errors import ConfigError, UsageError
from whimbrel.spark.errors import OptionError
from whimbrel.spark.options import _addresses as spark_addresses

FORMS = [
    ("127.0.0.1:5701", "127.0.0.1", "127.0.0.1:5701"),
    ("localhost:5701", "localhost", "localhost:5701"),
    ("grid-0.grid.svc:5701", "grid-0.grid.svc", "grid-0.grid.svc:5701"),
    ("[::1]:5701", "::1", "[::1]:5701"),
    ("[0:0:0:0:0:0:0:1]:5701", "::1", "[::1]:5701"),
    ("[FE80::00AB]:5701", "fe80::ab", "[fe80::ab]:5701"),
    ("[fe80::1%eth0]:5701", "fe80::1%eth0", "[fe80::1%eth0]:5701"),
    ("[2001:db8::2]:1", "2001:db8::2", "[2001:db8::2]:1"),
]
"""What is written, the host that sockets are given, and what is shown."""
NO_ADDRESSES = [
    *("::1:5701", "::1", "[::1]", "[::1]5701", "[::1]:", "[]:5701", "[::1:5701", "::1]:5701"),
    *("[localhost]:5701", "[127.0.0.1]:5701", "a:b:5701", "[a:b]:5701", "[[::1]]:5701"),
    *("", ":5701", "h:", "h:0", "h:70000", "h:x", "a b:1", "h/x:1", "h:٣", "h:5701:"),
]


@pytest.mark.parametrize(("text", "host", "shown"), FORMS)
def test_every_door_reads_the_same_form(text: str, host: str, shown: str) -> None:
    """Goal: configuration, clients and Spark take what members show, and the spellings of it."""
    address = parse_address(text)
    assert (address.host, str(address)) == (host, shown)
    assert parse_address(shown) == address == client_address(text)
    assert spark_addresses(text) == (text,)
    config = load(flags=[Flag("network.join", text, "--join")])
    assert config.runtime.join == (address,)
    (entry,) = [one for one in config.entries if one.key == "network.join"]
    assert entry.value == (shown,)


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_every_door_refuses_the_same(text: str) -> None:
    """Goal: what is no address is refused everywhere, and the sentence quotes it."""
    with pytest.raises(ValueError, match="no address") as problem:
        parse_address(text)
    assert repr(text) in str(problem.value)
    with pytest.raises(UsageError, match="no address"):
        client_address(text)
    with pytest.raises(OptionError):
        spark_addresses(text)


def test_an_ipv6_host_without_brackets_is_told_of_them() -> None:
    """Goal: the commonest mistake names its remedy."""
    with pytest.raises(ValueError, match=r"stands in brackets, as in \[::1\]:5701"):
        parse_address("::1:5701")


@given(st.ip_addresses(), st.integers(1, 65_535))
def test_what_is_shown_is_read_back(host: object, port: int) -> None:
    """Goal: the text of an address is the address."""
    address = Address(str(host), port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("[0:0::1]", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost"),
    ],
)
def test_hosts_to_listen_on_may_have_brackets(text: str, host: str) -> None:
    """Goal: ``--host [::1]`` is ``--host ::1``, loopback both; sockets get it bare."""
    assert parse_host(text) == host
    assert is_loopback(host)
    assert load(flags=[Flag("network.host", text, "--host")]).runtime.host == host
    assert load(settings=[f"network.host={text}"]).runtime.host == host


@pytest.mark.parametrize("text", ["[localhost]", "[::1", "::1]", "a:b", "[]", "a b", "::1:5701x"])
def test_hosts_that_are_none_are_refused(text: str) -> None:
    """Goal: what no socket could be given is a configuration error that quotes it."""
    with pytest.raises(ConfigError, match="no host"):
        load(flags=[Flag("network.host", text, "--host")])


def test_other_ipv6_addresses_are_not_loopback() -> None:
    """Goal: brackets open no port to the network."""
    for text in ("[fe80::1]", "fe80::1", "[2001:db8::1]"):
        with pytest.raises(ConfigError, match="not loopback"):
            load(flags=[Flag("network.host", text, "--host")])


def test_a_member_may_be_advertised_with_or_without_a_port() -> None:
    """Goal: an advertised IPv6 host is written as everywhere."""
    for text, shown in (("[::1]", "[::1]:7"), ("[::1]:9", "[::1]:9"), ("name", "name:7")):
        config = load(flags=[Flag("network.advertise", text, "x")])
        assert str(parse_address(config.runtime.advertise, 7)) == shown
    with pytest.raises(ConfigError, match="brackets"):
        load(flags=[Flag("network.advertise", "::1", "x")])


def test_commands_find_a_member_by_each_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: ``plan --leave``, ``shutdown`` and ``promote`` take the address that is shown."""
    pump = Pump()
    pump.form(1)
    documents = ClusterDocuments(as_node(fakes(pump)[0]))
    (info,) = documents.members()
    assert documents.find(str(info.address)) is info
    monkeypatch.setattr(type(info), "address", Address("::1", 5701))
    assert documents.find("[::1]:5701") is info
    assert documents.find("[0:0:0:0:0:0:0:1]:5701") is info
    for text in ("::1:5701", "[::1]:5702", "[::1]"):
        with pytest.raises(MemberUnknownError):
            documents.find(text)


@pytest.mark.parametrize("url", ["http://[::1]:8701", "[::1]:8701", "http://[::1]:8701/"])
def test_admin_addresses_may_be_ipv6(url: str) -> None:
    """Goal: ``--admin`` takes brackets with and without ``http://``."""
    admin = Admin(url)
    assert (admin.host, admin.port) == ("::1", 8701)


@pytest.mark.parametrize("url", ["::1:8701", "http://::1:8701", "[::1:8701", "http://[x]:1"])
def test_admin_addresses_without_sense_are_refused(url: str) -> None:
    """Goal: an IPv6 address without brackets is no admin address."""
    with pytest.raises(UsageError, match="is not an admin address"):
        Admin(url)
