"""Runs a model by hand: chunked prefill and decode in one batch, over shuffled blocks.

The cache starts as NaN, so whatever is read before it was written shows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from kernels.kv_write.cache import QuantizedCache
from kernels.paged_attention.scores import Scores
from shared.model.adapted.rows import AdapterRows
from shared.model.attention.base import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernels.kv_write.cache import PagedCache
    from shared.model.decoder.causal_lm import CausalLM
    from shared.model.given_embeds import GivenEmbeds
    from shared.model.native.model import NativeCausalLM
    from shared.model.spec.decoder import DecoderSpec


def poisoned_cache(
    num_blocks: int,
    num_layers: int,
    num_kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    num_kinds: int = 2,
) -> PagedCache:
    """A cache of NaN; in 8 bits the scales are."""
    shape = (num_blocks, num_layers, num_kinds, num_kv_heads, block_size, head_dim)
    if dtype.itemsize > 1:
        return torch.full(shape, float("nan"), dtype=dtype)
    blocks = torch.full((*shape[:-1], head_dim + 4), 0x7F, dtype=torch.uint8).view(dtype)
    return _poisoned(QuantizedCache.over(blocks))


def poisoned_groups(
    num_blocks: int, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype
) -> list[PagedCache]:
    """Views of blocks of NaN, one for each shape of a block; in 8 bits the scales are NaN."""
    size = max(map(math.prod, shapes), default=0)
    if dtype.itemsize > 1:
        arena = torch.full((num_blocks, size), float("nan"), dtype=dtype)
    else:
        arena = torch.full((num_blocks, size), 0x7F, dtype=torch.uint8).view(dtype)
    views = [arena[:, : math.prod(shape)].unflatten(1, shape) for shape in shapes]
    if dtype.itemsize > 1:
        return list(views)
    return [_poisoned(QuantizedCache.over(view)) for view in views]


def _poisoned(cache: QuantizedCache) -> QuantizedCache:
    cache.scales.fill_(float("nan"))
    return cache


def make_metadata(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    tables: Sequence[Sequence[int]],
    block_size: int,
) -> AttentionMetadata:
    """The metadata of a batch; tables are padded with block 0."""
    slots = [
        table[position // block_size] * block_size + position % block_size
        for num_new, length, table in zip(query_lens, seq_lens, tables, strict=True)
        for position in range(length - num_new, length)
    ]
    padded = torch.zeros(len(tables), max(map(len, tables)), dtype=torch.int32)
    for row, table in enumerate(tables):
        padded[row, : len(table)] = torch.tensor(table, dtype=torch.int32)
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    return AttentionMetadata(
        query_start_loc=starts.to(torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=padded,
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        query_lens_list=tuple(query_lens),
        seq_lens_list=tuple(seq_lens),
    )


def forget(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    tables: Sequence[Sequence[int]],
    block_size: int,
    first_seen: Callable[[int], int],
) -> tuple[list[list[int]], torch.Tensor]:
    """Return tables that name block 0 in front of what is seen, and the slots in front of it.

    first_seen: by position of a query, the first key that it sees.
    """
    kept: list[list[int]] = []
    slots: list[int] = []
    for table, num_new, length in zip(tables, query_lens, seq_lens, strict=True):
        first = max(0, first_seen(length - num_new))
        num_gone = first // block_size
        kept.append([0] * num_gone + list(table[num_gone:]))
        slots += [table[at // block_size] * block_size + at % block_size for at in range(first)]
    return kept, torch.tensor(slots, dtype=torch.int64)


class PagedDriver:
    """Greedy generation with one model and one cache of its own."""

    def __init__(
        self,
        model: CausalLM | NativeCausalLM,
        *,
        block_size: int,
        chunk: int,
        seed: int = 0,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """kv_dtype: of the cache; None: the model's."""
        self.model = model
        self.block_size = block_size
        self.chunk = chunk
        self.seed = seed
        self.kv_dtype = kv_dtype or model.dtype

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        *,
        wants_last: bool = False,
        slots: Sequence[int | None] | None = None,
    ) -> tuple[list[list[int]], list[torch.Tensor]]:
        """The tokens after each prompt, and the logits [num_tokens, vocab] they come from.

        With `wants_last` the model is asked only for the last token of each sequence in a step.
        slots: the adapter of each prompt.
        """
        totals = [len(prompt) + num_tokens for prompt in prompts]
        caches, tables = self._make_groups(totals)
        tokens = [list(prompt) for prompt in prompts]
        computed = [0] * len(prompts)
        logits: list[list[torch.Tensor]] = [[] for _ in prompts]
        while active := [i for i, total in enumerate(totals) if len(tokens[i]) < total]:
            num_new = [min(self.chunk, len(tokens[i]) - computed[i]) for i in active]
            ends = [computed[i] + n for i, n in zip(active, num_new, strict=True)]
            metadata = self._metadata(num_new, ends, [[own[i] for i in active] for own in tables])
            spans = list(zip(active, num_new, ends, strict=True))
            last = metadata.query_start_loc[1:].long() - 1
            if wants_last:
                metadata = replace(metadata, wanted=last, wanted_list=last.tolist())
            if slots is not None:
                adapters = AdapterRows.of_sequences(num_new, [slots[i] for i in active])
                metadata = replace(metadata, adapters=adapters)
            hidden = self.model.forward(
                torch.tensor([t for i, n, end in spans for t in tokens[i][end - n : end]]),
                torch.tensor([p for _, n, end in spans for p in range(end - n, end)]),
                caches,
                metadata,
            )
            rows = hidden if wants_last else hidden[last]
            for (i, _, end), row in zip(spans, self.model.compute_logits(rows), strict=True):
                computed[i] = end
                if end == len(tokens[i]):
                    tokens[i].append(int(row.argmax()))
                    logits[i].append(row.clone())
        answers = [t[len(prompt) :] for t, prompt in zip(tokens, prompts, strict=True)]
        return answers, [torch.stack(steps) for steps in logits]

    @torch.inference_mode()
    def score(
        self,
        tokens: Sequence[int],
        *,
        wanted: Sequence[int] | None = None,
        given: GivenEmbeds | None = None,
    ) -> torch.Tensor:
        """The logits behind every token, or behind those in `wanted`, computed in one step."""
        length = len(tokens)
        caches, tables = self._make_groups([length])
        metadata = self._metadata([length], [length], tables)
        if wanted is not None:
            at = torch.tensor(wanted, dtype=torch.int64)
            metadata = replace(metadata, wanted=at, wanted_list=wanted)
        positions = torch.arange(length)
        hidden = self.model.forward(torch.tensor(tokens), positions, caches, metadata, given)
        return self.model.compute_logits(hidden).clone()

    def _make_groups(
        self, totals: Sequence[int]
    ) -> tuple[tuple[PagedCache, ...], list[list[list[int]]]]:
        """By group: its view of one arena, and its tables."""
        spec = self.model.spec
        groups = spec.kv_groups
        all_tables = self._shuffled_tables([total for _ in groups for total in totals])
        num_blocks = 1 + sum(map(len, all_tables))
        row = 0 if self.kv_dtype.itemsize > 1 else 4  # bytes of a scale
        shapes = []
        for layers in groups[: spec.num_token_groups]:
            kinds, num_kv_heads, head_dim = spec.attentions[layers[0]].kv_shape
            shapes.append((len(layers), kinds, num_kv_heads, self.block_size, head_dim + row))
        caches = poisoned_groups(num_blocks, shapes, self.kv_dtype)
        for layers in groups[spec.num_token_groups :]:
            shape = num_blocks, len(layers), spec.recurrences[layers[0]].state_size
            caches.append(torch.full(shape, float("nan")))
        size = len(totals)
        return tuple(caches), [all_tables[n * size : (n + 1) * size] for n in range(len(groups))]

    def _metadata(
        self,
        num_new: Sequence[int],
        ends: Sequence[int],
        tables: Sequence[Sequence[list[int]]],
    ) -> AttentionMetadata:
        """The batch; in front of windows, tables name block 0, which stays poisoned."""
        spec, size = self.model.spec, self.block_size
        first, *others = (
            make_metadata(
                num_new,
                ends,
                [
                    _behind_window(spec, layers[0], end - num, table, size)
                    for num, end, table in zip(num_new, ends, own, strict=True)
                ],
                size,
            )
            for layers, own in zip(spec.kv_groups, tables, strict=True)
            if layers[0] in spec.attentions or not spec.attentions
        )
        states = [
            [
                (table[(end - num - 1) // size] if end > num else -1, table[(end - 1) // size])
                for num, end, table in zip(num_new, ends, own, strict=True)
            ]
            for layers, own in zip(spec.kv_groups, tables, strict=True)
            if layers[0] in spec.recurrences
        ]
        of_states = torch.tensor(states, dtype=torch.int32) if states else None
        return replace(first, others=tuple(others), states=of_states)

    def _shuffled_tables(self, totals: Sequence[int]) -> list[list[int]]:
        """Block 0 stays unused: padding points at it."""
        sizes = [-(-total // self.block_size) for total in totals]
        generator = torch.Generator().manual_seed(self.seed)
        order = iter((torch.randperm(sum(sizes), generator=generator) + 1).tolist())
        return [[next(order) for _ in range(size)] for size in sizes]


def _behind_window(
    spec: DecoderSpec, layer: int, position: int, table: list[int], size: int
) -> list[int]:
    """A table without the blocks that no token from `position` on reads."""
    if layer not in spec.attentions:
        return table
    window, is_chunked = spec.kv_window(layer), spec.attentions[layer].is_chunked
    scores = Scores(scale=1.0, window=window, is_chunked=is_chunked)
    num_free = max(0, scores.first_seen(position)) // size
    return [0] * num_free + table[num_free:]
