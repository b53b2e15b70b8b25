"""The engine: schedule, run, postprocess. One thread at a time; knows no transport and no text."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

import structlog

from shared.engine.engine_parts import build_engine_parts, rank_memories, split_of
from shared.engine.engine_stats import read_stats
from shared.engine.interrupts import held_interrupts
from shared.engine.memory.device_blocks import DeviceBlocks
from shared.engine.memory.kv_staging import KVStaging
from shared.engine.news import wait_for_news
from shared.engine.pipeline.step_pipeline import failure
from shared.engine.profile import StepProfile
from shared.engine.requests.embeds_gate import EmbedsGate
from shared.engine.requests.validation import RequestValidator, find_receiving
from shared.engine.schedule.build import check_scheduler
from shared.engine.sequence.events import Failed
from shared.engine.sequence.sequence import Sequence, Status
from shared.engine.step.followers.followers import NO_FOLLOWERS
from shared.engine.step.parts import ModelInParts
from shared.errors import InternalError, InvalidRequestError
from shared.kv.content_log import ContentLog
from shared.request.answer import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Seq
    from pathlib import Path

    from shared.connector.remote.address import EndpointAddress
    from shared.engine.adapters.store import AdapterStore
    from shared.engine.engine_stats import EngineStats
    from shared.engine.offload.landings import LandingRefusal
    from shared.engine.sequence.events import CacheChange, EngineEvent
    from shared.engine.sequence.request import EngineRequest
    from shared.engine.settings.engine import EngineConfig
    from shared.engine.step.decode_graphs import GraphRecorder
    from shared.engine.step.followers.followers import Followers
    from shared.errors import RankError
    from shared.identity import Role
    from shared.kv.memory import KVMemory
    from shared.kv.prefix_cache import PrefixBlocks
    from shared.kv.split import KVSplit
    from shared.model.loaded import LoadedModel

log = structlog.get_logger(__name__)


class Engine:
    """Generates for many sequences at a time. Not thread-safe: see `EngineThread`.

    Each request ends with one event (`NewTokens` with a finish reason, or `Failed`); one that holds
    its blocks also needs a `release`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        *,
        recorder: GraphRecorder | None = None,
        adapters: AdapterStore | None = None,
        followers: Followers = NO_FOLLOWERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Build an engine. `recorder` replaces this device's recording of decode steps.

        `adapters` are those that it serves; the caller owns them, and attaches the model.
        `followers`: the other ranks, which have loaded the same model. By `clock`, in seconds, it
        measures its steps and the wait of prompts.

        Raises ConfigError: the settings do not fit the model or the memory.
        """
        self._embeds, self._followers = EmbedsGate(loaded.model, config), followers
        parts = build_engine_parts(
            loaded,
            config,
            recorder=recorder,
            adapters=adapters,
            followers=followers,
            clock=clock,
        )
        memory, self._parts = parts.memory, parts.model
        self.layout, self.max_model_len = memory.layout, memory.max_model_len
        self.num_blocks, self._pool = memory.num_blocks, memory.pool
        self.model_fingerprint = loaded.fingerprint
        #: Root of the block hashes; workers share blocks only if their roots are equal.
        self.namespace = memory.namespace
        #: Blocks by content; use them in the engine's thread only.
        self.prefix_cache = memory.prefix_cache
        #: The pool's blocks for hidden states of prompts, and the states wanted from peers.
        self.hidden = parts.model.hidden
        #: The content of all tiers.
        self.cached, self.adapters = parts.cached, parts.adapters
        self._scheduler, self._steps = parts.scheduler, parts.steps
        self._counters, self._postprocessor = parts.counters, parts.postprocessor
        self._validator = _validator(loaded, config, self.max_model_len)
        self._arrivals = count()
        self._events: list[EngineEvent] = []
        #: Whether nothing could be scheduled; only a call from outside can change that.
        self._stalled = False
        self._profile: StepProfile | None = None
        #: Error that broke the engine, if any. Then all sequences have failed.
        self.broken: Exception | None = None

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the model has logits for."""
        return self._parts.loaded.spec.vocab_size

    @property
    def kv_memory(self) -> KVMemory | None:
        """The memory behind the blocks; None where they live on an accelerator."""
        return self._parts.arena.memory

    @property
    def rank_memories(self) -> tuple[KVMemory, ...]:
        """The memory behind the blocks of every rank, by rank; empty on an accelerator."""
        return rank_memories(self._parts, self._followers)

    @property
    def rank_places(self) -> tuple[KVMemory | EndpointAddress, ...]:
        """Where the blocks of every rank are, by rank: here, or with a process that serves them.

        Empty on an accelerator.
        """
        return (*self.rank_memories, *self._followers.endpoints)

    def lose_rank(self, error: RankError) -> None:
        """Make the group lost: nothing more is computed with the blocks of its ranks."""
        self._followers.lose(error)

    @property
    def kv_split(self) -> KVSplit:
        """How the ranks divide the blocks of `layout`."""
        return split_of(self._parts.loaded, self.layout)

    def device_kv(self) -> DeviceBlocks:
        """Return the blocks on their device, for connectors that need no staging."""
        return DeviceBlocks(self._parts.arena.whole, self.layout)

    def stage_kv(self, num_host_blocks: int) -> KVStaging:
        """Return host memory through which an accelerator's blocks reach peers; the caller closes
        it.
        """
        return KVStaging(self._parts.arena.whole, self.layout, num_host_blocks)

    def record_contents(self) -> ContentLog:
        """Start to record the tokens of published blocks; return the record.

        Another thread may take from it while the engine's thread adds to it. A second call begins a
        new record.
        """
        contents = self._scheduler.blocks.contents = ContentLog()
        return contents

    @property
    def num_landing_blocks(self) -> int:
        """Blocks of host memory for prompts from peers while the pool is full."""
        # With a draft head they wait for the pool: their hidden states come to it.
        return 0 if self.hidden.wanted is not None else self._scheduler.landings.num_blocks

    def refuse_landings(self, reason: LandingRefusal) -> None:
        """Receive nothing in the host tier, whatever comes. Call it before the first request."""
        self._scheduler.landings.refusal = self._scheduler.landings.refusal or reason

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            InvalidRequestError: it can never be served; `param` says why.
            AdapterNotLoadedError: its adapter is not known.
            InternalError: the engine is broken.
        """
        if self.broken is not None:
            raise InternalError(f"the engine is broken: {self.broken}")
        self._validator.check(request)
        self._embeds.check(request, self._scheduler.sequences.values())
        if request.request_id in self._scheduler.sequences:
            raise InvalidRequestError(
                f"request {request.request_id} is here already", param="request_id"
            )
        seq = Sequence(
            request,
            arrival=next(self._arrivals),
            identity=request.identity(self.namespace),
            num_groups=self.layout.num_groups,
        )
        if self._parts.processors.are_wanted(request.sampling, request.prompt_token_ids):
            seq.changes_logits = seq.needs_host_tokens = True
        self.adapters.enter(request)
        self._scheduler.add(seq)
        self._stalled = False

    def prefer(self, role: Role | None) -> None:
        """Set what the worker prefers, from the next step on; running sequences go on.

        With one, prompts have `prompt_room_ms` in a step of sequences without a bound of their
        own. Without one they may fill the step.
        """
        self._scheduler.limit.preference = role

    def abort(self, request_id: str) -> None:
        """End a request now; its last event comes with the next step. Unknown ids are ignored.

        Its blocks are free at once, or after the step in flight. With `hold_blocks` they are kept:
        a peer may be reading them. No peer may still be writing to them.
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

    def complete_transfer(
        self,
        request_id: str,
        first_token: int | None = None,
        states_from: int | None = None,
        num_tokens: int | None = None,
        late_groups: Seq[int] = (),
    ) -> None:
        """Continue a request whose prompt's KV has arrived and was verified.

        `first_token` was sampled by the sender and passed on by the caller; without it the last
        prompt token is computed again. Hidden states have arrived from position `states_from` on.
        With `num_tokens`, whole blocks, only the KV of so many leading tokens has arrived: the rest
        is computed here, and there is no first token. Not for models with windows or states.
        `late_groups`: those whose first block has arrived without tokens in front of the window, so
        that no other sequence may use it.

        Raises:
            RequestCancelledError: the request has ended.
        """
        self._end_transfer(request_id, True, first_token, states_from, num_tokens, late_groups)

    def fail_transfer(self, request_id: str, first_token: int | None = None) -> None:
        """Compute the prompt here: nothing received may be used.

        A first token that was passed on is kept.

        Raises:
            RequestCancelledError: the request has ended.
        """
        self._end_transfer(request_id, False, first_token, None)

    def pin_cached(
        self, block_hashes: Seq[bytes], *, first_block: int = 0
    ) -> tuple[int, PrefixBlocks]:
        """Return the leading cached blocks, kept unchanged until `unpin`, which must follow."""
        return self.prefix_cache.pin(block_hashes, first_block=first_block)

    def unpin(self, pin_id: int) -> None:
        """Release a pin, exactly once."""
        self.prefix_cache.unpin(pin_id)
        self._stalled = False

    def has_work(self) -> bool:
        """Return whether `step` would do anything. If not, only another call can change that."""
        can_schedule = not self._stalled and self._scheduler.has_work
        return bool(self._events or self._steps.in_flight or can_schedule)

    def wait_for_news(self) -> bool:
        """Wait until blocks, a grammar's mask or an adapter may have arrived for a sequence.

        For a caller with nothing else to do. Returns False if no sequence waits for these.
        """
        if self.broken is not None:
            return False
        if not (wait_for_news(self.cached, self._scheduler.running) or self.adapters.wait()):
            return False
        self._stalled = False
        return True

    @property
    def followers(self) -> Followers:
        """The other ranks."""
        return self._followers

    def wake(self) -> None:
        """Check for blocks, masks and adapters that sequences wait for, and for lost ranks."""
        if self.broken is None and self._followers.lost is not None:
            self._events += self._break(self._followers.lost)
            return
        self.cached.poll()
        self._stalled = False

    def step(self) -> list[EngineEvent]:
        """Compute one batch; return the events since the last call, in order.

        With asynchronous scheduling these are the events of the batch before.

        An error of the model ends the sequences of that batch with `Failed`. An error of the engine
        ends all sequences and sets `broken`. Nothing is raised, but for a Ctrl-C behind the step:
        the next call returns its events.
        """
        with held_interrupts():
            self._events[:0] = self.begin_step() + self.end_step()
        return self.take_events()

    def begin_step(self) -> list[EngineEvent]:
        """Do the first half of `step`: return the events that are known before the computation."""
        return self.take_events() + self._guarded(self._schedule, "schedule")

    def take_events(self) -> list[EngineEvent]:
        """Return the events of calls since the last step, which otherwise the next step returns."""
        events, self._events = self._events, []
        return events

    def end_step(self) -> list[EngineEvent]:
        """Do the second half of `step`, the computation. No other call may come in between."""
        return self._guarded(self._finish, "compute")

    @property
    def is_in_parts(self) -> bool:
        """Whether a part of a step has been computed, and not all of it."""
        return self._steps.is_in_parts

    @property
    def may_part(self) -> bool:
        """Whether steps of prompts may be computed in parts: see `LayersComputed`."""
        return self._steps.may_part and isinstance(self._parts.loaded.model, ModelInParts)

    def settle(self) -> None:
        """Compute what is in flight to its end; its events come with the next step."""
        self._events += self._guarded(self._settle, "compute")

    def take_cache_changes(self) -> list[CacheChange]:
        """Return the changes of prefix lookup since the last call, by tier."""
        return self.cached.take_changes()

    def reset_prefix_cache(self) -> int:
        """Drop all cached prefixes in all tiers; return how many blocks of the pool had one.

        Raises:
            UnavailableError: blocks are in use.
        """
        return self.cached.forget_all()

    def stats(self) -> EngineStats:
        """Return a snapshot of state and counters."""
        return read_stats(
            self._scheduler,
            self._pool,
            self._counters,
            num_groups=self.layout.num_growing_groups,
            tiers=self.cached.stats(),
            accepted_per_pos=self._steps.accepted_per_pos,
            adapters=self.adapters.use(self._scheduler.sequences.values()),
        )

    def start_profile(self) -> None:
        """Record every step from now on.

        Raises:
            InvalidRequestError: that is done already.
        """
        if self._profile is not None:
            raise InvalidRequestError("the engine is being profiled already")
        self._profile = StepProfile()

    def stop_profile(self, folder: Path, prefix: str) -> Path:
        """End the record; return its file in `folder`, whose name begins with `prefix`.

        Raises:
            InvalidRequestError: there is no record.
        """
        profile, self._profile = self._profile, None
        if profile is None:
            raise InvalidRequestError("the engine is not being profiled")
        return profile.stop(folder, prefix)

    def check_integrity(self) -> None:
        """Raise InternalError if the bookkeeping contradicts itself."""
        check_scheduler(self._scheduler, draft_blocks=self._steps.draft_blocks)

    def close(self) -> None:
        """Free the memory; with a disk tier, first save to it what only host memory has."""
        self._steps.close()
        self._scheduler.abandon()
        self.cached.close()
        self._followers.unbuild()
        self._parts.arena.close()

    def _guarded(self, half: Callable[[], list[EngineEvent]], name: str) -> list[EngineEvent]:
        if self.broken is not None:
            return []
        try:
            if self._profile is None:
                return half()
            with self._profile.part(name):
                return half()
        except Exception as error:  # any error must end all requests
            log.exception("engine_broken")
            return self._break(error)

    def _break(self, error: Exception) -> list[EngineEvent]:
        """End all requests; return their last events."""
        self.broken = error
        self._steps.abandon()
        return [failure(seq, error) for seq in self._scheduler.abandon()]

    def _finish(self) -> list[EngineEvent]:
        events = self._steps.finish()
        self.cached.after_step(*self._steps.computed)
        return events

    def _settle(self) -> list[EngineEvent]:
        events = self._steps.settle()
        self.cached.after_step((), 0.0)  # what is final now is stored
        return events

    def _schedule(self) -> list[EngineEvent]:
        self.cached.poll()
        failed = self._postprocessor.fail_unmasked()
        for seq, error in self.adapters.failed(self._scheduler.sequences.values()):
            self._scheduler.finish(seq)
            failed.append(Failed(request_id=seq.request_id, error=error))
        events, did_anything = self._steps.schedule()
        self._parts.arena.reach(self._pool.num_touched)
        # A step in flight may end sequences and so free blocks.
        self._stalled = not (did_anything or self._steps.in_flight)
        return failed + events

    def _end_transfer(
        self,
        request_id: str,
        received: bool,
        first_token: int | None,
        states_from: int | None,
        num_tokens: int | None = None,
        late_groups: Seq[int] = (),
    ) -> None:
        seq = find_receiving(self._scheduler.sequences, request_id)
        placed = seq.hidden
        if first_token is not None:
            self._validator.check_first_token(seq, first_token)
        self._scheduler.end_transfer(
            seq,
            received=received,
            first_token=first_token,
            num_received=num_tokens,
            late_groups=late_groups,
        )
        self._counters["transfers_completed" if received else "transfers_unused"] += 1
        self._stalled = False
        reason = None if first_token is None else self._postprocessor.finish_reason(seq)
        if reason is not None:
            self._events.append(self._postprocessor.ending(seq, reason))
        elif placed is not None and states_from is not None:
            self._steps.receive_hidden(seq, placed, states_from)


def _validator(loaded: LoadedModel, config: EngineConfig, max_model_len: int) -> RequestValidator:
    returned = config.hidden_states_policy(loaded.spec.hidden_size)
    return RequestValidator(loaded.spec, max_model_len, returned)
