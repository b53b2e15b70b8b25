"""`python -m tests.accounting.stand_in PATH ARGUMENT …`: to execnet what a fork is. See `forks`.

It has the same standard streams and the same end. Where no fork can be had, it becomes the
interpreter that execnet meant.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys

STREAMS = (0, 1, 2)
#: First 0 when there is a fork, then its exit code.
CODE = struct.Struct("!i")


def main(path: str, arguments: list[str]) -> int:
    """The fork's exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the fork
    code = b""
    asker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with asker, contextlib.suppress(OSError):
        asker.connect(path)
        socket.send_fds(asker, [json.dumps(arguments).encode()], STREAMS)
        if asker.recv(CODE.size):
            code = CODE.pack(1)
            code = asker.recv(CODE.size) or code
    if not code:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.execv(sys.executable, [sys.executable, *arguments])
    [found] = CODE.unpack(code)
    return int(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
