"""A follower: it has a part of the model and a runner, and does what rank 0 tells."""

from __future__ import annotations

import gc
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from shared.connector.remote.serve import EndpointSettings, serve_endpoint
from shared.engine.memory.sizing import own_layout, read_layout
from shared.engine.ranks.leading import Agreed
from shared.engine.ranks.orders import (
    Build,
    Done,
    Failed,
    Keep,
    KeepHidden,
    Kind,
    Load,
    Measure,
    MeasureSums,
    Record,
    SetAdapter,
    Unbuild,
    decode_order,
    decode_weights,
)
from shared.engine.step.followers.followers import NO_FOLLOWERS
from shared.engine.step.followers.plan_codec import decode_plan
from shared.engine.step.followers.staged import send_result
from shared.engine.step.hidden import HiddenNeeds
from shared.engine.step.model_parts import build_model_parts
from shared.engine.step.step_memory import largest_step_bytes
from shared.errors import ConfigError, ModelLoadError, RankError
from shared.model.checkpoint.loading.heap import give_back_free
from shared.model.families.registry import register_named
from shared.model.loader import load_model
from shared.ranks.measure import measure_sums
from shared.version import VERSION

if TYPE_CHECKING:
    from shared.connector.remote.serve import Endpoint
    from shared.engine.ranks.base import AnswerSender, Channels
    from shared.engine.ranks.orders import Order
    from shared.engine.ranks.seat import Seat
    from shared.engine.settings.engine import EngineConfig
    from shared.engine.step.decode_graphs import GraphRecorder
    from shared.engine.step.model_parts import ModelParts
    from shared.engine.step.result import RunningStep, StepResult
    from shared.model.loaded import LoadedModel
    from shared.ranks.base import PlanReceiver, PlanSender

log = structlog.get_logger(__name__)


