"""Decides what each step computes. There are no phases: every sequence's computed tokens catch up
with its tokens, as far as the budget of the step and the free blocks allow.

Running sequences come first, those that decode before those that still read their prompt; then
waiting ones are admitted in order. By urgency, a waiting one is admitted before a less urgent
prompt in progress. A sequence is admitted with blocks for everything it has to compute, or not at
all, and no sequence is admitted in a step that had to preempt.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from shared.engine.schedule.adapter_lanes import AdapterLanes
from shared.engine.schedule.gates.flight import FlightGate
from shared.engine.schedule.gates.mask import MaskGate
from shared.engine.schedule.lookahead import add_drafts
from shared.engine.schedule.output import SchedulerOutput
from shared.engine.schedule.policies import RANKS, last_admitted, least_urgent
from shared.engine.schedule.urgency import by_urgency
from shared.engine.schedule.waiting_queue import FcfsQueue, RankedQueue
from shared.engine.sequence.draft import NO_DRAFT
from shared.engine.sequence.sequence import Status
from shared.engine.settings.choices import SchedulingPolicy
from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Seq

    from shared.engine.offload.load_plan import LoadPlan
    from shared.engine.schedule.block_manager import BlockManager
    from shared.engine.schedule.chunk_limit import ChunkLimit
    from shared.engine.schedule.gates.adapter import AdapterGate
    from shared.engine.schedule.landings import Landings
    from shared.engine.schedule.urgency import Urgency
    from shared.engine.schedule.waiting_queue import WaitingQueue
    from shared.engine.sequence.sequence import Sequence


class Scheduler:
    """Owns every sequence that was added and has not ended, with its blocks."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: SchedulingPolicy = SchedulingPolicy.FCFS,
        long_prefill_token_threshold: int = 0,
        enable_chunked_prefill: bool = True,
        adapters: AdapterGate | None = None,
        num_stages: int = 1,
        limit: ChunkLimit,
        urgency: Urgency,
        landings: Landings,
    ) -> None:
        """With `adapters`, it decides whose adapter may join a step.

        With more than one stage, as many steps are in flight: see `FlightGate`. `urgency` is used
        by the policy of this name alone.
        """
        rank = RANKS[policy]
        self.blocks, self.limit = blocks, limit
        self._urgency = urgency if policy is SchedulingPolicy.URGENCY else None
        #: Whether a prompt found no block because others were admitted before it in the last step.
        self._is_crowded = False
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._long_prefill_token_threshold = long_prefill_token_threshold
        self._chunked = enable_chunked_prefill
        self._choose_victim = last_admitted if rank is None else least_urgent
        self._flights, self._masks = FlightGate(num_stages), MaskGate()
        self.waiting: WaitingQueue = FcfsQueue() if rank is None else RankedQueue(rank)
        self._adapters = adapters
        self._lanes: AdapterLanes | None = None
        if adapters is not None:
            self.waiting = self._lanes = AdapterLanes(rank)
        self.running: list[Sequence] = []
        self.loading: dict[str, Sequence] = {}
        self.receiving: dict[str, Sequence] = {}
        self.landings, landings.put_back = landings, self._put_back
        self.held: dict[str, Sequence] = {}
        #: Ended sequences to whose blocks a step in flight still writes.
        self.draining: list[Sequence] = []
        self.sequences: dict[str, Sequence] = {}
        #: Sequences that ended or were preempted since the speculator last cleared this list.
        self.departed: list[Sequence] = []
        #: Whether `departed` is filled, because a speculator clears it.
        self.notes_departed = False
        #: Sequences whose loads have ended, with an admission still to be reported.
        self._joined: list[Sequence] = []

    @property
    def is_chunked(self) -> bool:
        """Whether a step may compute a part of a prompt, or none of it."""
        return self._chunked

    @property
    def has_work(self) -> bool:
        """Whether scheduling could change anything."""
        return bool(self.running or self.waiting or self._joined or self.landings.has_news)

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        self.sequences[seq.request_id] = seq
        self.limit.note(seq)
        if self._urgency is not None:
            self._urgency.arrive(seq, self.blocks.num_cached_tokens(seq))
        self.waiting.add(seq)
        self.landings.note(seq)

    def schedule(self, *, may_preempt: bool = True, beside: bool = False) -> SchedulerOutput:
        """Choose what to compute, and take blocks for it. An empty step changes nothing.

        If a sequence would have to be preempted without `may_preempt`, the output is blocked: it
        must not be computed. Blocks taken so far stay with their sequences. `beside`: a step of
        prompts is under way, so only sequences that decode are computed, and none of that step.
        """
        output = SchedulerOutput(self._max_num_batched_tokens)
        self.blocks.begin_step()
        self._schedule_running(output, may_preempt=may_preempt, beside=beside)
        if not output.is_blocked:
            self._tell_joined(output)
            if not output.preempted:
                self._admit_waiting(output)
            output.landing = self.landings.take_news()
        return output

    def advance(self, seq: Sequence, num_new_tokens: int) -> None:
        """Advance by the tokens that a step computed: their KV is final."""
        seq.num_computed_tokens += num_new_tokens
        self.blocks.publish(seq)

    def settle(self, seq: Sequence) -> None:
        """Count a collected step of an ended sequence; after its last one, free its blocks."""
        if seq.status is Status.ENDED and not seq.num_in_flight_tokens:
            self.draining.remove(seq)
            self.blocks.free(seq)

    def end_transfer(
        self,
        seq: Sequence,
        *,
        received: bool,
        first_token: int | None,
        num_received: int | None = None,
        late_groups: Seq[int] = (),
    ) -> None:
        """End a sequence's transfer, after the last write to its blocks: let the sequence run, or
        wait for blocks of the pool if it landed in the host tier.

        If all blocks were `received` and verified, their KV is final, except that without a first
        token the last token is computed again, to sample from. Otherwise nothing received is used.
        A first token was sampled and passed on elsewhere; the sequence's grammar allows it.
        `num_received`: only so many leading tokens were to come, in whole blocks. `late_groups`:
        see `BlockManager.publish`.
        """
        if seq.status is Status.LANDING:
            self.landings.end(
                seq, received=received, first_token=first_token, num_received=num_received
            )
            return
        del self.receiving[seq.request_id]
        self.blocks.free_hidden(seq)
        # No token can be computed again from a state that it has changed.
        received &= first_token is not None or not self.blocks.has_states
        if received:
            num_final = seq.num_tokens - (first_token is None)
            if num_received is not None:
                num_final = min(num_received, num_final)
            seq.num_computed_tokens = num_final
            self.blocks.publish(seq, late_groups)
        if first_token is not None:
            seq.append_token(first_token)
        if received or first_token is not None:
            seq.prompt_logprobs = None
        seq.status = Status.RUNNING
        self.running.append(seq)

    def finish(self, seq: Sequence) -> None:
        """Stop computing a sequence. Its blocks are freed, or kept if the request says so."""
        self._leave(seq)
        if seq.request.hold_blocks and seq.num_blocks:
            seq.status = Status.HELD
            self.held[seq.request_id] = seq
        else:
            self._end(seq)

    def release(self, seq: Sequence) -> None:
        """Free the blocks of a sequence in any state, and drop the sequence."""
        self._leave(seq)
        self._end(seq)

    def abandon(self) -> list[Sequence]:
        """Drop all sequences without freeing blocks; return those that had not ended."""
        unfinished = [seq for seq in self.sequences.values() if seq.status is not Status.HELD]
        for seq in unfinished:
            if seq.status is Status.WAITING:
                self.waiting.remove(seq)
            seq.status = Status.ENDED
            seq.embeds = None
        if self._adapters is not None:
            for seq in self.sequences.values():
                self._adapters.left(seq)
        for places in (self.running, self.loading, self.receiving, self.held, self.draining):
            places.clear()
        self._joined.clear()
        self.landings.abandon()
        self.sequences.clear()
        return unfinished

    def _leave(self, seq: Sequence) -> None:
        match seq.status:
            case Status.WAITING:
                self.waiting.remove(seq)
            case Status.LOADING:
                del self.loading[seq.request_id]
            case Status.RECEIVING:
                del self.receiving[seq.request_id]
            case Status.LANDING:
                del self.landings.landing[seq.request_id]
            case Status.RUNNING:
                self.running.remove(seq)
            case Status.HELD:
                del self.held[seq.request_id]
            case Status.ENDED:
                raise InternalError(f"request {seq.request_id} has ended already")

    def _end(self, seq: Sequence) -> None:
        if seq.num_in_flight_tokens:
            self.draining.append(seq)
        else:
            self.blocks.free(seq)
        self.landings.left(seq)
        seq.status = Status.ENDED
        seq.embeds = None
        if self._adapters is not None:
            self._adapters.left(seq)
        del self.sequences[seq.request_id]
        if self.notes_departed:
            self.departed.append(seq)

    def _schedule_running(
        self, output: SchedulerOutput, *, may_preempt: bool, beside: bool
    ) -> None:
        prefilling, drafting = [], []
        # A copy: a preempted sequence leaves the list.
        known = self._flights.open(self.running)
        if beside:
            known = [seq for seq in known if not seq.num_in_flight_tokens]
        self._masks.open(known)
        for seq in known:
            if not (self._masks.lets(seq) and self._flights.lets(seq)):
                continue
            num_pending = seq.num_pending_tokens
            if num_pending > 1:
                prefilling.append(seq)
            elif not seq.awaits_end:
                self._schedule_one(seq, num_pending, output, may_preempt)
                if seq.draft is not NO_DRAFT:
                    drafting.append(seq)
        if drafting:
            add_drafts(drafting, output, self.blocks, num_spare_blocks=self._num_growing())
        self._open_limit(output, known, beside=beside, has_prompts=bool(prefilling))
        if self._urgency is None:
            for seq in prefilling:
                self._schedule_one(seq, seq.num_pending_tokens, output, may_preempt)
        else:
            self._schedule_urgent(prefilling, output, may_preempt)

    def _open_limit(
        self,
        output: SchedulerOutput,
        known: Iterable[Sequence],
        *,
        beside: bool,
        has_prompts: bool,
    ) -> None:
        """Begin with the prompts of a step, which has its sequences that decode."""
        if beside:
            self.limit.open(_decoding(known), output.num_new_tokens)
            room_ms = self.limit.close()
            output.room_ms = room_ms if output.num_new_tokens else None
        else:
            decoding = _decoding(self.running) if has_prompts or self.waiting else ()
            self.limit.open(decoding, output.num_new_tokens)

    def _schedule_urgent(
        self, prompts: list[Sequence], output: SchedulerOutput, may_preempt: bool
    ) -> None:
        """Go on with prompts by urgency, and before each admit what is more urgent than it.

        If that leaves one without a block, it waits for the next step, in which none is admitted
        before it: a step preempts none after an admission.
        """
        if self._urgency is None:
            return
        for seq in prompts:
            self._urgency.advance(seq)
        prompts.sort(key=by_urgency)
        was_crowded = self._is_crowded
        self._is_crowded = False
        for seq in prompts:
            if not (was_crowded or output.preempted or output.is_blocked):
                self._admit_waiting(output, before=seq)
            self._schedule_one(seq, seq.num_pending_tokens, output, may_preempt)
        if output.is_blocked:
            self._is_crowded = was_crowded  # it is scheduled again

    def _schedule_one(
        self, seq: Sequence, num_pending: int, output: SchedulerOutput, may_preempt: bool
    ) -> None:
        if seq.status is not Status.RUNNING or output.is_blocked:
            return  # preempted for an earlier sequence
        num_new_tokens = self._num_to_compute(num_pending, seq.num_launched_tokens, output)
        if self._chunked:
            num_new_tokens = self.blocks.num_until_checkpoint(seq, num_new_tokens)
        if num_new_tokens > 1 and seq.request.hold_blocks:
            # It cannot be preempted, so it takes no blocks that others may wait for.
            room = self.blocks.num_ready_tokens(seq) - seq.num_launched_tokens
            if room <= 0 and seq.num_in_flight_tokens:
                return
            num_new_tokens = min(num_new_tokens, max(1, room))
        if num_new_tokens and self._make_room(seq, num_new_tokens, output, may_preempt):
            self._compute(seq, num_new_tokens, output)

    def _compute(self, seq: Sequence, num_new_tokens: int, output: SchedulerOutput) -> None:
        output.add(seq, num_new_tokens)
        if seq.num_pending_tokens > 1:
            self.limit.take(num_new_tokens, seq.num_launched_tokens)
        num_tokens = seq.num_launched_tokens + num_new_tokens
        if num_new_tokens > 1 or self.blocks.has_states:
            spare = self._num_growing() if self.blocks.has_states else 0
            self.blocks.will_compute(seq, num_tokens, num_spare_blocks=spare)

    def _num_to_compute(
        self, num_pending_tokens: int, context: int, output: SchedulerOutput
    ) -> int:
        """Return how many tokens behind `context` the step has room for."""
        if num_pending_tokens <= 1:
            return min(num_pending_tokens, output.budget)
        if not self._chunked:
            return num_pending_tokens if num_pending_tokens <= output.budget else 0
        threshold = self._long_prefill_token_threshold
        is_alone = len(self.running) + len(self.waiting) <= 1
        if threshold and not is_alone:
            num_pending_tokens = min(num_pending_tokens, threshold)
        return self.limit.most(min(num_pending_tokens, output.budget), context)

    def _make_room(
        self, seq: Sequence, num_new_tokens: int, output: SchedulerOutput, may_preempt: bool
    ) -> bool:
        num_tokens = seq.num_computed_tokens + seq.num_in_flight_tokens + num_new_tokens
        while not self.blocks.try_grow(seq, num_tokens):
            if output.admitted:
                self._is_crowded = True
                return False
            if not may_preempt:
                output.is_blocked = True
                return False
            victim = self._choose_victim(self.running)
            if victim is None:
                return False  # every block is written or read by a peer, so some will come back
            self._preempt(victim, output)
            if victim is seq:
                return False
        return True

    def _preempt(self, victim: Sequence, output: SchedulerOutput) -> None:
        output.drop(victim)
        output.preempted.append(victim)
        self.running.remove(victim)
        self.blocks.free(victim)
        victim.forget_progress()
        if self.notes_departed:
            self.departed.append(victim)
        self._put_back(victim)

    def _put_back(self, seq: Sequence) -> None:
        if self._urgency is not None:
            self._urgency.put_back(seq)
        self.waiting.put_back(seq)

    def _admit_waiting(self, output: SchedulerOutput, before: Sequence | None = None) -> None:
        """Admit waiting sequences in order: all, or those that are more urgent than `before`."""
        if self._adapters is not None and self.waiting:
            self._adapters.open(self._using_adapters())
        while len(self.running) + len(self.loading) + len(self.receiving) < self._max_num_seqs:
            seq = self._next_waiting()
            if seq is None or (before is not None and by_urgency(before) < by_urgency(seq)):
                return
            if not self._try_admit(seq, output):
                return

    def _next_waiting(self) -> Sequence | None:
        if self._lanes is None or self._adapters is None:
            return self.waiting.head()
        return self._adapters.choose(self._lanes.heads())

    def _using_adapters(self) -> Iterable[Sequence]:
        """Return the sequences that steps compute, now or after they have their blocks."""
        ending = (seq for seq in self.held.values() if seq.num_in_flight_tokens)
        places = (self.running, self.loading.values(), self.receiving.values(), self.draining)
        return chain(*places, ending)

    def _try_admit(self, seq: Sequence, output: SchedulerOutput) -> bool:
        hit = self.blocks.match_prefix(seq)
        load = self.blocks.plan_load(seq, hit)
        if load is None:
            return False  # another sequence is loading its blocks
        num_hit_tokens = self.blocks.num_tokens_in(hit.num_blocks)
        num_pending = 0 if seq.awaits_transfer else seq.num_tokens - num_hit_tokens
        num_new_tokens = self._num_to_compute(num_pending, num_hit_tokens, output)
        # One for which only the limit of the step leaves nothing does not hold up those behind it.
        is_held = self._chunked and not self.limit.is_open and output.budget and hit.is_final
        if not (num_new_tokens or seq.awaits_transfer or load.num_blocks or is_held):
            return False
        num_spare_blocks = self._num_growing()
        if not self.blocks.try_admit(seq, hit, num_spare_blocks=num_spare_blocks, load=load):
            self.landings.offer(self.waiting)
            return seq.status is Status.LANDING
        self.waiting.remove(seq)
        if self._adapters is not None:
            self._adapters.admitted(seq)
        is_loading = self.blocks.load(seq, load, partial(self._end_load, seq, load))
        self.landings.left(seq)
        if is_loading:
            seq.status = Status.LOADING
            self.loading[seq.request_id] = seq
            return True
        if load.num_blocks and load.is_whole:
            self._begin_again(seq)
            return False
        self._enter(seq)
        output.admit(seq)
        if seq.status is Status.RUNNING and num_new_tokens and self._masks.lets(seq):
            if self._chunked:
                num_new_tokens = self.blocks.num_until_checkpoint(seq, num_new_tokens)
            self._compute(seq, num_new_tokens, output)
        return True

    def _end_load(self, seq: Sequence, load: LoadPlan, num_blocks: int) -> None:
        """Continue a sequence after the arrival of this number of blocks after its hits."""
        if seq.status is not Status.LOADING:
            return  # it has ended
        del self.loading[seq.request_id]
        if load.is_whole and num_blocks < load.num_blocks:
            self._begin_again(seq)
            return
        self.blocks.join_loaded(seq, num_blocks)
        self._enter(seq)
        self._joined.append(seq)

    def _begin_again(self, seq: Sequence) -> None:
        """Admit it once more, without a load: its blocks are those to continue behind one."""
        seq.may_load = False
        self.blocks.free(seq)
        seq.forget_progress()
        self._put_back(seq)

    def _tell_joined(self, output: SchedulerOutput) -> None:
        for seq in self._joined:
            if seq.status in (Status.RUNNING, Status.RECEIVING):
                output.admit(seq)
        self._joined.clear()

    def _enter(self, seq: Sequence) -> None:
        if seq.awaits_transfer:
            # One transfer per request: after a preemption the prompt is computed here.
            seq.awaits_transfer = False
            seq.status = Status.RECEIVING
            self.receiving[seq.request_id] = seq
        else:
            seq.status = Status.RUNNING
            self.running.append(seq)

    def _num_growing(self) -> int:
        """Return the number of sequences that may soon need a block: one is kept free for each."""
        active = (*self.running, *self.loading.values(), *self.receiving.values())
        return sum(1 for seq in active if not seq.request.hold_blocks)


def _decoding(running: Iterable[Sequence]) -> Iterable[Sequence]:
    """Yield the sequences that wait for their next token, in this step or not."""
    return (seq for seq in running if seq.num_pending_tokens <= 1 and not seq.awaits_end)
