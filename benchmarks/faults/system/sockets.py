"""What sockets there are between two addresses: also those that no process has any more."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

#: As the kernel numbers them. One that has ended in order is kept for a minute: no connection.
_TIME_WAIT = 6
#: Hexadecimal digits; and the first three words of an IPv6 address that means one of IPv4.
_WORD = 8
_MEANS_IPV4 = f"{0:016X}{struct.unpack('=I', bytes((0, 0, 255, 255)))[0]:08X}"
_STATES = {1: "established", 4: "fin-wait-1", 5: "fin-wait-2", 8: "close-wait", 9: "last-ack"}


def states_between(pid: int, own: str, other: str) -> list[str]:
    """Return the states of TCP connections between two IPv4 addresses, in a process's network."""
    found = []
    tables = (Path(f"/proc/{pid}/net/{name}").read_text("ascii") for name in ("tcp", "tcp6"))
    for line in (line for table in tables for line in table.splitlines()[1:]):
        _, local, remote, state, *_ = line.split()
        number = int(state, 16)
        if (_host(local), _host(remote)) == (own, other) and number != _TIME_WAIT:
            found.append(_STATES.get(number, state))
    return sorted(found)


def _host(place: str) -> str:
    """Return the address of `0100007F:1F90`, whose words are in the order of this machine.

    An IPv6 address has four words, of which the last is that of IPv4 if it means one.
    """
    words = place.partition(":")[0]
    if len(words) > _WORD and words[:-_WORD] != _MEANS_IPV4:
        return ""
    return socket.inet_ntoa(struct.pack("=I", int(words[-_WORD:], 16)))
