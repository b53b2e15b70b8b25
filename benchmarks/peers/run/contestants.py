"""A loaded system that takes its turn: an engine in a process, or a server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from benchmarks.peers.engines.process import PeerError, PeerUnavailableError
from benchmarks.peers.engines.systems import start
from benchmarks.peers.measures import probe, prompts_for, wake, warm_up
from benchmarks.peers.serving.base import wait_for
from benchmarks.peers.serving.stream import answer, open_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.engines.process import EngineProcess
    from benchmarks.peers.engines.systems import Launch, System
    from benchmarks.peers.engines.tree import ProcessTree
    from benchmarks.peers.measures import Measure, Prompts
    from benchmarks.peers.serving.base import Server, ServingSystem

START_TIMEOUT_S = 600.0
#: A server that was paused may first have to notice that it is alive.
WAKE_TIMEOUT_S = 60.0


class Contestant(Protocol):
    """What a rotation needs of a system."""

    @property
    def name(self) -> str:
        """In tables and results."""

    @property
    def section(self) -> str:
        """Which table it belongs to."""

    @property
    def trees(self) -> Sequence[ProcessTree]:
        """All of its processes."""

    @property
    def target(self) -> Any:
        """What measures are run on."""

    def missing(self) -> str | None:
        """Why it cannot be started here; None if it can."""

    def load(self, launch: Launch, model: str) -> dict[str, Any]:
        """Start it and warm it up; returns what it says of itself."""

    def takes(self, measure: Measure) -> bool:
        """Whether the measure makes sense for it."""

    def wake(self, prompts: Prompts) -> None:
        """A little work after a pause."""

    def close(self) -> None:
        """End it, if it was started."""


@dataclass(slots=True)
class EngineContestant:
    """An engine in a process of its own."""

    system: System
    process: EngineProcess | None = None
    section: str = "engine"

    @property
    def name(self) -> str:
        """The system's."""
        return self.system.name

    @property
    def target(self) -> EngineProcess:
        """The process. Loaded before."""
        assert self.process is not None
        return self.process

    @property
    def trees(self) -> list[ProcessTree]:
        """One."""
        return [self.process.tree] if self.process else []

    def missing(self) -> str | None:
        """See the system."""
        return self.system.missing()

    def load(self, launch: Launch, model: str) -> dict[str, Any]:
        """Every shape is run once; first tokens of fixed prompts are kept for comparison.

        Raises:
            PeerUnavailableError: all prompts have the same first token, as after a NaN. Their rows
                then choose the same experts, and the system looks fast.
        """
        self.process = start(self.system, launch)
        facts = self.process.wait_ready(START_TIMEOUT_S)
        warm_up(self.process, prompts_for(model, seed=1))
        tokens = probe(self.process, prompts_for(model, seed=0))
        if len(set(tokens)) == 1:
            raise PeerUnavailableError(
                f"token {tokens[0]} answers all {len(tokens)} prompts: it does not compute {model}"
            )
        facts["first_tokens"] = tokens
        return facts

    def takes(self, measure: Measure) -> bool:
        """Not what needs a prefix cache, where there is none."""
        return self.system.shares_prefixes or not measure.needs_prefix_sharing

    def wake(self, prompts: Prompts) -> None:
        """One short answer."""
        wake(self.target, prompts)

    def close(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.close()


@dataclass(slots=True)
class EmbedderContestant(EngineContestant):
    """Something that makes vectors, in a process of its own."""

    section: str = "vectors"

    def load(self, launch: Launch, model: str) -> dict[str, Any]:
        """Every shape is run once; a vector's beginning is kept for comparison."""
        self.process = start(self.system, launch)
        facts = self.process.wait_ready(START_TIMEOUT_S)
        prompts = prompts_for(model, seed=1)
        for num, length in ((1, 64), (8, 64), (8, 512)):
            self.process.embed(prompts.draw_many(num, length), timeout_s=START_TIMEOUT_S)
        fixed = [prompts_for(model, seed=0).draw(48)]
        facts["vector"] = self.process.embed(fixed, timeout_s=START_TIMEOUT_S).beginning
        return facts

    def wake(self, prompts: Prompts) -> None:
        """One short text."""
        self.target.embed([prompts.draw(64)], timeout_s=WAKE_TIMEOUT_S)


@dataclass(slots=True)
class ServerContestant:
    """A server with all its processes."""

    system: ServingSystem
    server: Server | None = None
    section: str = "serving"

    @property
    def name(self) -> str:
        """The system's."""
        return self.system.name

    @property
    def target(self) -> Server:
        """The server. Loaded before."""
        assert self.server is not None
        return self.server

    @property
    def trees(self) -> Sequence[ProcessTree]:
        """All processes."""
        return self.server.trees if self.server else []

    def missing(self) -> str | None:
        """See the system."""
        return self.system.missing()

    def load(self, launch: Launch, model: str) -> dict[str, Any]:
        """Both kinds of load once, so that nothing is compiled while it is measured."""
        self.server = self.system.start(launch)
        self.server.wait_ready()
        prompts = prompts_for(model, seed=1)
        for num, length, num_tokens in ((1, 2048, 2), (8, 64, 32), (1, 512, 8)):
            batch = prompts.draw_many(num, length)
            asyncio.run(_ask(self.server.url, batch, num_tokens))
        return self.system.describe()

    def takes(self, measure: Measure) -> bool:
        """All of them."""
        del measure
        return True

    def wake(self, prompts: Prompts) -> None:
        """Ask until it answers: leases may have run out while it was paused."""
        url = self.target.url
        wait_for(f"{url}/v1/models", lambda: None)
        deadline_s = time.monotonic() + WAKE_TIMEOUT_S
        while True:
            try:
                asyncio.run(_ask(url, [prompts.draw(64)], 4))
            except (PeerError, httpx.HTTPError):
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)
            else:
                return

    def close(self) -> None:
        """End it."""
        if self.server is not None:
            self.server.close()


async def _ask(url: str, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
    async with open_client(url) as http:
        await asyncio.gather(*(answer(http, prompt, num_tokens) for prompt in prompts))
