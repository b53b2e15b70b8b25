"""Which addresses are of this machine alone."""

from __future__ import annotations

import pytest

from shared.errors import ConfigError
from shared.rpc.exposure import is_loopback, require_guard, zmq_host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "::",
        "[::]",
        "",
        "10.0.0.1",
        "fe80::1",
        "192.168.1.2",
        "no-such-host.invalid",
        "*",
    ],
)
def test_everything_else_is_not(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match=r"the door would be open .*--lock.*--insecure-bind"):
        require_guard(host, door="the door", guarded=False, flags="--lock", insecure=False)
    require_guard(host, door="the door", guarded=True, flags="--lock", insecure=False)
    require_guard(host, door="the door", guarded=False, flags="--lock", insecure=True)


@pytest.mark.parametrize(
    ("endpoint", "loopback"),
    [
        ("tcp://127.0.0.1:5557", True),
        ("tcp://[::1]:5557", True),
        ("ipc:///tmp/x", True),
        ("inproc://x", True),
        ("tcp://*:5557", False),
        ("tcp://0.0.0.0:5557", False),
        ("tcp://10.1.1.1:*", False),
        ("tcp://lan-interface.invalid:5557", False),
        ("nonsense", False),
    ],
)
def test_the_host_of_a_zmq_endpoint(endpoint: str, loopback: bool) -> None:
    assert is_loopback(zmq_host(endpoint)) == loopback
