"""Whether a module's results follow from its tokens' keys and values alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from shared.errors import ModelLoadError
from shared.model.attention.base import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.model.generic.model import TransformersCausalLM

_NUM_TOKENS, _FIRST = 8, 5
#: Rounding leaves more similarity than this: in float32, and where numbers or inputs of linears
#: have few bits.
_EXACT, _ROUGH = 0.9999, 0.99


def check_results(model: TransformersCausalLM, device: torch.device) -> None:
    """Compute some tokens by the module alone, in one step and in two, and compare.

    A module with states besides keys and values, as of a recurrent layer, loses them between steps.
    One that hides tokens by a mask of its own sees them, and one that counts positions otherwise
    than from 0 on (RoBERTa) is given wrong ones.

    Raises:
        ModelLoadError: the results differ, or there are none.
    """
    name = model.spec.architecture
    tokens = torch.arange(1, _NUM_TOKENS + 1, device=device) % model.spec.vocab_size
    try:
        alone, again = model.forward_alone(tokens), model.forward_alone(tokens)
        counted = model.forward_alone(tokens, torch.arange(_NUM_TOKENS, device=device))
        (at_once,) = _run(model, tokens, (_NUM_TOKENS,))
        _, in_two = _run(model, tokens, (_FIRST, _NUM_TOKENS))
        model.compute_logits(in_two)
    except Exception as error:  # others' code
        raise ModelLoadError(f"transformers' {name} cannot run over paged KV: {error}") from error
    # Some devices do not add up twice alike.
    if torch.equal(alone, again) and not torch.equal(alone, counted):
        raise ModelLoadError(f"transformers' {name} does not count positions from 0 on")
    # In few bits rounding can change the experts of a token; a mask of its own changes most tokens.
    is_rough = model.spec.rounds_inputs or model.dtype != torch.float32
    least = _ROUGH if is_rough else _EXACT
    if int(_differ(alone, at_once, least).sum()) > (_NUM_TOKENS // 3 if is_rough else 0):
        raise ModelLoadError(f"transformers' {name} has an attention of its own kind")
    from_alone, from_one = (_differ(each[_FIRST:], in_two, least) for each in (alone, at_once))
    if bool((from_alone & from_one).any()):
        raise ModelLoadError(f"transformers' {name} keeps more between steps than keys and values")


def _differ(expected: Tensor, actual: Tensor, least: float) -> Tensor:
    """Return for each token whether its states are less similar than `least`."""
    similarity = torch.cosine_similarity(expected.float(), actual.float(), dim=-1)
    return ~(similarity > least)


def _run(model: TransformersCausalLM, tokens: Tensor, ends: Sequence[int]) -> list[Tensor]:
    """Return the hidden states of each step; a step computes the tokens up to its end."""
    spec, device = model.spec, tokens.device
    caches = []
    for layers in spec.kv_groups:
        kinds, num_kv_heads, head_dim = spec.attentions[layers[0]].kv_shape
        shape = (1, len(layers), kinds, num_kv_heads, _NUM_TOKENS, head_dim)
        caches.append(torch.zeros(shape, dtype=model.dtype, device=device))
    found, start = [], 0
    for end in ends:
        places = torch.arange(start, end, device=device)
        batch = AttentionMetadata(
            query_start_loc=torch.tensor([0, end - start], dtype=torch.int32, device=device),
            seq_lens=torch.tensor([end], dtype=torch.int32, device=device),
            block_tables=torch.zeros(1, 1, dtype=torch.int32, device=device),
            slot_mapping=places,
            query_lens_list=[end - start],
            seq_lens_list=[end],
        )
        batch = replace(batch, others=(batch,) * (len(caches) - 1))
        found.append(model.forward(tokens[start:end], places, caches, batch))
        start = end
    return found