class Follower:
    """One rank's life. One thread."""

    def __init__(
        self,
        channels: Channels,
        plans: PlanReceiver,
        results: PlanSender | None,
        line: AnswerSender,
        seat: Seat,
        *,
        recorder: GraphRecorder | None = None,
    ) -> None:
        """Make the follower. `results`: for results of steps, if this rank has them.

        `line`: for answers to rank 0. `recorder`: see `build_model_parts`.
        """
        self._seat = seat
        self._channels = channels
        self._collective = channels.collective
        self._rank = channels.split.number
        self._plans = plans
        self._results = results
        self._line = line
        self._recorder = recorder
        #: Models by fingerprint.
        self._loaded: dict[str, LoadedModel] = {}
        self._parts: ModelParts | None = None
        #: Of the present blocks, on another host than rank 0's.
        self._endpoint: Endpoint | None = None
        self._steps: deque[RunningStep] = deque()

    def follow(self) -> RankError:
        """Do what rank 0 tells until it, or another rank, is gone; return the reason."""
        try:
            while True:
                message = self._plans.receive()
                if message[0] == Kind.ORDER:
                    self._answer(decode_order(message[1:]))
                else:
                    self._step(message)
        except RankError as error:
            return error

    def _step(self, message: bytes) -> None:
        """Do a step, or a part of one.

        Errors that all ranks of a stage have are rank 0's to report, if their stage is the last;
        another one's are the end of the group, since the next stage waits.
        """
        assert self._parts is not None  # rank 0 has it, too
        runner = self._parts.runner
        outcome: StepResult | Exception | None = None
        try:
            if message[0] != Kind.COLLECT:
                with Agreed(self._collective, only_errors=True):
                    self._steps.append(runner.launch(decode_plan(message[1:])))
            if message[0] != Kind.LAUNCH:
                with Agreed(self._collective):
                    outcome = runner.collect(self._steps.popleft())
        except RankError:
            raise
        except Exception as error:  # every rank has it
            log.exception("step_failed", rank=self._rank)
            if not self._channels.split.is_last:
                reason = f"rank {self._rank} failed a step of its stage: {error!r}"
                raise RankError(reason, rank=self._rank) from error
            outcome = error
        if self._results is not None and outcome is not None:
            send_result(self._results, outcome)

    def _answer(self, order: Order) -> None:
        memory = None
        try:
            answer: Done | Failed = self._do(order)
            if isinstance(order, Build) and self._built.arena.memory is not None:
                memory = self._built.arena.memory.fd
        except Exception as error:  # rank 0 must learn any
            if isinstance(order, Measure) or isinstance(error, RankError):
                raise  # the others wait for this rank
            is_refused = isinstance(error, ConfigError | ModelLoadError)
            if not is_refused:
                log.exception("order_failed", rank=self._rank)
            answer = Failed(str(error) if is_refused else repr(error), is_refused)
        if isinstance(order, Measure):
            return  # rank 0 computes it at the same time
        self._line.send(answer, memory)

    def _do(self, order: Order) -> Done:
        match order:
            case Load():
                return self._load(order)
            case Measure():
                self._measure(order)
            case MeasureSums():
                measure_sums(self._collective)
            case Build():
                return self._build(order)
            case Record():
                self._built.record(partial(Agreed, self._collective))
            case KeepHidden():
                self._built.runner.keep_hidden(HiddenNeeds(final=order.final, layers=order.layers))
            case SetAdapter():
                weights = None if order.weights is None else decode_weights(order.weights)
                self._built.loaded.model.set_adapter(order.slot, weights)
            case Unbuild():
                self._unbuild()
            case Keep():
                self._keep(order)
        return Done()

    @property
    def _built(self) -> ModelParts:
        assert self._parts is not None  # rank 0 has them, too
        return self._parts

    def _load(self, order: Load) -> Done:
        if order.model_class:
            register_named(order.model_class)
        split = replace(self._channels.split, expert_parallel=order.expert_parallel)
        seat = self._seat
        loaded = load_model(
            Path(seat.folders.get(order.folder, order.folder)),
            split=split,
            seat=(seat.index, seat.count),
            collective=self._channels.sums,
            pipe=self._channels.pipe,
            **{**order.options, "device": self._channels.device} | seat.options,
        )
        self._loaded[loaded.fingerprint] = loaded
        return Done(loaded.fingerprint, VERSION, loaded.model.backend_name)

    def _measure(self, order: Measure) -> None:
        loaded, config = self._loaded[order.fingerprint], self._own(order.config)
        layout = own_layout(loaded, read_layout(loaded, config))
        largest_step_bytes(loaded, layout, config, order.max_model_len)

    def _build(self, order: Build) -> Done:
        loaded, config = self._loaded[order.fingerprint], self._own(order.config)
        self._parts = build_model_parts(
            loaded,
            config,
            own_layout(loaded, read_layout(loaded, config)),
            num_blocks=order.num_blocks,
            max_model_len=order.max_model_len,
            recorder=self._recorder,
            followers=NO_FOLLOWERS,
        )
        if not self._seat.host:
            return Done()
        memory = self._parts.arena.memory
        assert memory is not None  # on a CPU
        settings = EndpointSettings(
            rank=self._rank,
            token=order.token,
            host=self._seat.host,
            advertise_host=self._seat.advertise_host,
            timeout_s=order.timeout_s,
        )
        self._endpoint = serve_endpoint(memory, settings)
        return Done(endpoint=self._endpoint.address.address)

    def _own(self, config: EngineConfig) -> EngineConfig:
        """Return rank 0's settings on this rank's device."""
        return replace(config, device=self._channels.device)

    def _keep(self, order: Keep) -> None:
        for fingerprint in self._loaded.keys() - set(order.fingerprints):
            del self._loaded[fingerprint]
        _give_back()

    def _unbuild(self) -> None:
        self._steps.clear()
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None
        if self._parts is not None:
            self._parts.arena.close()
            self._parts = None
        _give_back()


def _give_back() -> None:
    """Give the system back what nothing refers to any more."""
    gc.collect()
    give_back_free()
