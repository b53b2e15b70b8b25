"""Runs the model on plans: forward, logits where needed, sampling.

A step is launched and later collected. In between it runs on the device, and the next one may be
launched after it: tokens that the host has not got yet are fed on the device.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import torch

from shared.engine.prompt_rows import PromptRows
from shared.engine.sampler.logprobs import position_logprobs
from shared.engine.sampler.sampler import sample
from shared.engine.step.decode_graphs import StepOutput
from shared.engine.step.parts import ModelInParts, StepInParts
from shared.engine.step.readback import HostReadback, PinnedReadback
from shared.engine.step.result import KeptHidden, RunningStep, StepResult
from shared.engine.step.returned_rows import returned_rows
from shared.engine.step.tokens.choice import NOTHING, NativeChooser
from shared.engine.step.tokens.verification import Drafted, verify
from shared.engine.step.whole_steps import ChoosingModel, WholeSteps

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kernels.kv_write.cache import PagedCache
    from shared.engine.sampler.sampling_state import SamplingState
    from shared.engine.step.batch.batch import Batch
    from shared.engine.step.batch.builder import BatchBuilder
    from shared.engine.step.causal_model import CausalModel
    from shared.engine.step.decode_graphs import DecodeGraphs
    from shared.engine.step.hidden import CapturingModel, HiddenKeeper, HiddenNeeds
    from shared.engine.step.plan import PromptScore, StepPlan, WantedRows
    from shared.engine.step.readback import PendingTokens, Readback
    from shared.engine.step.state_rollback import StateRollback
    from shared.engine.step.tokens.choice import TokenChooser
    from shared.engine.step.tokens.row_states import RowState, RowStates
    from shared.request.answer import PositionLogprobs

#: Maximum of rows of logits at a time for the prompt's own logprobs.
_PROMPT_LOGPROB_ROWS = 256


class ModelRunner:
    """Owns the model and the KV caches, one per group of its layers."""

    #: See `StepRunner`: this one computes at once what it is asked.
    num_stages = 1

    def __init__(
        self,
        model: CausalModel,
        kv_caches: Sequence[PagedCache],
        batches: BatchBuilder,
        rows: RowStates,
        keeper: HiddenKeeper,
        chooser: TokenChooser,
        *,
        max_num_seqs: int,
        feeds_on_device: bool = True,
        graphs: DecodeGraphs | None = None,
        rollback: StateRollback | None = None,
        chooses: bool = True,
    ) -> None:
        """Make the runner. `rollback` is that of a model with states.

        `feeds_on_device`: whether a step may be launched before the host has the last one's tokens.
        `chooses`: whether the model has logits; a stage that has none gives empty results.
        """
        self._model = model
        self._kv_caches = kv_caches
        self._batches = batches
        self._rows = rows
        self._keeper = keeper
        self._chooser = chooser
        self._feeds_on_device = feeds_on_device
        self._graphs = graphs
        self._rollback = rollback
        self._chooses = chooses
        #: Computes plain steps; None: no step is computed in one call.
        self._whole: WholeSteps | None = None
        may_be_whole = chooses and graphs is None and not feeds_on_device
        if may_be_whole and isinstance(model, ChoosingModel) and isinstance(chooser, NativeChooser):
            self._whole = WholeSteps(model, kv_caches, chooser)
        self._hidden_needs: HiddenNeeds | None = None
        #: Whether the last step returned states to be sent.
        self._captures_more = False
        device = kv_caches[0].device
        #: By row: the token sampled last.
        self._last_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._readback: Readback
        if device.type == "cuda":
            self._readback = PinnedReadback(max_num_seqs)
        else:
            self._readback = HostReadback()

    def keep_hidden(self, needs: HiddenNeeds) -> None:
        """Keep hidden states in every step from now on. Steps must not overlap then."""
        self._hidden_needs = needs
        self._batches.keeps_hidden = True
        self._keeper.capture((), needs.layers)

    def launch(self, plan: StepPlan) -> RunningStep:
        """Start to compute a step. Each plan once, in order."""
        size = None
        self._rows.follow(plan)
        if plan.hidden or self._captures_more:
            self._capture(plan)
        if self._graphs is not None and self._hidden_needs is None:
            size = self._graphs.size_for(plan)
        with self._batches.lend(plan, pad_to=size) as batch:
            if self._whole is not None:
                if self._is_whole(plan):
                    return self._compute(batch, self._whole)
                self._whole.forget()
            step = self._launch(batch, is_recorded=size is not None)
        if self._rollback is not None and step.before is not None:
            verified = step.result.verified
            self._rollback.restore(step.before, plan, verified, self._model, self._batches)
        return step

    def _is_whole(self, plan: StepPlan) -> bool:
        """Return whether nothing is wanted of a step but tokens, which the host may get later."""
        wants_more = plan.is_synchronous or plan.wanted_rows or plan.hidden
        return (
            bool(plan.sampled)
            and not wants_more
            and self._hidden_needs is None
            and not self._rows.returned(plan)
        )

    def _compute(self, batch: Batch, whole: WholeSteps) -> RunningStep:
        """Compute a step in one call."""
        sampled = batch.plan.sampled
        tokens = whole.compute(batch, self._rows.sampled(batch.plan))
        result = StepResult(
            {
                place: None if token == NOTHING else token
                for place, token in zip(sampled, tokens, strict=True)
            }
        )
        return RunningStep(result, None, [])

    @torch.inference_mode()
    def launch_in_parts(self, plan: StepPlan) -> StepInParts | None:
        """Start a step that may be computed beside others; None: it must be launched as a whole.

        Each plan once, in order. One such step at a time; its sequences are in no other step until
        it is over.
        """
        model = self._model
        if not isinstance(model, ModelInParts) or not self._may_part(plan):
            return None
        self._rows.follow(plan)
        with ExitStack() as lent:
            batch = lent.enter_context(self._batches.lend(plan, beside=True))
            # Rows may be others' when it is over, if its sequences have ended.
            states, returned = self._rows.sampled(plan), self._rows.returned(plan)

            def end(hidden: torch.Tensor) -> RunningStep:
                if self._whole is not None:
                    self._whole.forget()
                result = StepResult()
                output = self._output(batch, hidden, result)
                return self._chosen(batch, states, returned, output, result)

            forward = model.begin_forward(
                batch.token_ids, batch.positions, self._kv_caches, batch.metadata, batch.given
            )
            return StepInParts(forward, end, lent.pop_all())

    def _may_part(self, plan: StepPlan) -> bool:
        """Return whether nothing of a step is kept but its results."""
        is_kept = self._hidden_needs is not None or self._captures_more or bool(plan.hidden)
        return self._chooses and self._graphs is None and not (is_kept or plan.num_drafts)

    @torch.inference_mode()
    def _launch(self, batch: Batch, *, is_recorded: bool) -> RunningStep:
        """Launch a step. The result must not refer to the batch."""
        if batch.fed_rows is not None:
            fed = self._last_tokens[batch.fed_rows.clamp(min=0)]
            batch.token_ids.copy_(torch.where(batch.fed_rows < 0, batch.token_ids, fed))
        if not self._chooses:
            self._forward(batch)
            return RunningStep(StepResult(), self._readback.nothing(), [])
        plan = batch.plan
        states, returned = self._rows.sampled(plan), self._rows.returned(plan)
        result = StepResult()
        kept: KeptHidden | None = None
        before = None if self._rollback is None else self._rollback.keep(batch)
        if self._graphs is not None and is_recorded:
            output: StepOutput | None = self._graphs.run(batch).first(len(states))
        else:
            hidden = self._forward(batch)
            output = self._output(batch, hidden, result)
            kept = self._keep(hidden, batch)
        step = self._chosen(batch, states, returned, output, result)
        step.hidden, step.before = kept, before
        return step

    def _chosen(
        self,
        batch: Batch,
        states: list[RowState],
        wanted: Collection[int],
        output: StepOutput | None,
        result: StepResult,
    ) -> RunningStep:
        """Choose the tokens of a step; `wanted`: its sequences that return hidden states."""
        plan = batch.plan
        later = [i for i, state in enumerate(states) if not state.needs_host]
        returned = None
        if output is not None and wanted:
            returned = returned_rows(output.hidden, plan, wanted, self._readback)
        logits = None if output is None else output.logits
        if logits is not None and plan.num_drafts:
            _verify_at_once(logits, plan, states, result, self._chooser)
            later = []
        elif logits is not None and len(later) < len(states):
            _sample_at_once(logits, plan, states, result, self._chooser)
        pending = self._choose(logits, batch, states, later)
        pending_of = [plan.sampled[i] for i in later]
        return RunningStep(result, pending, pending_of, returned)

    def collect(self, step: RunningStep) -> StepResult:
        """Wait for a step, and return its result. Collect steps in order, each once.

        Afterwards the KV of the step's tokens is final for every stream and every process.
        """
        if step.pending is not None:
            tokens = step.pending.wait()
            token_ids = [None if token == NOTHING else token for token in tokens]
            step.result.token_ids |= zip(step.pending_of, token_ids, strict=True)
        if step.returned is not None:
            step.result.hidden_states = step.returned.by_place()
        for place, rows in step.result.rows.items():
            step.result.rows[place] = rows.cpu()
        return step.result

    def _capture(self, plan: StepPlan) -> None:
        """Let the next step capture the states for its sequences and for a proposer."""
        needs = self._hidden_needs
        self._keeper.capture(plan.hidden.values(), () if needs is None else needs.layers)
        self._batches.keeps_hidden = needs is not None or bool(plan.hidden)
        self._captures_more = bool(plan.hidden)

    def _output(self, batch: Batch, hidden: torch.Tensor, result: StepResult) -> StepOutput | None:
        """Return the output of the sampled sequences, if any; add what else is wanted."""
        output = None
        if batch.plan.sampled:
            last = hidden if batch.logits_at is None else hidden[batch.logits_at]
            output = StepOutput(self._model.compute_logits(last), last)
        for score in batch.plan.scores:
            begin = batch.starts[score.place]
            result.prompt_logprobs[score.place] = self._score(hidden[begin:], score)
        for wanted in batch.plan.wanted_rows:
            result.rows[wanted.place] = _rows(hidden, batch, wanted)
        if batch.plan.hidden:
            self._keeper.keep(batch, hidden)
        return output

    def _forward(self, batch: Batch) -> torch.Tensor:
        return self._model.forward(
            batch.token_ids, batch.positions, self._kv_caches, batch.metadata, batch.given
        )

    def _keep(self, hidden: torch.Tensor, batch: Batch) -> KeptHidden | None:
        """Return the part of the states that a proposer needs; None if it needs none."""
        if self._hidden_needs is None:
            return None
        by_layer: Mapping[int, torch.Tensor] = {}
        if self._hidden_needs.layers:
            by_layer = cast("CapturingModel", self._model).captured()
        return KeptHidden(hidden, by_layer, batch.starts[:-1])

    def _choose(
        self, logits: torch.Tensor | None, batch: Batch, states: list[RowState], later: list[int]
    ) -> PendingTokens | None:
        """Choose the tokens of sequences in `later`, on the device; None if the step has none."""
        if logits is None or not later:
            return self._readback.nothing()
        rows = batch.sampled_rows
        if len(later) < len(states):
            at = torch.tensor(later, device=logits.device)
            logits, rows = logits[at], rows[at]
            states = [states[i] for i in later]
        # There are no drafts here: the next token follows the last computed one.
        ends, sampled = batch.metadata.seq_lens_list, batch.plan.sampled
        positions = [ends[sampled[i]] for i in later]
        tokens = self._chooser.choose(logits, states, positions)
        if self._feeds_on_device:
            # The next step computes them before the host has checked them: they must be valid ids.
            self._last_tokens.index_copy_(0, rows, tokens.clamp(min=0))
        return self._readback.start(tokens)

    def _score(self, hidden: torch.Tensor, score: PromptScore) -> list[PositionLogprobs]:
        """Return logprobs of prompt tokens: each is predicted by the hidden state before it."""
        records: list[PositionLogprobs] = []
        for start in range(0, len(score.token_ids), _PROMPT_LOGPROB_ROWS):
            targets = score.token_ids[start : start + _PROMPT_LOGPROB_ROWS]
            logits = self._model.compute_logits(hidden[start : start + len(targets)])
            num_top = [score.num_top] * len(targets)
            scores = logits if score.is_logits else logits.log_softmax(dim=-1)
            records += position_logprobs(scores, targets, num_top)
        return records


def _rows(hidden: torch.Tensor, batch: Batch, wanted: WantedRows) -> torch.Tensor:
    """Return what a plan wants of a sequence's states: float32 [n, hidden] of its own."""
    at = batch.rows_at.get(wanted.place)
    if at is not None:
        return hidden[at : at + 1].to(torch.float32, copy=True)
    rows = hidden[batch.starts[wanted.place] : batch.starts[wanted.place + 1]]
    if wanted.which is PromptRows.SUM:
        return rows.sum(dim=0, keepdim=True, dtype=torch.float32)
    return rows.to(torch.float32, copy=True)


