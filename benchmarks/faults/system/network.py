"""Where the processes live: on loopback, or each in a network namespace of its own.

In both cases everything between two processes passes a proxy of the runner. A partition on loopback
is a proxy that lets nothing pass; between namespaces the kernel throws the packets away.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.faults.wire.hub import Hub

_INSIDE = "BATON_FAULTS_INSIDE"
_BRIDGE = "fx-bridge"
_OWN, _PROXY = "10.211.0", "10.211.1"


class Network(Protocol):
    """Addresses, and how to cut them from each other."""

    name: str

    def host(self, process: str) -> str:
        """Where the process listens."""
        ...

    def proxy_host(self, process: str) -> str:
        """Where the runner listens for it."""
        ...

    def command(self, process: str, command: Sequence[str]) -> list[str]:
        """How to start it there."""
        ...

    def source_of(self, host: str, port: int) -> str:
        """Which process connects from this address."""
        ...

    def partition(self, hub: Hub, one: str, other: str, *, cut: bool) -> None:
        """Let no byte pass between two processes, or (`cut` is False) let them meet again."""
        ...

    def add(self, process: str) -> None:
        """Make a place for one more process. Idempotent."""
        ...

    @property
    def has_hosts(self) -> bool:
        """Whether each process has an address of its own, so that `drop` can be called."""
        ...

    def drop(self, one: str, other: str, *, cut: bool) -> None:
        """Throw away every packet of one to the other's own address, and back, without a word."""
        ...

    def close(self) -> None:
        """Take it down."""
        ...


class Loopback:
    """127.0.0.1 for all processes; the owner of a socket is looked up."""

    name = "loopback"

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self._pids = pids

    def host(self, process: str) -> str:
        """See `Network`."""
        return "127.0.0.1"

    def proxy_host(self, process: str) -> str:
        """See `Network`."""
        return "127.0.0.1"

    def command(self, process: str, command: Sequence[str]) -> list[str]:
        """See `Network`."""
        return list(command)

    def source_of(self, host: str, port: int) -> str:
        """See `Network`."""
        for name, pid in self._pids().items():
            try:
                sockets = psutil.Process(pid).net_connections(kind="tcp")
            except psutil.Error:
                continue
            if any(getattr(socket.laddr, "port", None) == port for socket in sockets):
                return name
        return "unknown"

    def partition(self, hub: Hub, one: str, other: str, *, cut: bool) -> None:
        """See `Network`."""
        hub.freeze(one, other, frozen=cut)

    def add(self, process: str) -> None:
        """See `Network`: all are at the same place."""

    @property
    def has_hosts(self) -> bool:
        """See `Network`."""
        return False

    def drop(self, one: str, other: str, *, cut: bool) -> None:
        """See `Network`: never called."""
        raise NotImplementedError("all processes have one address")

    def close(self) -> None:
        """See `Network`."""


class Namespaces:
    """A namespace per process, joined by a bridge in the runner's own (`enter` made that one)."""

    name = "namespaces"

    def __init__(self, processes: Sequence[str]) -> None:
        """Needs root."""
        self._numbers: dict[str, int] = {}
        self._names: dict[str, str] = {}
        _ip("link", "set", "lo", "up")
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{_OWN}.1/16", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for name in processes:
            self.add(name)

    def host(self, process: str) -> str:
        """See `Network`."""
        return f"{_OWN}.{self._numbers[process]}"

    def proxy_host(self, process: str) -> str:
        """See `Network`."""
        return f"{_PROXY}.{self._numbers[process]}"

    def command(self, process: str, command: Sequence[str]) -> list[str]:
        """See `Network`."""
        # Not `ip netns exec`: it mounts /sys again, which no process here needs.
        return ["/usr/bin/nsenter", f"--net=/run/netns/{process}", *command]

    def source_of(self, host: str, port: int) -> str:
        """See `Network`."""
        return self._names.get(host, "unknown")

    def close(self) -> None:
        """See `Network`."""
        for name, number in self._numbers.items():
            # A namespace lives as long as its last process, which may be about to end.
            _ip("link", "del", _link(number))
            _ip("netns", "del", name)
            _ip("addr", "del", f"{_PROXY}.{number}/16", "dev", _BRIDGE)
        _ip("link", "del", _BRIDGE)

    def partition(self, hub: Hub, one: str, other: str, *, cut: bool) -> None:
        """See `Network`: both lose the way to each other's proxy, and the proxies the way back."""
        action = "add" if cut else "del"
        for a, b in ((one, other), (other, one)):
            _ip("-n", a, "route", action, "blackhole", f"{self.proxy_host(b)}/32")
            _ip("rule", action, "from", self.proxy_host(b), "to", self.host(a), "blackhole")

    @property
    def has_hosts(self) -> bool:
        """See `Network`."""
        return True

    def drop(self, one: str, other: str, *, cut: bool) -> None:
        """See `Network`: where they arrive. A sender that has no way would be told so."""
        for a, b in ((one, other), (other, one)):
            way = ["from", self.host(b), "to", self.host(a), "blackhole"]
            if cut:
                # The rule for what is the host's own comes before all others: put it behind ours.
                _ip("-n", a, "rule", "add", "pref", "20", "lookup", "local")
                _ip("-n", a, "rule", "del", "pref", "0")
                _ip("-n", a, "rule", "add", "pref", "10", *way)
            else:
                _ip("-n", a, "rule", "del", "pref", "10", *way)
                _ip("-n", a, "rule", "add", "pref", "0", "lookup", "local")
                _ip("-n", a, "rule", "del", "pref", "20")

    def add(self, process: str) -> None:
        """See `Network`."""
        if process not in self._numbers:
            number = self._numbers[process] = len(self._numbers) + 10
            self._names[self.host(process)] = process
            self._make(process, number)

    def _make(self, name: str, number: int) -> None:
        outer, inner = _link(number), f"{_link(number)}i"
        _ip("netns", "add", name)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        _ip("link", "set", outer, "master", _BRIDGE, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{_OWN}.{number}/16", "dev", inner)
        _ip("-n", name, "link", "set", inner, "up")
        _ip("addr", "add", f"{_PROXY}.{number}/16", "dev", _BRIDGE)


def _link(number: int) -> str:
    """Return the runner's end of a process' cable."""
    return f"fx{number}"


def can_have_namespaces() -> bool:
    """Whether this user may make them here."""
    if os.environ.get(_INSIDE):
        return True
    if os.geteuid() != 0 or not Path("/usr/bin/nsenter").exists():
        return False
    probe = ["unshare", "--net", "--mount", "ip", "link", "add", "x", "type", "bridge"]
    try:
        return subprocess.run(probe, capture_output=True, check=False, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def enter() -> None:
    """Go on in a network and mount namespace of our own: all that is made there ends with us."""
    go_inside()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    Path("/run/netns").mkdir()


def go_inside() -> None:
    """Start this process again in the namespaces, if it may have some and is not there."""
    if os.environ.get(_INSIDE) or not can_have_namespaces():
        return
    os.environ[_INSIDE] = "1"
    command = ["unshare", "--net", "--mount", "--propagation", "private"]
    os.execvp(
        command[0], [*command, sys.executable, "-P", "-m", "benchmarks.faults", *sys.argv[1:]]
    )


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
