"""Hosts and ports in one text, with addresses of IPv4 and IPv6."""

from __future__ import annotations

import socket

import pytest

from shared.address import (
    bare_host,
    begins_with_ipv6,
    family_of,
    host_from_here,
    is_every_host,
    join_address,
    needs_ipv6,
    split_address,
    split_endpoint,
)


@pytest.mark.parametrize(
    ("host", "joined"),
    [
        ("127.0.0.1", "127.0.0.1:80"),
        ("worker-7", "worker-7:80"),
        ("", ":80"),
        ("::1", "[::1]:80"),
        ("[::1]", "[::1]:80"),
        ("fe80::1%eth0", "[fe80::1%eth0]:80"),
    ],
)
def test_a_joined_address_is_split_again(host: str, joined: str) -> None:
    assert join_address(host, 80) == joined
    assert split_address(joined, 1) == (bare_host(host), 80)


@pytest.mark.parametrize("text", ["redis-0", "10.0.0.1", "[fd00::7]", "fd00::7"])
def test_a_host_alone_has_the_default_port(text: str) -> None:
    assert split_address(text, 26379) == (bare_host(text), 26379)


def test_a_port_that_is_no_number_is_no_address() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        split_address("redis-0:x", 1)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("::", "::1"),
        ("[::]", "::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("fd00::7", "fd00::7"),
    ],
)
def test_every_address_is_reached_over_loopback(host: str, here: str) -> None:
    assert host_from_here(host) == here
    assert is_every_host(host) == (here != host)


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("[::1]:50051", True),
        (" [fd00::7]:1,[fd00::8]:1", True),
        ("[2001:db8::1]:80", True),
        ('["::1"]', False),
        ("[1, 2]", False),
        ("[]", False),
        ("10.0.0.1:80", False),
    ],
)
def test_a_list_of_addresses_is_told_from_json(text: str, begins: bool) -> None:
    assert begins_with_ipv6(text) == begins


@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("127.0.0.1", socket.AF_INET),
        ("", socket.AF_INET),
        ("::", socket.AF_INET6),
        ("[::1]", socket.AF_INET6),
        ("no-such-host.invalid", socket.AF_INET),
    ],
)
def test_a_host_has_a_family(host: str, family: socket.AddressFamily) -> None:
    assert family_of(host) == family


def test_a_name_has_the_family_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [socket.AF_INET6]
    infos = lambda *_, **__: [(each, 0, 0, "", ()) for each in found]  # noqa: E731
    monkeypatch.setattr(socket, "getaddrinfo", infos)
    assert family_of("only-6") == socket.AF_INET6
    found.append(socket.AF_INET)
    assert family_of("both") == socket.AF_INET


def test_zmq_asks_for_ipv6_where_an_address_is_of_it() -> None:
    assert needs_ipv6("tcp://[::1]:0")
    assert not needs_ipv6("tcp://127.0.0.1:0")
    assert not needs_ipv6("ipc://a[")


@pytest.mark.parametrize(
    ("endpoint", "parts"),
    [
        ("tcp://127.0.0.1:0", ("127.0.0.1", "0")),
        ("tcp://[::1]:5557", ("[::1]", "5557")),
        ("tcp://*:*", ("*", "*")),
    ],
)
def test_an_endpoint_has_a_host_and_a_port(endpoint: str, parts: tuple[str, str]) -> None:
    assert split_endpoint(endpoint) == parts
