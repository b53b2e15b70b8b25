"""Steps from their schedule to their events, synchronous, overlapped or staged.

Overlapped, a step is scheduled and launched while the previous one still runs: its input tokens are
fed on the device, and the host learns one step late that a sequence has ended. The tokens computed
for it meanwhile are dropped. Sequences whose next token requires the last one on the host make
their steps synchronous, and so does a shortage of blocks: no sequence is preempted in flight.

In parts, a step of prompts alone on a worker ends after each part where a layer ends, if the model
can do that. Between two parts sequences that decode have steps of their own, so that one that is
handed over, or whose prompt is known, does not wait for the prompts. Prompts then have as much time
before its next token as they would have in its step.

Staged, the stages of a pipeline compute a step one after the other, so that there are as many steps
in flight as stages. Nothing is fed: a step takes only sequences whose tokens are all known, and so
none of two steps' sequences wait for each other but the chunks of a prompt, which come in order.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import structlog

from shared.engine.pipeline.launched import LaunchedStep, PartedStep
from shared.engine.schedule.output import SchedulerOutput
from shared.engine.sequence.events import Failed, NewTokens
from shared.engine.sequence.sequence import Status
from shared.engine.speculation.speculator import StepReport
from shared.engine.step.parts import RunnerInParts
from shared.engine.timing.step_bound import PART_MS
from shared.errors import InternalError, RankError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from collections.abc import Sequence as Seq

    from shared.engine.pipeline.counters import EngineCounters
    from shared.engine.pipeline.planner import StepPlanner
    from shared.engine.pipeline.postprocess import Postprocessor
    from shared.engine.prompt_hidden import PlacedHidden
    from shared.engine.schedule.scheduler import Scheduler
    from shared.engine.sequence.events import EngineEvent
    from shared.engine.sequence.sequence import Sequence
    from shared.engine.speculation.speculator import Speculator
    from shared.engine.step.followers.followers import StepRunner
    from shared.engine.step.result import StepResult
    from shared.engine.timing.step_model import StepModel

log = structlog.get_logger(__name__)


class StepPipeline:
    """At most one step fewer than stages is in flight between two calls of `finish`; overlapped,
    one.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        planner: StepPlanner,
        runner: StepRunner,
        postprocessor: Postprocessor,
        counters: EngineCounters,
        model: StepModel,
        *,
        clock: Callable[[], float],
        overlap: bool,
        num_stages: int = 1,
        kv_layers: Seq[Seq[int]] = (),
        speculator: Speculator | None = None,
    ) -> None:
        """Make the pipeline. With more than one stage, steps are staged and not overlapped.

        It teaches `model` what steps cost, by `clock`, which is in seconds. kv_layers: by group of
        layers that share a block table, those of a group without states, ascending.
        """
        self._scheduler = scheduler
        self._planner = planner
        self._runner = runner
        self._postprocessor = postprocessor
        self._counters = counters
        self._model = model
        self._clock = clock
        self._speculator = speculator
        self._num_stages = num_stages
        self._kv_layers = kv_layers
        # Hidden states of a step are lost when the next one is launched.
        self._overlap = overlap and not (speculator is not None and speculator.hidden_needs)
        self._output = SchedulerOutput(budget=0)
        #: In the order of their launches.
        self._in_flight: deque[LaunchedStep] = deque()
        #: What begins steps in parts; None: every step is launched as a whole.
        self._in_parts: RunnerInParts | None = None
        may_part = scheduler.is_chunked and not self._overlap and num_stages == 1
        if may_part and speculator is None and isinstance(runner, RunnerInParts):
            self._in_parts = runner
        #: The step in parts that is under way: the others are computed beside it.
        self._parted: PartedStep | None = None
        #: Numbers of tokens by sequence, and seconds, of what the last `finish` computed.
        self.computed: tuple[Collection[int], float] = ((), 0.0)
        self._began_s = self._collected_s = clock()

    @property
    def in_flight(self) -> bool:
        """Whether a step was launched and not collected."""
        return self._parted is not None or bool(self._in_flight)

    @property
    def may_part(self) -> bool:
        """Whether steps of prompts alone may be computed in parts."""
        return self._in_parts is not None

    @property
    def is_in_parts(self) -> bool:
        """Whether a step in parts is under way."""
        return self._parted is not None

    def schedule(self) -> tuple[list[EngineEvent], bool]:
        """Schedule a step; return the events known before its computation, and whether it is not
        empty.
        """
        if not self._scheduler.running:
            self._began_s = self._clock()
        events = self._speculate()
        output = self._next_output()
        while output.is_blocked:
            events += self._wait()
            output = self._next_output()
        self._output = output
        self._count(output)
        events += output.admitted
        events += output.landing
        return events, bool(output.num_new_tokens or output.admitted or output.preempted)

    def _next_output(self) -> SchedulerOutput:
        beside = self._parted is not None
        return self._scheduler.schedule(may_preempt=not self.in_flight, beside=beside)

    def _speculate(self) -> list[EngineEvent]:
        """Make drafts if that is worthwhile.

        All tokens must be known: nothing is in flight then, or, staged, none of these sequences is.
        """
        speculator, running = self._speculator, self._scheduler.running
        if speculator is None:
            return []
        speculator.forget(self._scheduler.departed)
        if self._num_stages > 1:
            running = [seq for seq in running if not seq.num_in_flight_tokens]
            must_wait = False
        else:
            must_wait = self.in_flight
        if not speculator.wants_drafts(running, must_wait=must_wait):
            return []
        events = self._wait() if must_wait else []
        speculator.draft(running)
        return events

    def finish(self) -> list[EngineEvent]:
        """Launch the scheduled step; collect steps until as few are in flight as may be.

        If nothing was scheduled, the earliest one is collected. Of a step in parts, one part more
        is computed.
        """
        start_s = self._clock()
        events = self._launch_scheduled()
        self.computed = self._output.num_new_tokens.values(), self._clock() - start_s
        if self._parted is not None:
            events += self._compute_part(self._parted)
        return events

    def settle(self) -> list[EngineEvent]:
        """Collect everything in flight."""
        events: list[EngineEvent] = []
        while self.in_flight:
            events += self._wait()
        return events

    @property
    def accepted_per_pos(self) -> tuple[int, ...]:
        """Numbers of accepted drafts by position; empty without speculation."""
        return () if self._speculator is None else tuple(self._speculator.accepted_per_pos)

    def receive_hidden(self, seq: Sequence, placed: PlacedHidden, first_position: int) -> None:
        """Take the hidden states of all tokens from `first_position` on, which a peer has sent."""
        if self._speculator is not None:
            self._speculator.receive(seq, placed, first_position)

    @property
    def draft_blocks(self) -> Iterable[int]:
        """The pool's blocks that a proposer holds."""
        return () if self._speculator is None else self._speculator.blocks.held

    def close(self) -> None:
        """Let a proposer release its blocks."""
        if self._speculator is not None:
            self._speculator.close()

    def abandon(self) -> None:
        """Drop the steps in flight, if there are any."""
        self._in_flight.clear()
        if self._parted is not None:
            self._parted.parts.drop()
            self._parted = None

    def _launch_scheduled(self) -> list[EngineEvent]:
        """Launch the scheduled step; collect steps until as few are in flight as may be."""
        num_new_tokens, limit = self._output.num_new_tokens, len(self._in_flight) - 1
        if num_new_tokens:
            is_first = not self.in_flight
            try:
                step = self._launch(num_new_tokens)
            except RankError:
                raise  # no later step can be computed
            except Exception as error:  # an error of the batch; the engine continues
                log.exception("step_failed", request_ids=_ids(num_new_tokens))
                return self._collect_down_to(0) + self._fail(num_new_tokens, error)
            self._postprocessor.launched(step)
            if isinstance(step, PartedStep):
                self._parted = step
                return []
            limit = self._num_kept(step)
            step.is_steady = not is_first or not limit
            self._in_flight.append(step)
        return self._collect_down_to(limit)

    def _launch(self, num_new_tokens: Mapping[Sequence, int]) -> LaunchedStep | PartedStep:
        num_new_tokens = self._planner.ordered(num_new_tokens)
        plan = self._planner.plan(num_new_tokens)
        seqs = list(num_new_tokens)
        sampled = [seqs[place] for place in plan.sampled]
        if self._in_parts is not None and self._may_part(num_new_tokens):
            parts = self._in_parts.launch_in_parts(plan)
            if parts is not None:
                began_s, self._collected_s = self._collected_s, self._clock()
                took_s = self._collected_s - max(began_s, self._began_s)
                return PartedStep(num_new_tokens, sampled, parts=parts, took_s=took_s)
        return LaunchedStep(
            num_new_tokens=num_new_tokens,
            sampled=sampled,
            running=self._runner.launch(plan),
            is_synchronous=plan.is_synchronous,
            began_s=self._began_s,
            guessing_s=None if self._speculator is None else self._speculator.guessing_s,
        )

    def _may_part(self, num_new_tokens: Mapping[Sequence, int]) -> bool:
        """Return whether others may have to wait for a step, of prompts alone."""
        return (
            self._parted is None
            and self._scheduler.limit.preference is not None
            and all(seq.num_pending_tokens > 1 for seq in num_new_tokens)
        )

    def _compute_part(self, parted: PartedStep, room_ms: float | None = None) -> list[EngineEvent]:
        """Compute a part of the step, by default until others wait; collect it at its end."""
        if room_ms is None:
            ours = self._output.room_ms
            room_ms = PART_MS if ours is None else max(0.0, ours)
        start_s = self._clock()
        try:
            running = parted.parts.advance(room_ms)
        except Exception as error:  # an error of the batch; the engine continues
            log.exception("step_failed", request_ids=_ids(parted.num_new_tokens))
            self._parted = None
            self._postprocessor.landed(parted)
            return self._fail(parted.num_new_tokens, error)
        self._collected_s = self._clock()
        parted.took_s += self._collected_s - start_s
        if running is None:
            if parted.num_new_tokens.keys() == self._output.num_new_tokens.keys():
                self.computed = (), 0.0
            return parted.layer_notices(self._kv_layers)
        self._parted = None
        self.computed = parted.num_new_tokens.values(), parted.took_s
        return self._collect(
            LaunchedStep(
                parted.num_new_tokens,
                parted.sampled,
                running=running,
                is_synchronous=True,
                began_s=start_s,
                parts_s=parted.took_s,
            )
        )

    def _num_kept(self, step: LaunchedStep) -> int:
        """Return how many steps may stay in flight behind the launch of this one."""
        if self._num_stages > 1:
            return self._num_stages - 1
        return int(self._overlap and not step.is_synchronous)

    def _collect_down_to(self, num_steps: int) -> list[EngineEvent]:
        """Collect the earliest steps until at most so many are in flight."""
        events: list[EngineEvent] = []
        while len(self._in_flight) > max(0, num_steps):
            events += self._collect(self._in_flight.popleft())
        return events

    def _wait(self) -> list[EngineEvent]:
        """Collect the earliest step in flight, if there is one, before the next launch."""
        if self._parted is not None:
            return self._compute_part(self._parted, math.inf)
        if not self._in_flight:
            return []
        step = self._in_flight.popleft()
        step.is_steady = False
        return self._collect(step)

    def _collect(self, step: LaunchedStep) -> list[EngineEvent]:
        try:
            result = self._runner.collect(step.running)
        except RankError:
            raise  # no later step can be computed
        except Exception as error:  # an error of the batch, and of a step that it feeds
            log.exception("step_failed", request_ids=_ids(step.num_new_tokens))
            failed = [step]
            if self._num_stages == 1:
                failed += self._in_flight
                self._in_flight.clear()
            seqs: dict[Sequence, None] = {}
            for each in failed:
                self._postprocessor.landed(each)
                seqs |= dict.fromkeys(each.num_new_tokens)
            return self._fail(seqs, error)
        took_s = self._measure(step, result)
        before = {}
        if self._speculator is not None:
            before = {seq: (seq.num_computed_tokens, seq.num_tokens) for seq in step.num_new_tokens}
        events = self._postprocessor.apply(step, result)
        num_tokens = sum(len(event.token_ids) for event in events if isinstance(event, NewTokens))
        self._counters["generation_tokens"] += num_tokens
        if self._speculator is not None:
            report = StepReport(
                num_rows=sum(step.num_new_tokens.values()),
                took_s=took_s,
                guessing_s=step.guessing_s,
                is_steady=step.is_steady,
                hidden=step.running.hidden,
            )
            self._speculator.after_step(report, before, events)
            self._speculator.forget(self._scheduler.departed)
        return events

    def _measure(self, step: LaunchedStep, result: StepResult) -> float:
        """Return the time [s] of a step, with the host's work since the previous collection.

        The time of steps with prompts in them is also counted as the cost of prefixes. Call it
        before the step is applied to its sequences.
        """
        now_s = self._clock()
        took_s = now_s - max(step.began_s, self._collected_s) + step.parts_s
        num_tokens = sum(step.num_new_tokens.values())
        if num_tokens > len(step.num_new_tokens) and not result.verified:
            self._counters["prefill_steps"] += 1
            self._counters["prefill_step_tokens"] += num_tokens
            self._counters["prefill_step_us"] += round(took_s * 1e6)
        has_prompts = num_tokens > len(step.num_new_tokens)
        # With stages, the first of several steps takes the time of all stages, and not of one.
        is_typical = step.is_steady or self._num_stages == 1
        if is_typical and self._model.wants(has_prompts=has_prompts):
            self._model.observe(step.work(), took_s * 1e3)
        self._collected_s = now_s
        return took_s

    def _fail(self, seqs: Iterable[Sequence], error: Exception) -> list[EngineEvent]:
        """End the sequences of `seqs` that have not ended yet."""
        running = [seq for seq in seqs if seq.status is Status.RUNNING]
        self._counters["requests_failed"] += len(running)
        for seq in running:
            self._scheduler.finish(seq)
        return [failure(seq, error) for seq in running]

    def _count(self, output: SchedulerOutput) -> None:
        counters = self._counters
        if output.num_new_tokens:
            counters["limited_steps"] += self._scheduler.limit.has_cut
            counters.add_step(sum(output.num_new_tokens.values()))
            counters["computed_prompt_tokens"] += sum(
                min(num_new, max(0, seq.num_prompt_tokens - seq.num_launched_tokens))
                for seq, num_new in output.num_new_tokens.items()
            )
        counters["num_preemptions"] += len(output.preempted)
        counters["prefix_cache_queries"] += output.num_cache_queries
        counters["prefix_cache_hits"] += output.num_cache_hits


def _ids(seqs: Iterable[Sequence]) -> list[str]:
    return [seq.request_id for seq in seqs]


def failure(seq: Sequence, error: Exception) -> Failed:
    """Return the last event of a sequence whose step failed.

    The error of a lost rank stays what it is: another worker can continue the request.
    """
    if isinstance(error, RankError):
        return Failed(request_id=seq.request_id, error=error)
    reason = InternalError(f"request {seq.request_id}: the step failed: {error!r}")
    reason.__cause__ = error
    return Failed(request_id=seq.request_id, error=reason)