def _verify_at_once(
    logits: torch.Tensor,
    plan: StepPlan,
    states: list[RowState],
    result: StepResult,
    chooser: TokenChooser,
) -> None:
    """Check the drafts, and sample for sequences without drafts."""
    masks = {mask.place: mask.bits for mask in plan.masks}
    ends = list(accumulate(plan.num_new_tokens))
    rows = []
    for place, state in zip(plan.sampled, states, strict=True):
        num = plan.num_drafts.get(place, 0)
        drafted = Drafted(
            state,
            plan.next_position(place),
            plan.token_ids[ends[place] - num : ends[place]],
            plan.draft_probs.get(place),
            masks.get(place),
        )
        rows.append(drafted)
    for place, verified in zip(plan.sampled, verify(logits, rows, chooser), strict=True):
        if place in plan.num_drafts:
            result.verified[place] = verified
        else:
            result.token_ids[place] = next(iter(verified.token_ids), None)
            if verified.logprobs:
                result.logprobs[place] = verified.logprobs[0]


def _sample_at_once(
    logits: torch.Tensor,
    plan: StepPlan,
    states: list[RowState],
    result: StepResult,
    chooser: TokenChooser,
) -> None:
    """Sample for sequences whose next token the host must know before it can continue."""
    masks = {mask.place: mask.bits[0] for mask in plan.masks}
    now: list[int] = []
    sampling: list[SamplingState] = []
    for i, state in enumerate(states):
        if state.sampling is not None:
            state.sampling.mask = masks.get(plan.sampled[i])
            now.append(i)
            sampling.append(state.sampling)
    choices = sample(logits[now], sampling, chooser.implementation)
    for i, choice in zip(now, choices, strict=True):
        result.token_ids[plan.sampled[i]] = choice.token_id
        if choice.logprobs is not None:
            result.logprobs[plan.sampled[i]] = choice.logprobs
