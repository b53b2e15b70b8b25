"""Runs the model on a scheduled step: forward, logits where they are needed, sampling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from shared.engine.batch import build_batch
from shared.engine.sampler.logprobs import position_logprobs
from shared.engine.sampler.sampler import sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.engine.batch import Batch
    from shared.engine.events import PositionLogprobs
    from shared.engine.sampler.sampler import Sampled
    from shared.engine.sequence import Sequence
    from shared.model.attention.base import AttentionMetadata

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
        """Hidden states [T, hidden]; writes the tokens' KV into their slots."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [n, vocab] of hidden states [n, hidden]."""
        ...


@dataclass(slots=True)
class StepResult:
    """What a step gave. Sequences that are not done with their prompt sampled nothing."""

    sampled: dict[Sequence, Sampled] = field(default_factory=dict)
    prompt_logprobs: dict[Sequence, list[PositionLogprobs]] = field(default_factory=dict)


class ModelRunner:
    """Holds the model and the KV cache [blocks, layers, 2, kv heads, block size, head dim]."""

    def __init__(self, model: CausalModel, kv_cache: torch.Tensor, *, block_size: int) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._block_size = block_size

    @torch.inference_mode()
    def run(self, num_new_tokens: Mapping[Sequence, int]) -> StepResult:
        """Compute a step. The sequences themselves are not changed."""
        batch = build_batch(
            num_new_tokens, block_size=self._block_size, device=self._kv_cache.device
        )
        hidden = self._model.forward(
            batch.token_ids, batch.positions, self._kv_cache, batch.metadata
        )
        result = StepResult()
        self._sample(hidden, batch, list(num_new_tokens), result)
        self._score_prompts(hidden, batch, list(num_new_tokens), result)
        return result

    def _sample(
        self, hidden: torch.Tensor, batch: Batch, seqs: list[Sequence], result: StepResult
    ) -> None:
        """Sample for the sequences whose last token is in the batch."""
        seq_lens = batch.metadata.seq_lens_list
        rows = [row for row, seq in enumerate(seqs) if seq_lens[row] == seq.num_tokens]
        if not rows:
            return
        last = torch.tensor([batch.starts[row + 1] - 1 for row in rows], device=hidden.device)
        logits = self._model.compute_logits(hidden[last])
        sampled = sample(logits, [seqs[row].sampling_state for row in rows])
        result.sampled = dict(zip((seqs[row] for row in rows), sampled, strict=True))

    def _score_prompts(
        self, hidden: torch.Tensor, batch: Batch, seqs: list[Sequence], result: StepResult
    ) -> None:
        """Logprobs of prompt tokens: each is predicted by the hidden state before it."""
        for row, seq in enumerate(seqs):
            if seq.prompt_logprobs is None:
                continue
            num_top = seq.request.sampling.prompt_logprobs or 0
            first = seq.num_computed_tokens + 1
            end = min(batch.metadata.seq_lens_list[row] + 1, seq.num_prompt_tokens)
            records = result.prompt_logprobs[seq] = []
            for start in range(first, end, _PROMPT_LOGPROB_ROWS):
                targets = seq.token_ids[start : min(start + _PROMPT_LOGPROB_ROWS, end)].tolist()
                begin = batch.starts[row] + start - first
                logits = self._model.compute_logits(hidden[begin : begin + len(targets)])
                logprobs = logits.float().log_softmax(dim=-1)
                records += position_logprobs(logprobs, targets, [num_top] * len(targets))
