"""Runs the model on a scheduled step: forward, logits where they are needed, sampling.

A step is launched and later collected. In between it runs on the device, and the next one may be
launched behind it: tokens that the host has not seen are fed on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

import torch

from shared.engine.sampler.logprobs import position_logprobs
from shared.engine.sampler.sampler import sample
from shared.engine.sequence.draft import NO_DRAFT
from shared.engine.step.readback import HostReadback, PinnedReadback
from shared.engine.step.token_choice import NOTHING, choose_tokens
from shared.engine.step.verification import verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.step.batch import Batch, BatchBuilder
    from shared.engine.step.decode_graphs import DecodeGraphs
    from shared.engine.step.hidden import CapturingModel, HiddenNeeds
    from shared.engine.step.readback import PendingTokens, Readback
    from shared.engine.step.states_pool import StatesKeeper
    from shared.engine.step.verification import Verified
    from shared.model.attention.base import AttentionMetadata
    from shared.request.answer import PositionLogprobs

#: Rows of logits that exist at a time when the prompt's own logprobs are wanted.
_PROMPT_LOGPROB_ROWS = 256


class CausalModel(Protocol):
    """What the engine needs of a model."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Hidden states of the wanted tokens; writes all tokens' KV into their slots.

        They belong to the caller: no later call changes them.
        """
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [n, vocab] of hidden states [n, hidden].

        They belong to the caller, who may write to them: no later call reads or changes them.
        """
        ...


