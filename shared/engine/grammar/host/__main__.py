"""`python -m shared.engine.grammar.host FD`: the parent of a worker's grammar processes.

It loads the library and the vocabulary once; its children share that memory. It has one thread, so
it may fork. It and they end when the worker does, however it ends: the sockets close.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
from pathlib import Path

from shared.ending import end_process
from shared.engine.grammar.backends.registry import create_backend
from shared.engine.grammar.host.messages import Fork, Forked, Loaded, Vocabulary, receive, send
from shared.engine.grammar.host.serving import HostServer
from shared.engine.settings.choices import BackendName
from shared.errors import ConfigError
from shared.text.token_table import TokenTable

#: Score by which the kernel ends these processes before the worker if memory runs out.
_OOM_SCORE = "800"


def main(control: socket.socket) -> None:
    """Load, then fork a host for each socket received."""
    # A worker that was asked to stop still finishes its answers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _be_ended_first()
    wish = receive(control, Vocabulary)
    table = TokenTable(
        token_bytes=tuple(wish.token_bytes),
        special_token_ids=frozenset(wish.special_token_ids),
        eos_token_ids=tuple(wish.eos_token_ids),
    )
    try:
        backend = create_backend(BackendName(wish.backend), table)
    except ConfigError as error:
        send(control, Loaded(str(error)))
        return
    gc.freeze()
    send(control, Loaded(""))
    while True:
        _, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not fds:
            return
        wanted = receive(control, Fork)
        sock = socket.socket(fileno=fds[0])
        pid = os.fork()
        if pid == 0:
            control.close()
            try:
                limit_memory(wanted.memory_bytes)
                ends = table.eos_token_ids
                HostServer(sock, backend, vocab_size=table.vocab_size, end_token_ids=ends).run()
            finally:
                os._exit(0)
        sock.close()
        send(control, Forked(pid))


def limit_memory(num_bytes: int) -> None:
    """Let this process map at most `num_bytes` more than it has mapped now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _be_ended_first() -> None:
    with contextlib.suppress(OSError):  # a container may forbid it
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


if __name__ == "__main__":
    with contextlib.suppress(EOFError, ConnectionError):  # the worker has ended
        main(socket.socket(fileno=int(sys.argv[1])))
    end_process(0)
