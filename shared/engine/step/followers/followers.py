"""What an engine asks of the other ranks of its group."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shared.connector.remote.address import EndpointAddress
    from shared.engine.settings.engine import EngineConfig
    from shared.engine.step.hidden import HiddenNeeds
    from shared.engine.step.plan import StepPlan
    from shared.engine.step.result import RunningStep, StepResult
    from shared.errors import RankError
    from shared.kv.layout import KVLayout
    from shared.kv.memory import KVMemory

_M = TypeVar("_M")
#: Makes a context for a piece of work of all ranks, at whose end they meet.
Meet: TypeAlias = Callable[[], AbstractContextManager[None]]


class StepRunner(Protocol):
    """Computes steps: see `ModelRunner`, whose methods these are."""

    @property
    def num_stages(self) -> int:
        """How many ranks compute a step one after the other: so many steps keep all busy."""
        ...

    def keep_hidden(self, needs: HiddenNeeds) -> None:
        """Keep hidden states in every step from now on."""
        ...

    def launch(self, plan: StepPlan) -> RunningStep:
        """Start to compute a step."""
        ...

    def collect(self, step: RunningStep) -> StepResult:
        """Wait for a step, and return its result."""
        ...


class Followers(Protocol):
    """The ranks from 1 on: each has its part of the model, and a runner that follows rank 0's.

    Calls come from one thread at a time, that which computes with rank 0's model, in the order of
    what rank 0 does. Each raises RankError if a rank was lost; the group is lost then.
    """

    @property
    def size(self) -> int:
        """Number of ranks, rank 0 included."""
        ...

    @property
    def local_size(self) -> int:
        """Number of ranks of this host, rank 0 included."""
        ...

    @property
    def pids(self) -> Sequence[int]:
        """The process ids of ranks from 1 on, of this host."""
        ...

    def measure(self, fingerprint: str, config: EngineConfig, max_model_len: int) -> None:
        """Let the ranks begin to compute the largest step; rank 0 must compute it now, too."""
        ...

    def build(
        self,
        fingerprint: str,
        config: EngineConfig,
        *,
        num_blocks: int,
        max_model_len: int,
        layouts: Sequence[KVLayout],
    ) -> None:
        """Let the ranks allocate their blocks and make their runners; return when they have.

        fingerprint: of the model, which they have loaded. layouts: of the blocks, by rank.
        """
        ...

    def record(self, record: Callable[[Meet], None]) -> None:
        """Let all ranks record their decode steps, rank 0 by `record`; return when they have.

        Each recording is inside what `record` gets: no rank begins the next one before all have
        made this one, and a rank that has failed fails all.
        """
        ...

    @property
    def memories(self) -> Sequence[KVMemory]:
        """The memory of the blocks of this host's ranks from 1 on, mapped; valid until `unbuild`.

        They come before those that have `endpoints`.
        """
        ...

    @property
    def endpoints(self) -> Sequence[EndpointAddress]:
        """Where ranks of other hosts serve the connectors of their blocks; valid until `unbuild`.

        See `serve_endpoint`.
        """
        ...

    def lead(self, runner: StepRunner, config: EngineConfig) -> StepRunner:
        """Return a runner that has every rank compute what rank 0's `runner` does.

        What it has collected is complete on every rank.
        """
        ...

    def lead_slots(self, model: _M) -> _M:
        """Return what puts adapters into the slots of every rank's model; `model` is rank 0's."""
        ...

    def unbuild(self) -> None:
        """Let the ranks free their blocks and runners. Of lost ranks nothing is asked."""
        ...

    def keep(self, fingerprints: Collection[str]) -> None:
        """Let the ranks free all models but these, and but that for which they have a runner."""
        ...

    @property
    def lost(self) -> RankError | None:
        """Why the group is lost, if it is."""
        ...

    def lose(self, error: RankError) -> None:
        """Make the group lost: a rank cannot be reached. The first reason stays. Any thread may."""
        ...

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call back when `lost` is set, in a thread of the group; at once, if it is set.

        One callback at a time: the next one replaces it.
        """
        ...


class NoFollowers:
    """The followers of a rank that is alone."""

    size = local_size = 1
    pids: Sequence[int] = ()
    memories: Sequence[KVMemory] = ()
    endpoints: Sequence[EndpointAddress] = ()
    lost: RankError | None = None

    def measure(self, fingerprint: str, config: EngineConfig, max_model_len: int) -> None:
        """See `Followers`."""

    def build(
        self,
        fingerprint: str,
        config: EngineConfig,
        *,
        num_blocks: int,
        max_model_len: int,
        layouts: Sequence[KVLayout],
    ) -> None:
        """See `Followers`."""

    def record(self, record: Callable[[Meet], None]) -> None:
        """See `Followers`."""
        record(nullcontext)

    def lead(self, runner: StepRunner, config: EngineConfig) -> StepRunner:
        """See `Followers`."""
        return runner

    def lead_slots(self, model: _M) -> _M:
        """See `Followers`."""
        return model

    def unbuild(self) -> None:
        """See `Followers`."""

    def keep(self, fingerprints: Collection[str]) -> None:
        """See `Followers`."""

    def on_lost(self, callback: Callable[[], None]) -> None:
        """See `Followers`."""

    def lose(self, error: RankError) -> None:
        """See `Followers`."""


NO_FOLLOWERS = NoFollowers()
