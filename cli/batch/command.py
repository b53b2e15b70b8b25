"""`baton run-batch`: the whole run."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from cli.batch.client import BatchClient
from cli.batch.output import BatchOutput
from cli.batch.progress import BatchProgress
from cli.batch.requests import BatchInput
from cli.cluster import Cluster
from cli.errors import CommandError
from cli.start.interrupts import Terminated, ending_signals, heed_ctrl_c
from cli.up import require_clean_stop, running

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from cli.batch.requests import Item
    from cli.cluster import ClusterSpec

#: Exit code: the run is complete, but not every line has a successful answer.
EXIT_INCOMPLETE = 3
EXIT_INTERRUPTED = 130
KEY_VARIABLE = "BATON_API_KEY"
_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Options of a run."""

    input: Path
    output: Path
    #: Address of a running server; None: `spec` is started for the batch.
    url: str | None = None
    api_key: str | None = None
    verify: ssl.SSLContext | bool = True
    concurrency: int = 32
    patience_s: float = 300.0
    timeout_s: float = 3600.0


def run_batch(options: BatchOptions, spec: ClusterSpec | None = None) -> int:
    """Answer the requests without an answer; return the exit code.

    Raises:
        CommandError: the run cannot continue. All answers until then are in the output.
    """
    heed_ctrl_c()
    console = Console(stderr=True)
    _require_two_files(options)
    with ExitStack() as stack:
        batch = stack.enter_context(closing(BatchInput(options.input)))
        output = stack.enter_context(closing(BatchOutput(options.output)))
        pending = [item for item in batch.items if item.custom_id not in output.done]
        num_done = len(batch.items) - len(pending)
        _show_plan(console, batch, num_done)
        progress = BatchProgress(console, num_items=len(batch.items), num_done=num_done)
        run = _Run(options, batch, output, progress)
        try:
            if pending:
                run.all(pending, console, spec)
        except (KeyboardInterrupt, Terminated) as interrupt:
            console.print(f"stopped: {progress.summary()}; the same command goes on", style="dim")
            return getattr(interrupt, "exit_code", EXIT_INTERRUPTED)
    console.print(progress.summary(), highlight=False)
    if progress.num_refused or batch.bad_lines:
        console.print(
            f"{progress.num_refused} of them errors, {len(batch.bad_lines)} bad lines",
            highlight=False,
        )
        return EXIT_INCOMPLETE
    return 0


def read_api_key(file: Path | None) -> str | None:
    """Return the key to send: from a file, else from the environment; None: no key.

    Raises:
        CommandError: the file cannot be read, or is empty.
    """
    if file is None:
        return os.environ.get(KEY_VARIABLE, "").strip() or None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the key in {file}: {error}") from error
    if not key:
        raise CommandError(f"there is no key in {file}")
    return key


class _Run:
    def __init__(
        self,
        options: BatchOptions,
        batch: BatchInput,
        output: BatchOutput,
        progress: BatchProgress,
    ) -> None:
        self._options = options
        self._batch = batch
        self._output = output
        self._progress = progress

    def all(self, items: Sequence[Item], console: Console, spec: ClusterSpec | None) -> None:
        """Answer `items` by the given cluster, or by one started for the batch."""
        if self._options.url is not None:
            self._send_all(items, self._options.url, lambda: None)
            return
        if spec is None:
            raise CommandError("there is neither a server nor a cluster to start")
        cluster = Cluster(spec)
        with running(cluster, console):
            self._send_all(items, spec.url, lambda: cluster.keep_running(console.print))
        require_clean_stop(cluster)

    def _send_all(
        self, items: Sequence[Item], url: str, require_server: Callable[[], None]
    ) -> None:
        options = self._options
        client = BatchClient(
            url,
            api_key=options.api_key,
            verify=options.verify,
            concurrency=options.concurrency,
            patience_s=options.patience_s,
            timeout_s=options.timeout_s,
            require_server=require_server,
        )
        with self._progress, _one_error():
            asyncio.run(self._send(iter(items), client))

    async def _send(self, items: Iterator[Item], client: BatchClient) -> None:
        async def work() -> None:
            # All tasks take from the same iterator.
            for item in items:
                line = await client.send(self._batch.read(item))
                self._output.append(line)
                self._progress.answered(line)

        with _interruptible():
            async with client, asyncio.TaskGroup() as tasks:
                for _ in range(self._options.concurrency):
                    tasks.create_task(work())


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn SIGTERM, SIGHUP and Ctrl-C into a cancellation of this task, and then `Terminated`."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    received: list[int] = []
    previous = {number: signal.getsignal(number) for number in ending_signals()}

    def stop(number: int) -> None:
        received.append(number)
        if task is not None:
            task.cancel()

    for number in previous:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    except asyncio.CancelledError:
        if received:
            raise Terminated(received[0]) from None
        raise
    finally:
        for number, handler in previous.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextmanager
def _one_error() -> Iterator[None]:
    """Raise the first error of several tasks."""
    try:
        yield
    except BaseExceptionGroup as group:
        found = group.subgroup(CommandError)
        if found is None:
            raise
        raise found.exceptions[0] from None


def _require_two_files(options: BatchOptions) -> None:
    both = options.output.exists() and options.input.exists()
    if both and options.output.samefile(options.input):
        raise CommandError("input and output are the same file")


def _show_plan(console: Console, batch: BatchInput, num_done: int) -> None:
    for bad in batch.bad_lines[:_MAX_SHOWN]:
        console.print(
            f"line {bad.number}: {bad.reason}", style="yellow", highlight=False, markup=False
        )
    if len(batch.bad_lines) > _MAX_SHOWN:
        console.print(f"… and {len(batch.bad_lines) - _MAX_SHOWN} more bad lines", style="yellow")
    if num_done:
        console.print(
            f"{num_done} of {len(batch.items)} requests are answered already", style="dim"
        )
