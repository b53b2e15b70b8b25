"""Decode steps as recorded graphs: one launch instead of hundreds.

A graph is recorded for a fixed number of sequences at fixed addresses. A step in which every
sequence has one new token is padded to the next such number and replayed; all others run eagerly.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog
import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Seq

    from kernels.kv_write.cache import PagedCache
    from shared.engine.step.batch.batch import Batch
    from shared.engine.step.causal_model import CausalModel
    from shared.engine.step.followers.followers import Meet
    from shared.engine.step.plan import StepPlan

log = structlog.get_logger(__name__)


class StepOutput(NamedTuple):
    """The result of the model, by sequence."""

    #: float32 [n, vocab]
    logits: torch.Tensor
    #: [n, hidden]: the rows that the logits were computed from.
    hidden: torch.Tensor

    def first(self, num_seqs: int) -> StepOutput:
        """Return the results of the first sequences: those behind them are padding."""
        return StepOutput(self.logits[:num_seqs], self.hidden[:num_seqs])


class StepGraph(Protocol):
    """One recorded step."""

    def replay(self) -> StepOutput:
        """Run it on the present content of its inputs; return its output.

        Graphs share their memory: launch the use of the output before any other replay.
        """
        ...


class GraphRecorder(Protocol):
    """Records work that always reads the same addresses."""

    def record(self, step: Callable[[], StepOutput]) -> StepGraph:
        """Record the work of `step` on the device; `step` may be called several times for that."""
        ...


class EagerRecorder:
    """Records nothing and calls the step each time: the same path on any device."""

    def record(self, step: Callable[[], StepOutput]) -> StepGraph:
        """See `GraphRecorder.record`."""
        return _EagerGraph(step, StepOutput(*map(torch.empty_like, step())))


@dataclass(frozen=True, slots=True)
class _EagerGraph:
    step: Callable[[], StepOutput]
    output: StepOutput

    def replay(self) -> StepOutput:
        for kept, made in zip(self.output, self.step(), strict=True):
            kept.copy_(made)
        return self.output


class CudaRecorder:
    """CUDA graphs that share one memory pool, since only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def record(self, step: Callable[[], StepOutput]) -> StepGraph:
        """See `GraphRecorder.record`."""
        # In their first calls, libraries initialise themselves and kernels are compiled, which a
        # recording cannot contain; on a side stream, as torch.cuda.graph requires.
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            output = step()
        if self._pool is None:
            self._pool = graph.pool()
        return _CudaGraph(graph, output)


@dataclass(frozen=True, slots=True)
class _CudaGraph:
    graph: torch.cuda.CUDAGraph
    output: StepOutput

    def replay(self) -> StepOutput:
        self.graph.replay()
        return self.output


def graph_sizes(configured: Seq[int], max_num_seqs: int) -> tuple[int, ...]:
    """Return the recorded numbers of sequences, ascending: as configured, or 1, 2, 4, 8, then by
    16.

    The last one is always `max_num_seqs`: a larger step would reallocate memory that graphs refer
    to.
    """
    if configured:
        return tuple(sorted({*configured, max_num_seqs}))
    sizes = {size for size in (1, 2, 4, 8, *range(16, max_num_seqs, 16)) if size < max_num_seqs}
    return (*sorted(sizes), max_num_seqs)


def padded_size(num_seqs: int, sizes: Seq[int]) -> int | None:
    """Return the smallest of `sizes`, ascending, that fits `num_seqs`; None if none does."""
    return next((size for size in sizes if size >= num_seqs), None)


class DecodeGraphs:
    """The recorded steps of one model. `record` before the first `run`."""

    def __init__(
        self,
        model: CausalModel,
        kv_caches: Seq[PagedCache],
        recorder: GraphRecorder,
        sizes: Seq[int],
        *,
        assumed_len: int,
    ) -> None:
        """Prepare the recordings. The model makes its choices for contexts of `assumed_len`."""
        self._model = model
        self._kv_caches = kv_caches
        self._recorder = recorder
        self._sizes = tuple(sizes)
        self._assumed_len = assumed_len
        self._graphs: dict[int, tuple[StepGraph, list[int]]] = {}

    def size_for(self, plan: StepPlan) -> int | None:
        """Return the size to pad this step to; None if it must run eagerly."""
        return padded_size(len(plan.rows), self._sizes) if plan.is_decoding else None

    @torch.inference_mode()
    def record(self, padding: Callable[[int], Batch], meet: Meet = nullcontext) -> None:
        """Record every size. `padding` makes a batch of that size of padding only.

        The largest first: the smaller ones then fit into its memory. Before that everything runs
        once, because memory that a model keeps between calls must have its full size before any
        recording refers to it. Every run and every recording is inside `meet`: see
        `Followers.record`.
        """
        start = time.monotonic()
        for size in self._sizes:
            with meet():
                self._step(padding(size), [self._assumed_len] * size)()
        for number, size in enumerate(sorted(self._sizes, reverse=True), start=1):
            lengths = [self._assumed_len] * size
            with meet():
                step = self._step(padding(size), lengths)
                self._graphs[size] = self._recorder.record(step), lengths
            log.info("graph_recorded", num_seqs=size, progress=f"{number}/{len(self._sizes)}")
        log.info("graphs_ready", num=len(self._sizes), seconds=round(time.monotonic() - start, 1))

    def _step(self, batch: Batch, lengths: list[int]) -> Callable[[], StepOutput]:
        """Run the model on this batch, whose contexts have these `lengths`."""
        metadata = replace(batch.metadata, seq_lens_list=lengths)

        def step() -> StepOutput:
            hidden = self._model.forward(
                batch.token_ids, batch.positions, self._kv_caches, metadata
            )
            return StepOutput(self._model.compute_logits(hidden).float(), hidden)

        return step

    def run(self, batch: Batch) -> StepOutput:
        """Return the output of a padded batch, at the addresses of the recording."""
        graph, lengths = self._graphs[len(batch.token_ids)]
        # A recorded model has made its choices; a model that is called again must know the lengths.
        lengths[:] = batch.metadata.seq_lens_list
        return graph.replay()