@dataclass(slots=True)
class StepResult:
    """What a step gave. Sequences that are not done with their prompt sampled nothing."""

    #: None where no token was left with a finite logit.
    token_ids: dict[Sequence, int | None] = field(default_factory=dict)
    #: Of those sequences that had drafts, instead.
    verified: dict[Sequence, Verified] = field(default_factory=dict)
    logprobs: dict[Sequence, PositionLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[Sequence, list[PositionLogprobs]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeptHidden:
    """Hidden states of all tokens of a step, [num_tokens, hidden] each; no later step's."""

    final: torch.Tensor
    by_layer: Mapping[int, torch.Tensor]
    #: Where each sequence's rows begin.
    first_rows: dict[Sequence, int]


@dataclass(slots=True)
class LaunchedStep:
    """A step that runs, or has run."""

    num_new_tokens: Mapping[Sequence, int]
    #: Those of its sequences that are sampled, in the order of the batch.
    sampled: list[Sequence]
    #: What the host knows already.
    result: StepResult
    #: The tokens that it does not know, and whose they are.
    pending: PendingTokens | None
    pending_of: list[Sequence]
    #: Whether the next step must wait until this one is collected.
    is_synchronous: bool
    #: What a proposer wants to see of it.
    hidden: KeptHidden | None = None
    #: time.monotonic() when it was scheduled.
    began_s: float = 0.0
    #: What guessing took before it; None if nobody was asked to guess.
    guessing_s: float | None = None
    #: Whether it took what one of many such steps takes: not where overlapping began or ended.
    is_steady: bool = True


class ModelRunner:
    """Holds the model and the KV cache [blocks, layers, 2, kv heads, block size, head dim]."""

    def __init__(
        self,
        model: CausalModel,
        kv_cache: torch.Tensor,
        batches: BatchBuilder,
        states: StatesKeeper,
        *,
        max_num_seqs: int,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._batches = batches
        self._states = states
        self._graphs = graphs
        self._hidden_needs: HiddenNeeds | None = None
        #: Whether the last step gave states that are to be sent.
        self._captures_more = False
        device = kv_cache.device
        #: Of each row of the batch builder: the token sampled last.
        self._last_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._readback: Readback
        if device.type == "cuda":
            self._readback = PinnedReadback(max_num_seqs)
        else:
            self._readback = HostReadback()

    def keep_hidden(self, needs: HiddenNeeds) -> None:
        """Bring hidden states with every step from now on. Steps must not overlap then."""
        self._hidden_needs = needs
        self._batches.keeps_hidden = True
        self._states.capture((), needs.layers)

    @torch.inference_mode()
    def launch(self, num_new_tokens: Mapping[Sequence, int]) -> LaunchedStep:
        """Start to compute a step. The sequences themselves are not changed."""
        size, senders = None, self._states.senders(num_new_tokens)
        if senders or self._captures_more:
            self._capture(senders)
        if self._graphs is not None and self._hidden_needs is None and not senders:
            size = self._graphs.size_for(num_new_tokens)
        with self._batches.lend(num_new_tokens, pad_to=size) as batch:
            return self._launch(num_new_tokens, batch, senders, is_recorded=size is not None)

    def _launch(
        self,
        num_new_tokens: Mapping[Sequence, int],
        batch: Batch,
        senders: list[Sequence],
        *,
        is_recorded: bool,
    ) -> LaunchedStep:
        """Nothing of the batch may stay behind in what is returned."""
        if batch.fed_rows is not None:
            fed = self._last_tokens[batch.fed_rows.clamp(min=0)]
            batch.token_ids.copy_(torch.where(batch.fed_rows < 0, batch.token_ids, fed))
        seqs = [batch.seqs[i] for i in batch.sampled]
        later = [i for i, seq in enumerate(seqs) if not seq.needs_host_tokens]
        result = StepResult()
        kept: KeptHidden | None = None
        if self._graphs is not None and is_recorded:
            logits: torch.Tensor | None = self._graphs.run(batch)[: len(seqs)]
        else:
            logits, kept = self._run_eagerly(batch, result, senders)
        if logits is not None and len(logits) > len(seqs):  # there are drafts
            _verify_at_once(logits, seqs, result)
            later = []
        elif logits is not None and len(later) < len(seqs):
            _sample_at_once(logits, seqs, result)
        return LaunchedStep(
            num_new_tokens=num_new_tokens,
            sampled=seqs,
            result=result,
            pending=self._choose(logits, batch.sampled_rows, seqs, later),
            pending_of=[seqs[i] for i in later],
            is_synchronous=len(later) < len(seqs) or bool(result.prompt_logprobs),
            hidden=kept,
        )

    def collect(self, step: LaunchedStep) -> StepResult:
        """Wait for a step, and say what it gave. Steps are collected in order, each once.

        Afterwards the KV of the step's tokens is final for every stream and every process.
        """
        if step.pending is not None:
            tokens = step.pending.wait()
            token_ids = [None if token == NOTHING else token for token in tokens]
            step.result.token_ids |= zip(step.pending_of, token_ids, strict=True)
        return step.result

    def _capture(self, senders: list[Sequence]) -> None:
        """Have the next step give what these sequences, and a proposer, want of it."""
        needs = self._hidden_needs
        self._states.capture(senders, () if needs is None else needs.layers)
        self._batches.keeps_hidden = needs is not None or bool(senders)
        self._captures_more = bool(senders)

    def _run_eagerly(
        self, batch: Batch, result: StepResult, senders: list[Sequence]
    ) -> tuple[torch.Tensor | None, KeptHidden | None]:
        """Logits of the sequences that are sampled, if any, and the states for a proposer."""
        hidden = self._model.forward(
            batch.token_ids, batch.positions, self._kv_cache, batch.metadata
        )
        logits = None
        if batch.sampled:
            last = hidden if batch.logits_at is None else hidden[batch.logits_at]
            logits = self._model.compute_logits(last).float()
        self._score_prompts(hidden, batch, result)
        if senders:
            self._states.keep(senders, batch, hidden)
        return logits, self._keep(hidden, batch)

    def _keep(self, hidden: torch.Tensor, batch: Batch) -> KeptHidden | None:
        """What a proposer wants to see of the step; None if it wants nothing."""
        if self._hidden_needs is None:
            return None
        by_layer: Mapping[int, torch.Tensor] = {}
        if self._hidden_needs.layers:
            by_layer = cast("CapturingModel", self._model).captured()
        first_rows = dict(zip(batch.seqs, batch.starts, strict=False))
        return KeptHidden(hidden, by_layer, first_rows)

    def _choose(
        self,
        logits: torch.Tensor | None,
        rows: torch.Tensor,
        seqs: list[Sequence],
        later: list[int],
    ) -> PendingTokens | None:
        """Choose the tokens of those in `later`, on the device; None if the step is over."""
        if logits is None or not later:
            return self._readback.nothing()
        if len(later) < len(seqs):
            at = torch.tensor(later, device=logits.device)
            logits, rows = logits[at], rows[at]
        chosen = choose_tokens(logits, [seqs[i] for i in later])
        self._last_tokens.index_copy_(0, rows, chosen.to_feed)
        return self._readback.start(chosen.for_host)

    def _score_prompts(self, hidden: torch.Tensor, batch: Batch, result: StepResult) -> None:
        """Logprobs of prompt tokens: each is predicted by the hidden state before it."""
        for row, seq in enumerate(batch.seqs):
            if seq.prompt_logprobs is None:
                continue
            num_top = seq.request.sampling.prompt_logprobs or 0
            first = seq.num_computed_tokens + seq.num_in_flight_tokens + 1
            end = min(batch.metadata.seq_lens_list[row] + 1, seq.num_prompt_tokens)
            records = result.prompt_logprobs[seq] = []
            for start in range(first, end, _PROMPT_LOGPROB_ROWS):
                targets = seq.token_ids[start : min(start + _PROMPT_LOGPROB_ROWS, end)].tolist()
                begin = batch.starts[row] + start - first
                records += self._score(hidden[begin : begin + len(targets)], targets, num_top)

    def _score(
        self, hidden: torch.Tensor, targets: list[int], num_top: int
    ) -> list[PositionLogprobs]:
        """Logprobs of these tokens behind these hidden states."""
        logprobs = self._model.compute_logits(hidden).float().log_softmax(dim=-1)
        return position_logprobs(logprobs, targets, [num_top] * len(targets))


def _verify_at_once(logits: torch.Tensor, seqs: list[Sequence], result: StepResult) -> None:
    """Check the drafts, and sample for those that have none."""
    for seq, verified in zip(seqs, verify(logits, seqs), strict=True):
        if seq.draft is not NO_DRAFT:
            result.verified[seq] = verified
        else:
            result.token_ids[seq] = next(iter(verified.token_ids), None)
            if verified.logprobs:
                result.logprobs[seq] = verified.logprobs[0]


def _sample_at_once(logits: torch.Tensor, seqs: list[Sequence], result: StepResult) -> None:
    """Sample for those whose next token the host must know before it can go on."""
    now = [i for i, seq in enumerate(seqs) if seq.needs_host_tokens]
    sampled = sample(logits[now], [seqs[i].sampling_state for i in now])
    for i, choice in zip(now, sampled, strict=True):
        result.token_ids[seqs[i]] = choice.token_id
        if choice.logprobs is not None:
            result.logprobs[seqs[i]] = choice.logprobs
