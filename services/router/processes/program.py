"""A router of several processes: its ports, its hub, and the processes that serve."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING, Protocol

import structlog
import uvloop

from services.router.processes.hub import Hub
from services.router.processes.ports import held_ports
from services.router.processes.process import RouterProcess
from services.router.processes.supervisor import Supervisor
from services.router.processes.wire import Told

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from services.router.admission.entrance import AdmissionLimits
    from services.router.config import RouterConfig

log = structlog.get_logger(__name__)

#: The hub ended: the process has let its requests finish, and the router stops.
CUT_OFF = 1
#: What processes of a router ask each other.
_WORKERS = "workers"
#: Longest time for which a process waits to know the workers that the others use.
CATCH_UP_S = 15.0
_LOOK_S = 0.05


class Serve(Protocol):
    """Serves as one of the processes until it is told to stop, or its link to the hub ends."""

    def __call__(
        self, config: RouterConfig, *, process: RouterProcess, on_serving: Callable[[], None]
    ) -> Coroutine[Any, Any, None]:
        """Call `on_serving` when the ports are open."""
        ...


def run_processes(
    config: RouterConfig, serve: Serve, *, guarded: Callable[[Callable[[], None]], int]
) -> int:
    """Run the router until it is told to stop; return the exit code.

    `guarded` runs what it is given in one of the processes, and returns that one's exit code.

    Raises:
        ConfigError: a port is in use.
    """
    limits = {each.model_names[0]: each.admission_limits for each in config.of_models()}
    with held_ports(config) as held:

        def run_process(number: int, end: socket.socket, on_serving: Callable[[], None]) -> int:
            structlog.contextvars.bind_contextvars(process=number)
            process = RouterProcess()

            async def run() -> None:
                await process.open(end)
                await serve(held, process=process, on_serving=on_serving)

            code = guarded(lambda: uvloop.run(run()))
            return code or (CUT_OFF if process.is_cut_off.is_set() else 0)

        supervisor = Supervisor(
            config.router_processes,
            run_hub=lambda control: _run_hub(control, limits),
            run_process=run_process,
        )
        return supervisor.run()


async def catch_up(
    process: RouterProcess, usable: Callable[[], set[str]], *, stopping: asyncio.Event
) -> None:
    """Return when all workers that another process uses are usable here, or it takes too long.

    What others ask of this process must be registered before. A process that is started again would
    otherwise answer its first requests with errors.
    """

    async def tell(_: object) -> list[str]:
        return sorted(usable())

    process.link.tell(Told.READY)
    loop = asyncio.get_running_loop()
    late_s = loop.time() + CATCH_UP_S
    while loop.time() < late_s and not stopping.is_set():
        others = await process.ask_others(_WORKERS)
        missing = set().union(*others) - usable()
        if not missing:
            break
        await asyncio.sleep(_LOOK_S)
    else:
        log.warning("not_caught_up", after_s=CATCH_UP_S)
    process.on_ask(_WORKERS, tell)


def _run_hub(control: socket.socket, limits: Mapping[str, AdmissionLimits]) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    uvloop.run(_serve_hub(control, limits))
    return 0


async def _serve_hub(control: socket.socket, limits: Mapping[str, AdmissionLimits]) -> None:
    """Take ends of links until the supervisor has ended, and serve them until the last is lost."""
    hub = Hub(limits)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    adding: set[asyncio.Task[object]] = set()
    control.setblocking(False)

    def take() -> None:
        data, files, _, _ = socket.recv_fds(control, 1, 1)
        for file in files:
            task = loop.create_task(hub.add(socket.socket(fileno=file)))
            adding.add(task)
            task.add_done_callback(adding.discard)
        if not data:
            loop.remove_reader(control)
            ended.set()

    loop.add_reader(control, take)
    await ended.wait()
    await asyncio.gather(*adding)
    await hub.become_empty()
