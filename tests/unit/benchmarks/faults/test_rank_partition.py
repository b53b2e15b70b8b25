"""The two hosts of a worker are cut from each other: packets are dropped, and nothing says so."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from benchmarks.faults import matrix
from benchmarks.faults.kinds.base import Scene
from benchmarks.faults.system.network import Loopback, can_have_namespaces
from benchmarks.faults.system.sockets import states_between
from cli.places import ROOT, python_environ
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from benchmarks.faults.clients.load import Load
    from benchmarks.faults.clients.oracle import Oracle
    from benchmarks.faults.system.cluster import Cluster

#: One process has sockets in several namespaces: a socket stays in that in which it was made.
CUT = """
import ctypes, socket
from contextlib import contextmanager
from benchmarks.faults.system.network import Namespaces, enter

libc = ctypes.CDLL(None, use_errno=True)

@contextmanager
def inside(name):
    with open("/proc/self/ns/net") as own, open(f"/run/netns/{name}") as other:
        assert libc.setns(other.fileno(), 0) == 0
        yield
        assert libc.setns(own.fileno(), 0) == 0

def connect(one, other, timeout_s=5.0):
    with inside(one):
        client = socket.socket()
    client.settimeout(timeout_s)
    client.connect((network.host(other), 5000))
    return client

def come(*ends):
    for sender, receiver in (ends, ends[::-1]):
        sender.sendall(b"x")
    return [reads(end) for end in ends]

def reads(end):
    try:
        return end.recv(1)
    except TimeoutError:
        return None

enter()
network = Namespaces(["one", "two"])
network.add("three")
network.add("three")
with inside("two"):
    server = socket.create_server((network.host("two"), 5000))
pairs = {}
for name in ("one", "three"):
    client = connect(name, "two")
    pairs[name] = client, server.accept()[0]
for end in (*pairs["one"], *pairs["three"]):
    end.settimeout(0.2)
assert come(*pairs["one"]) == [b"x", b"x"]
network.drop("one", "two", cut=True)
assert come(*pairs["one"]) == [None, None]
assert come(*pairs["three"]) == [b"x", b"x"]
try:
    connect("one", "two", 0.2)
except TimeoutError:
    pass
else:
    raise AssertionError("a new connection came through")
network.drop("one", "two", cut=False)
for end in pairs["one"]:
    end.settimeout(20)
    assert reads(end) == b"x"
connect("one", "two")
network.close()
# Sockets are still open there, as those of a process that is about to end.
Namespaces(["one", "two"]).close()
print("all of it")
"""


@pytest.mark.skipif(not can_have_namespaces(), reason="needs root, for namespaces")
def test_packets_are_dropped_both_ways_until_they_are_not() -> None:
    command = ["unshare", "--net", "--mount", "--propagation", "private"]
    environ = {**python_environ(), "BATON_FAULTS_INSIDE": "1"}
    done = subprocess.run(
        [*command, sys.executable, "-P", "-c", CUT],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "all of it\n", done.stderr


def test_connections_are_found_with_their_states() -> None:
    one, other = "127.0.0.71", "127.0.0.72"
    with socket.create_server((one, free_port())) as server:
        client = socket.create_connection(server.getsockname(), 5, (other, 0))
        accepted, _ = server.accept()
        assert states_between(os.getpid(), one, other) == ["established"]
        assert states_between(os.getpid(), other, one) == ["established"]
        assert states_between(os.getpid(), one, one) == []
        client.close()
        assert accepted.recv(1) == b""
        assert states_between(os.getpid(), one, other) == ["close-wait"]
        # On a busy machine the end is acknowledged behind the read.
        for _ in range(500):
            if states_between(os.getpid(), other, one) != ["fin-wait-1"]:
                break
            time.sleep(0.01)
        assert states_between(os.getpid(), other, one) == ["fin-wait-2"]
        accepted.close()
        assert states_between(os.getpid(), one, other) == []


def test_sockets_of_ipv6_may_mean_addresses_of_ipv4() -> None:
    one, other = "127.0.0.73", "127.0.0.74"
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection((one, server.getsockname()[1]), 5, (other, 0)),
    ):
        assert states_between(os.getpid(), other, one) == ["established"]
        assert states_between(os.getpid(), one, other) == ["established"]


def test_on_loopback_the_row_is_skipped_and_says_why() -> None:
    cluster = cast("Cluster", SimpleNamespace(network=Loopback(dict)))
    scene = Scene(cluster, cast("Load", None), cast("Oracle", None))
    for role in ("prefill", "decode"):
        reason = matrix.FAULTS[f"partition ranks of {role}"].impossible(scene)
        assert reason == "needs root, for hosts of their own"
