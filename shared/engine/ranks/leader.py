"""Rank 0's hold on its followers: it starts them, and tells them what it does."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Any, TypeVar, cast

import structlog

from shared.connector.remote.address import EndpointAddress
from shared.engine.ranks.assembly import Assembly
from shared.engine.ranks.device_watch import DeviceWatch, WatchedRunner
from shared.engine.ranks.handshake import OwnNode
from shared.engine.ranks.leading import Agreed, LeadingRunner, LeadingSlots
from shared.engine.ranks.orders import (
    Build,
    Failed,
    Keep,
    Load,
    Measure,
    MeasureSums,
    Order,
    Record,
    Unbuild,
    encode_order,
)
from shared.engine.ranks.processes import LogSettings
from shared.engine.step.followers.staged import FirstStage
from shared.errors import ConfigError, InternalError, ModelLoadError, RankError
from shared.kv.memory import KVMemory
from shared.model.loader import load_model
from shared.ranks.base import DeviceCollective
from shared.ranks.measure import measure_sums
from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from shared.engine.ranks.base import AnswerReceiver, Channels
    from shared.engine.ranks.orders import Done
    from shared.engine.settings.engine import EngineConfig
    from shared.engine.settings.ranks import RankSettings
    from shared.engine.step.followers.followers import Meet, StepRunner
    from shared.kv.layout import KVLayout
    from shared.model.loaded import LoadedModel
    from shared.ranks.measure import SumTime

log = structlog.get_logger(__name__)

_M = TypeVar("_M")
#: A rank allocates its blocks and makes its runner: on a busy host longer than it may be late in a
#: step.
_BUILD_S = 120.0
#: Of a step on devices. A step of new sizes compiles kernels first, on each rank.
_DEVICE_S = 120.0
#: Of orders between lives and engines: no step waits for them, and a busy host may be late.
_TELL_S = 30.0
#: Each host chooses by its own CPU, if it is left to.
_CHOOSE = "; give all hosts --attention-backend torch"


def _does_nothing() -> None:
    pass


class RankLeader:
    """All followers of a group. Owned by the process, not by an engine: see `Followers`."""

    def __init__(
        self,
        settings: RankSettings,
        logs: LogSettings | None = None,
        *,
        device: str = "cpu",
        own: OwnNode | None = None,
        check: Callable[[], None] = _does_nothing,
        on_leaving: Callable[[], None] = _does_nothing,
    ) -> None:
        """Start the processes, and wait for those of other hosts. They load nothing yet.

        `device`: rank 0's. `own`: what this host says of itself to others. `check` is called while
        it waits for them, and ends that by an error. `on_leaving`: called in a thread when another
        host is told to end: this process should, in order.

        Raises:
            ConfigError: the group gets no memory, its address is in use, or devices are missing.
            RankError: a rank was lost already.
        """
        self.size = settings.size
        self.local_size = settings.local_size
        self._limit_s = settings.distributed_timeout_seconds
        #: Why the group is lost, if it is.
        self.lost: RankError | None = None
        self._listener: Callable[[], None] = _does_nothing
        self._memories: list[KVMemory] = []
        self._endpoints: list[EndpointAddress] = []
        #: Opens the blocks of ranks on other hosts, for this process alone.
        self._token = secrets.token_bytes(32) if settings.nnodes > 1 else b""
        self._is_built = False
        #: The runner that was built last, if there are stages.
        self._stage: FirstStage | None = None
        #: None on a CPU.
        self._watch: DeviceWatch | None = None
        self._ranks = Assembly(settings, logs or LogSettings(), self._lose, device=device)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._ranks.close, at_once=True)
            if settings.nnodes == 1:
                self._channels = self._ranks.start()
            else:
                self._channels = self._meet(own or OwnNode(), check, on_leaving)
            on_failure.callback(self._channels.close)
            if isinstance(self._channels.sums, DeviceCollective):
                limit_s = max(self._limit_s, _DEVICE_S)
                self._watch = DeviceWatch(self._channels.sums, limit_s, self._lose)
                on_failure.callback(self._watch.close)
            self._plans = self._channels.send_plans()
            self._results = self._channels.receive_results()
            on_failure.pop_all()

    def _meet(
        self, own: OwnNode, check: Callable[[], None], on_leaving: Callable[[], None]
    ) -> Channels:
        def check_both() -> None:
            check()
            if self.lost is not None:
                raise self.lost

        return self._ranks.meet(own, check=check_both, on_leaving=on_leaving)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of this host's followers, in the order of ranks."""
        return self._ranks.pids

    def on_lost(self, callback: Callable[[], None]) -> None:
        """See `Followers`."""
        self._listener = callback
        if self.lost is not None:
            callback()

    def load(self, folder: Path, *, model_class: str = "", **options: Any) -> LoadedModel:
        """Load a model, each rank its part; see `load_model` for the options and the errors.

        Raises:
            ConfigError: a rank is another version of the program, reads other weights, or computes
                with other kernels.
            RankError: a rank was lost.
        """
        split = self._channels.split
        order = Load(
            folder=str(folder),
            options={**options, "device": str(options.get("device", "cpu"))},
            expert_parallel=split.expert_parallel,
            model_class=model_class,
        )
        self._send(order)
        try:
            loaded = load_model(
                folder,
                split=split,
                seat=(0, self.local_size),
                collective=self._channels.sums,
                pipe=self._channels.pipe,
                **options,
            )
        except BaseException:
            with contextlib.suppress(ConfigError, ModelLoadError, RankError):
                self._answers(limit_s=None)
            raise
        # Loading takes as long as it takes.
        answers = self._answers(limit_s=None)
        for rank, answer in zip(self._ranks.lines, answers, strict=True):
            for name, own, other, advice in (
                ("version", VERSION, answer.version, ""),
                ("weights", loaded.fingerprint, answer.fingerprint, ""),
                ("kernels", loaded.model.backend_name, answer.backend, _CHOOSE),
            ):
                if own != other:
                    where = f"rank {rank}{self._ranks.place(rank)}"
                    raise ConfigError(
                        f"{where} has other {name} than rank 0: {other}, {own}{advice}"
                    )
        log.info("ranks_loaded", size=self.size, pids=self.pids)
        return loaded

    def measure(self, fingerprint: str, config: EngineConfig, max_model_len: int) -> None:
        """See `Followers`."""
        self._send(Measure(fingerprint, config, max_model_len))

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
        self._send(
            Build(fingerprint, config, num_blocks, max_model_len, self._token, self._limit_s)
        )
        self._is_built = True
        fds: dict[int, int] = {}
        try:
            answers = self._answers(fds, limit_s=max(self._limit_s, _BUILD_S))
        except BaseException:
            for fd in fds.values():
                os.close(fd)
            raise
        self._memories = [
            KVMemory.attached(layouts[rank], num_blocks, fd) for rank, fd in fds.items()
        ]
        self._endpoints = [
            EndpointAddress(
                rank=rank, address=answer.endpoint, token=self._token, timeout_s=self._limit_s
            )
            for rank, answer in zip(self._ranks.lines, answers, strict=True)
            if answer.endpoint
        ]

    def record(self, record: Callable[[Meet], None]) -> None:
        """See `Followers`."""
        self._send(Record())
        limit_s = max(self._limit_s, _BUILD_S)
        try:
            record(self._meeting)
        except RankError as error:
            self._lose(error)
            raise
        except BaseException:
            with contextlib.suppress(ConfigError, InternalError, RankError):
                self._answers(limit_s=limit_s)
            raise
        self._answers(limit_s=limit_s)

    @contextlib.contextmanager
    def _meeting(self) -> Iterator[None]:
        """See `Meet`."""
        part = contextlib.nullcontext() if self._watch is None else self._watch.part()
        with Agreed(self._channels.collective), part:
            yield

    @property
    def memories(self) -> Sequence[KVMemory]:
        """See `Followers`."""
        return self._memories

    @property
    def endpoints(self) -> Sequence[EndpointAddress]:
        """See `Followers`."""
        return self._endpoints

    def lose(self, error: RankError) -> None:
        """See `Followers`."""
        self._lose(error)

    def lead(self, runner: StepRunner, config: EngineConfig) -> StepRunner:
        """See `Followers`."""
        if self._watch is not None:
            runner = WatchedRunner(runner, self._watch)
        leading = LeadingRunner(
            runner,
            self._plans,
            self._channels.collective,
            self.order,
            overlaps=config.overlaps_steps and self._results is None,
            lose=self._lose,
        )
        if self._results is None:
            return leading
        num_stages = self._channels.split.num_stages
        self._stage = FirstStage(leading, self._results, num_stages, self._lose)
        return self._stage

    def lead_slots(self, model: _M) -> _M:
        """See `Followers`."""
        return cast("_M", LeadingSlots(cast("Any", model), self.order))

    def unbuild(self) -> None:
        """See `Followers`."""
        for memory in self._memories:
            memory.close()
        self._memories, self._endpoints = [], []
        if self._is_built:
            self._is_built = False
            self._tell(Unbuild())
        stage, self._stage = self._stage, None
        if stage is not None:
            with contextlib.suppress(RankError):
                stage.abandon()

    def keep(self, fingerprints: Collection[str]) -> None:
        """See `Followers`."""
        self._tell(Keep(list(fingerprints)))

    def measure_sums(self) -> list[SumTime]:
        """Time sums between the ranks; see `measure_sums`.

        Raises:
            RankError: a rank cannot be reached.
        """
        self._send(MeasureSums())
        found = measure_sums(self._channels.collective)
        self._answers(limit_s=self._limit_s)
        return found

    def close(self) -> None:
        """End the processes. Idempotent."""
        if self._watch is not None:
            self._watch.close()
        self._plans.close()
        if self._results is not None:
            self._results.close()
        self._channels.close()
        self._ranks.close(at_once=self.lost is not None)

    def order(self, order: Order) -> None:
        """Give an order, and return when all have followed it.

        Raises:
            RankError: a rank was lost.
            ConfigError, InternalError: a rank could not.
        """
        self._send(order)
        self._answers(limit_s=self._limit_s)

    def _tell(self, order: Order) -> None:
        """Give an order that no step waits for to those that are there.

        A lost group has nothing to free.
        """
        with contextlib.suppress(RankError):
            self._send(order)
            self._answers(limit_s=max(self._limit_s, _TELL_S))

    def _send(self, order: Order) -> None:
        if self.lost is not None:
            raise self.lost
        self._plans.send(encode_order(order))

    def _answers(self, fds: dict[int, int] | None = None, *, limit_s: float | None) -> list[Done]:
        """Return every follower's answer to the last order; add the descriptors to `fds`, by rank.

        A rank that has not answered after `limit_s` is lost; None: it may take any time.
        """
        found, failed = [], None
        for rank, line in self._ranks.lines.items():
            answer, fd = self._answer(rank, line, limit_s)
            if fd is not None and fds is not None:
                fds[rank] = fd
            if isinstance(answer, Failed):
                failed = failed or (rank, answer)
            else:
                found.append(answer)
        if failed is not None:
            rank, answer = failed
            kind = ConfigError if answer.is_refused else InternalError
            raise kind(f"rank {rank}{self._ranks.place(rank)}: {answer.error}")
        return found

    def _answer(
        self, rank: int, line: AnswerReceiver, limit_s: float | None
    ) -> tuple[Done | Failed, int | None]:
        try:
            return line.receive(limit_s)
        except TimeoutError:
            what = f"did not answer within {limit_s:g} s"
        except OSError as error:
            what = f"is gone: {error}"
        where = f"rank {rank}{self._ranks.place(rank)}"
        self._lose(RankError(f"the process of {where} {what}", rank=rank))
        assert self.lost is not None  # just now
        raise self.lost

    def _lose(self, error: RankError) -> None:
        """Know that the group is lost; the first reason stays."""
        if self.lost is not None:
            return
        log.error("rank_lost", rank=error.rank, reason=str(error))
        self.lost = error
        if self._watch is not None:
            self._watch.end(error)
        self._listener()
