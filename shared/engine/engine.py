"""The engine: schedule, run, postprocess. One thread at a time; it knows no transport, no text."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import TYPE_CHECKING

import structlog
import torch

from shared.engine.block_manager import BlockManager
from shared.engine.events import EngineStats, Failed, FinishReason
from shared.engine.kv_storage import KVStorage, plan_memory, read_layout
from shared.engine.model_runner import ModelRunner
from shared.engine.postprocess import Postprocessor
from shared.engine.scheduler import Scheduler, SchedulerOutput
from shared.engine.sequence import Sequence, Status
from shared.engine.validation import RequestValidator
from shared.errors import InternalError, InvalidRequestError, RequestCancelledError
from shared.kv.block_hash import namespace_hash, root_hash
from shared.kv.block_pool import BlockPool
from shared.kv.prefix_cache import PrefixCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.engine.config import EngineConfig
    from shared.engine.events import CacheChange, EngineEvent
    from shared.engine.request import EngineRequest
    from shared.kv.memory import KVMemory
    from shared.model.loader import LoadedModel

log = structlog.get_logger(__name__)

#: What `EngineStats.counters` counts since start.
COUNTERS = (
    "engine_steps",
    "computed_tokens",
    "generation_tokens",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "transfers_completed",
    # Failed, or not begun because so little was left to compute.
    "transfers_unused",
    "requests_aborted",
    "requests_failed",
)


class Engine:
    """Generates for many sequences at a time. Not thread-safe: see `EngineThread`.

    Each request ends with one event (`NewTokens` with a finish reason, or `Failed`); one that holds
    its blocks also needs a `release`.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        """Raises ConfigError if the settings do not fit the model or the memory."""
        self.layout = read_layout(loaded, block_size=config.block_size)
        self.num_blocks, self.max_model_len = plan_memory(
            config, self.layout, model_limit=loaded.config.max_model_len
        )
        self.model_fingerprint = loaded.fingerprint
        #: Root of the block hashes; workers share blocks only if theirs are equal.
        self.namespace = namespace_hash(
            model_fingerprint=loaded.fingerprint,
            dtype=self.layout.dtype,
            kv_dtype=self.layout.dtype,
            layout_version=self.layout.version,
            block_size=config.block_size,
        )
        self._pool = BlockPool(self.num_blocks)
        self._cache = PrefixCache(self._pool, enabled=config.enable_prefix_caching)
        self._scheduler = Scheduler(
            BlockManager(self._pool, self._cache, block_size=config.block_size),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            policy=config.scheduling_policy,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            enable_chunked_prefill=config.enable_chunked_prefill,
        )
        self._storage = KVStorage(
            self.layout, self.num_blocks, dtype=loaded.dtype, device=torch.device(config.device)
        )
        self._runner = ModelRunner(loaded.model, self._storage.tensor, block_size=config.block_size)
        self._postprocessor = Postprocessor(self._scheduler, max_model_len=self.max_model_len)
        self._validator = RequestValidator(
            vocab_size=loaded.config.vocab_size, max_model_len=self.max_model_len
        )
        self._arrivals = count()
        self._events: list[EngineEvent] = []
        self._output = SchedulerOutput(budget=0)
        self._counters = Counter(dict.fromkeys(COUNTERS, 0))
        #: Nothing could be scheduled; only a call from outside can change that.
        self._stalled = False
        #: Why the engine cannot go on, if it cannot. Then everything has failed.
        self.broken: Exception | None = None

    @property
    def kv_memory(self) -> KVMemory | None:
        """The memory behind the blocks; None where they live on an accelerator."""
        return self._storage.memory

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            InvalidRequestError: it can never be served; `param` says why.
            InternalError: the engine is broken.
        """
        if self.broken is not None:
            raise InternalError(f"the engine is broken: {self.broken}")
        self._validator.check(request)
        if request.request_id in self._scheduler.sequences:
            raise InvalidRequestError(
                f"request {request.request_id} is here already", param="request_id"
            )
        root = root_hash(self.namespace, cache_salt=request.cache_salt)
        self._scheduler.add(Sequence(request, arrival=next(self._arrivals), root_hash=root))
        self._stalled = False

    def abort(self, request_id: str) -> None:
        """End a request now; its last event comes with the next step. Unknown ids are ignored.

        Blocks are free at once, except with `hold_blocks`: a peer may be reading them. Nobody may
        be writing to them any more.
        """
        seq = self._scheduler.sequences.get(request_id)
        if seq is not None and seq.status is not Status.HELD:
            self._events.append(self._postprocessor.ending(seq, FinishReason.ABORT))
            self._counters["requests_aborted"] += 1
            self._stalled = False

    def release(self, request_id: str) -> None:
        """Free the blocks of a `hold_blocks` request, ending it if need be. Idempotent."""
        self.abort(request_id)
        seq = self._scheduler.sequences.get(request_id)
        if seq is not None:
            self._scheduler.release(seq)
        self._stalled = False

    def complete_transfer(self, request_id: str, first_token: int | None = None) -> None:
        """The prompt's KV has arrived and was verified: go on from there.

        `first_token` was sampled by the sender and given out by the caller; without it the last
        prompt token is computed again.

        Raises:
            RequestCancelledError: the request has ended.
        """
        self._end_transfer(request_id, received=True, first_token=first_token)

    def fail_transfer(self, request_id: str, first_token: int | None = None) -> None:
        """Nothing that was received may be used: compute the prompt here.

        A first token that was given out is kept. Raises like `complete_transfer`.
        """
        self._end_transfer(request_id, received=False, first_token=first_token)

    def pin_cached(self, block_hashes: Iterable[bytes]) -> tuple[int, tuple[int, ...]]:
        """Find the leading blocks and keep them unchanged until `unpin`, which must follow."""
        pin_id, blocks = self._cache.pin(block_hashes)
        return pin_id, tuple(blocks)

    def unpin(self, pin_id: int) -> None:
        """Give a pin back, exactly once."""
        self._cache.unpin(pin_id)
        self._stalled = False

    def has_work(self) -> bool:
        """Whether `step` would do anything. If not, only another call can change that."""
        if self._events:
            return True
        return not self._stalled and bool(self._scheduler.running or self._scheduler.waiting)

    def step(self) -> list[EngineEvent]:
        """Compute one batch; returns what happened since the last call, in order.

        A failing model ends the sequences of that batch with `Failed`. A failing engine ends all
        sequences and sets `broken`. Nothing is raised.
        """
        return self.begin_step() + self.end_step()

    def begin_step(self) -> list[EngineEvent]:
        """The first half of `step`: what can be told before anything is computed."""
        events, self._events = self._events, []
        return events + self._guarded(self._schedule)

    def end_step(self) -> list[EngineEvent]:
        """The second half of `step`, which takes its time. Nothing may be called in between."""
        return self._guarded(self._compute)

    def take_cache_changes(self) -> list[CacheChange]:
        """What prefix lookup gained and lost since the last call."""
        return self._pool.changes.take()

    def cache_snapshot(self) -> list[bytes]:
        """Every hash that prefix lookup finds now, once."""
        return self._pool.hashes()

    def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes; returns how many blocks held one.

        Raises:
            UnavailableError: blocks are in use.
        """
        return self._pool.forget_all()

    def stats(self) -> EngineStats:
        """A snapshot."""
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_receiving=len(self._scheduler.receiving),
            num_held=len(self._scheduler.held),
            num_blocks=self._pool.num_blocks,
            num_free_blocks=self._pool.num_free,
            num_cached_blocks=self._pool.num_cached,
            counters=dict(self._counters),
        )

    def check_integrity(self) -> None:
        """Raise InternalError if the bookkeeping contradicts itself."""
        self._scheduler.check_integrity()

    def close(self) -> None:
        """Give the KV memory back."""
        self._storage.close()

    def _guarded(self, half: Callable[[], list[EngineEvent]]) -> list[EngineEvent]:
        if self.broken is not None:
            return []
        try:
            return half()
        except Exception as error:  # whatever it was, nobody may wait for ever
            log.exception("engine_broken")
            self.broken = error
            return [_failure(seq, error) for seq in self._scheduler.abandon()]

    def _schedule(self) -> list[EngineEvent]:
        self._output = output = self._scheduler.schedule()
        self._stalled = not (output.num_new_tokens or output.admitted or output.preempted)
        self._count(output)
        return list(output.admitted)

    def _compute(self) -> list[EngineEvent]:
        num_new_tokens = self._output.num_new_tokens
        if not num_new_tokens:
            return []
        try:
            result = self._runner.run(num_new_tokens)
        except Exception as error:  # the batch fails, the engine goes on
            log.exception("step_failed", num_sequences=len(num_new_tokens))
            return self._fail(list(num_new_tokens), error)
        self._counters["generation_tokens"] += len(result.sampled)
        return list(self._postprocessor.apply(self._output, result))

    def _fail(self, seqs: list[Sequence], error: Exception) -> list[EngineEvent]:
        self._counters["requests_failed"] += len(seqs)
        for seq in seqs:
            self._scheduler.finish(seq)
        return [_failure(seq, error) for seq in seqs]

    def _end_transfer(self, request_id: str, *, received: bool, first_token: int | None) -> None:
        seq = self._scheduler.sequences.get(request_id)
        if seq is None:
            raise RequestCancelledError(f"request {request_id} has ended")
        if seq.status is not Status.RECEIVING:
            raise InternalError(f"request {request_id} is not receiving but {seq.status.name}")
        if first_token is not None:
            self._validator.check_token("first_token", first_token)
        self._scheduler.end_transfer(seq, received=received, first_token=first_token)
        self._counters["transfers_completed" if received else "transfers_unused"] += 1
        self._stalled = False
        reason = None if first_token is None else self._postprocessor.finish_reason(seq)
        if reason is not None:
            self._events.append(self._postprocessor.ending(seq, reason))

    def _count(self, output: SchedulerOutput) -> None:
        counters = self._counters
        counters["engine_steps"] += bool(output.num_new_tokens)
        counters["computed_tokens"] += sum(output.num_new_tokens.values())
        counters["num_preemptions"] += len(output.preempted)
        counters["prefix_cache_queries"] += output.num_cache_queries
        counters["prefix_cache_hits"] += output.num_cache_hits


def _failure(seq: Sequence, error: Exception) -> Failed:
    reason = InternalError(f"request {seq.request_id}: the step failed: {error!r}")
    reason.__cause__ = error
    return Failed(request_id=seq.request_id, error=reason)
