"""A tiny deterministic model that takes its whole context from the KV cache.

Each token's "KV" is its id and position. The next token follows from the ids of the whole context
as they stand in the blocks, so a wrong block table, slot or copied byte gives other tokens.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from kernels.paged_attention.scores import Scores
from shared.model.rope import RopeConfig
from shared.model.spec.decoder import DecoderSpec, LayerSpec
from shared.model.spec.feed_forwards import FeedForwardSpec
from shared.model.spec.mixers import AttentionSpec, ShortConvSpec
from shared.model.spec.norms import NormSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shared.model.attention.base import AttentionMetadata
    from shared.model.given_embeds import GivenEmbeds

VOCAB_SIZE = 97


class Chunk(int):
    """A window that begins at the last multiple of its width."""


def make_spec(
    num_layers: int = 1, windows: Sequence[int | None] = (), *, num_states: int = 0
) -> DecoderSpec:
    """Layers with one head of two numbers: a token's id and its position; or one per window, of
    which some are chunks.

    Behind them, layers with a state of two numbers: a hash of all ids, and their number.
    """
    rope = RopeConfig(
        rope_type="default",
        theta=1e4,
        head_dim=2,
        rotary_dim=2,
        original_max_positions=4096,
        max_positions=4096,
    )
    mixer = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=2, rope=rope)
    inner = FeedForwardSpec(inner_size=1)
    state = LayerSpec(mixer=ShortConvSpec(width=2, kernel_size=2), feed_forward=inner)
    return DecoderSpec(
        architecture="Fake",
        vocab_size=VOCAB_SIZE,
        hidden_size=1,
        layers=(
            *(
                LayerSpec(
                    mixer=replace(mixer, window=window, is_chunked=isinstance(window, Chunk)),
                    feed_forward=inner,
                )
                for window in windows or (None,) * num_layers
            ),
            *(state,) * num_states,
        ),
        norm=NormSpec(eps=1e-6),
        max_position_embeddings=4096,
        num_positions=4096,
    )


class FakeModel:
    """Logits of a position are a hash of all ids up to it, peaked at one token.

    The first layer of every KV group keeps the ids. Each must have the same where it looks: all
    ids, or with a window those in the window of each token.
    """

    is_recordable = True
    embeds_width = 1
    why_no_embeds: str | None = None

    def __init__(self, windows: Sequence[int | None] = (None,)) -> None:
        """`windows` are those of the groups; the first has none."""
        self._windows = tuple(windows)
        self.num_tokens_per_step: list[int] = []
        self.error: Exception | None = None

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """An embedding is an id."""
        return token_ids.float()[:, None]

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: Sequence[torch.Tensor],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None = None,
    ) -> torch.Tensor:
        self.num_tokens_per_step.append(len(token_ids))
        if given is not None:
            token_ids = token_ids.index_copy(0, given.at, given.rows[:, 0].long())
        token_ids = self.adapt(token_ids, metadata)
        if self.error is not None:
            raise self.error
        if metadata.states is not None:
            *kv_caches, states = kv_caches
            self._follow_states(token_ids, states[:, 0], metadata)
        windows = self._windows + (None,) * (len(kv_caches) - len(self._windows))
        ids, *others = (
            self._context(token_ids, positions, kv_cache, metadata.of_group(group), window)
            for group, (kv_cache, window) in enumerate(zip(kv_caches, windows, strict=True))
        )
        for other in others:
            for seq, all_ids in zip(other, ids, strict=True):
                assert seq == all_ids[len(all_ids) - len(seq) :], "groups with other tokens"
        hashes: list[float] = []
        for row, (num_new, seq) in enumerate(zip(metadata.query_lens_list, ids, strict=True)):
            hashes += list(context_hashes(seq))[len(seq) - num_new :]
            if metadata.states is not None:
                after = states[metadata.states[0, row, 1], 0].tolist()
                assert after == [hashes[-1], len(seq)], "a state of other tokens"
        hidden = torch.tensor(hashes, dtype=torch.float64).unsqueeze(1)
        return hidden if metadata.wanted is None else hidden[metadata.wanted]

    def adapt(self, token_ids: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """What adapters make of the ids; see `AdaptedFakeModel`."""
        return token_ids

    def _follow_states(
        self, token_ids: torch.Tensor, states: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """Bring the states [num_blocks, 2] of the sequences up to date."""
        assert metadata.states is not None
        start = 0
        for num, length, (before, after) in zip(
            metadata.query_lens_list,
            metadata.seq_lens_list,
            metadata.states[0].tolist(),
            strict=True,
        ):
            value, count = (1.0, 0.0) if before < 0 else states[before].tolist()
            assert count == length - num, "a state after other tokens"
            *_, value = context_hashes(token_ids[start : start + num].tolist(), value)
            states[after] = torch.tensor([value, length])
            start += num

    def _context(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        window: int | None,
    ) -> list[list[float]]:
        """Of each sequence: the ids that its new tokens read."""
        block_size = kv_cache.shape[4]
        block, offset = metadata.slot_mapping // block_size, metadata.slot_mapping % block_size
        kv_cache[block, 0, 0, 0, offset, 0] = token_ids.to(kv_cache.dtype)
        kv_cache[block, 0, 1, 0, offset, 1] = positions.to(kv_cache.dtype)
        # A hundred small tensors per step would cost more than the engine.
        ids_at, places_at = (kv_cache[:, 0, kind, 0, :, kind].numpy() for kind in range(2))
        tables = metadata.block_tables.numpy()
        found = []
        for row, (num_new, length) in enumerate(
            zip(metadata.query_lens_list, metadata.seq_lens_list, strict=True)
        ):
            scores = Scores(scale=1.0, window=window, is_chunked=isinstance(window, Chunk))
            first = max(0, scores.first_seen(length - num_new))
            table = tables[row, : -(-length // block_size)]
            ids = ids_at[table].reshape(-1)[:length]
            places = places_at[table].reshape(-1)[first:length]
            assert places.tolist() == list(range(first, length)), "KV of other positions"
            found.append(ids.tolist()[first:])
        return found

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens = torch.arange(VOCAB_SIZE, dtype=torch.float64)
        noise = torch.sin(hidden * 12.9898 + tokens * 78.233) * 43758.5453
        return (noise - noise.floor()).float() * 6


def context_hashes(ids: Iterable[float], value: float = 1.0) -> Iterator[float]:
    """Of what ends with each of the ids; `value` is that of what is before them."""
    now = int(value)
    for token in ids:
        now = (now * 31 + int(token) + 7) % 1_000_003
        yield float(now)


@functools.lru_cache(maxsize=1 << 16)
def most_likely(context_hash: float) -> int:
    """The token that follows."""
    hidden = torch.tensor([[context_hash]], dtype=torch.float64)
    return int(FakeModel().compute_logits(hidden).argmax())


@dataclass
class FakeLoadedModel:
    """What `load_model` returns."""

    model: FakeModel = field(default_factory=FakeModel)
    spec: DecoderSpec = field(default_factory=make_spec)
    dtype: torch.dtype = torch.float32
    fingerprint: str = "fake"
    num_weight_bytes: int = 0
    kv_scales: None = None
    shards: None = None
