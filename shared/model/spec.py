"""The computation of a decoder: records that families make of a config and executors follow.

Nothing here names a tensor of a checkpoint or a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from shared.model.rope import RopeConfig


class NormKind(StrEnum):
    """What a norm computes of a row x."""

    #: x / sqrt(mean(x^2) + eps) * weight
    RMS = "rms"
    #: x / sqrt(mean(x^2) + eps) * (1 + weight)
    OFFSET_RMS = "offset_rms"
    #: (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
    LAYER = "layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """A norm over the last dimension."""

    eps: float
    kind: NormKind = NormKind.RMS
    has_weight: bool = True
    has_bias: bool = False


class NormPlace(StrEnum):
    """Where the norms n of a layer are. x is the residual stream."""

    #: x += mixer(n(x)), then x += feed_forward(n(x))
    BEFORE = "before"
    #: x += n(mixer(n(x))), then x += n(feed_forward(n(x)))
    AROUND = "around"
    #: x += n(mixer(x)), then x += n(feed_forward(x))
    AFTER = "after"
    #: x = n(x + mixer(x)), then x = n(x + feed_forward(x))
    SUM = "sum"
    #: y = n(x), then x += mixer(y) + feed_forward(y)
    PARALLEL = "parallel"
    #: x += mixer(n(x)) + feed_forward(n(x)), with a norm each
    PARALLEL_TWO = "parallel_two"
    #: x += mixer(n(x)), and no feed-forward
    ALONE = "alone"


#: By place: the norms that a layer has.
PLACES: Mapping[NormPlace, tuple[str, ...]] = {
    NormPlace.BEFORE: ("attention_norm", "mlp_norm"),
    NormPlace.AROUND: ("attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm"),
    NormPlace.AFTER: ("attention_output_norm", "mlp_output_norm"),
    NormPlace.SUM: ("attention_norm", "mlp_norm"),
    NormPlace.PARALLEL: ("attention_norm",),
    NormPlace.PARALLEL_TWO: ("attention_norm", "mlp_norm"),
    NormPlace.ALONE: ("attention_norm",),
}


class QkNorm(StrEnum):
    """What a norm of queries and keys normalises. Its kind is that of the decoder's norms."""

    #: Each head, all with one weight.
    HEAD = "head"
    #: Each head, with a weight of its own.
    EACH_HEAD = "each_head"
    #: All heads of a token together.
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Grouped-query attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    #: None: queries and keys are not rotated.
    rope: RopeConfig | None
    #: A token sees itself and the window-1 tokens before it; None: all.
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    #: Queries and keys are normalised before they are rotated.
    qk_norm: QkNorm | None = None
    #: Factor of the scores; None: 1 / sqrt(head_dim).
    score_scale: float | None = None
    #: A cap c makes c * tanh(score / c) of every scaled score.
    softcap: float | None = None
    #: Each head has a learned score that takes part in the softmax and has no value.
    has_sinks: bool = False
    #: Queries, keys and values are clamped to [-clip, clip].
    clip: float | None = None
    #: Each number that the heads return has a gate: it is multiplied with that one's sigmoid.
    has_gate: bool = False

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return self.head_dim**-0.5 if self.score_scale is None else self.score_scale

    @property
    def query_size(self) -> int:
        """Elements of all heads' queries."""
        return self.num_heads * self.head_dim

    @property
    def projected_query_size(self) -> int:
        """Elements of all heads' queries, and of their gates behind them, if they have any."""
        return self.query_size * (2 if self.has_gate else 1)

    @property
    def kv_size(self) -> int:
        """Elements of all heads' keys, and of their values."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_shape(self) -> tuple[int, int, int]:
        """What is kept of a token: keys and values, of so many heads, each of so many numbers."""
        return 2, self.num_kv_heads, self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionSpec:
    """Attention whose keys and values are products of one short row per token (DeepSeek-V2).

    A token's row is norm(c) and rotate(p), where [c, p] = kv_down(x). Of head h the key is
    [keys_h c, p], the value is values_h c, and the query is [n, rotate(r)]. All heads' [n, r] are
    q(x), or q_up(norm(q_down(x))).
    """

    num_heads: int
    #: Numbers of q_down(x); None: queries are one product with x.
    q_rank: int | None
    #: Numbers of c.
    kv_rank: int
    #: Numbers of a head's query and key that are not rotated.
    plain_dim: int
    #: Numbers of a head's query that are rotated, and of p.
    rope_dim: int
    #: Numbers of a head's value.
    value_dim: int
    #: Of `rope_dim` numbers.
    rope: RopeConfig
    #: Factor of the scores.
    scale: float
    #: Of the norms of c and of q_down(x), which are root-mean-square norms.
    norm_eps: float = 1e-6
    #: The products with x, and the output, have biases, except for q(x).
    bias: bool = False

    @property
    def window(self) -> None:
        """A token sees all tokens before it."""
        return None

    @property
    def kv_shape(self) -> tuple[int, int, int]:
        """What is kept of a token: one row, of no heads, of so many numbers."""
        return 1, 1, self.kv_rank + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvSpec:
    """out(c * conv(b * x)), where b, c and x are projections and conv is causal, by channel."""

    width: int
    #: Tokens that the convolution reads, the token itself among them.
    kernel_size: int
    bias: bool = False

    @property
    def conv_width(self) -> int:
        """Channels of the convolution."""
        return self.width

    @property
    def state_size(self) -> int:
        """Numbers of the state: the convolution's last inputs."""
        return (self.kernel_size - 1) * self.conv_width


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec:
    """The gated delta rule: linear attention whose state forgets, and corrects what it holds.

    Of a head with the state S [key_dim, value_dim], key k, value v, query q, decay g and rate b:
    S = exp(g) * S, then S += outer(k, (v - S^T k) * b), and the result is S^T q.
    """

    num_key_heads: int
    #: Heads of values, and of states; each key serves as many neighbours.
    num_heads: int
    key_dim: int
    value_dim: int
    kernel_size: int

    @property
    def key_size(self) -> int:
        """Elements of all keys of a token, and of its queries."""
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Elements of all values of a token."""
        return self.num_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: of queries, keys and values."""
        return 2 * self.key_size + self.value_size

    @property
    def state_size(self) -> int:
        """Numbers of the state: the convolution's last inputs, and S of each head."""
        return (self.kernel_size - 1) * self.conv_width + self.value_size * self.key_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """Mamba-2: a state S [head_dim, state_dim] of each head that decays and takes in what comes.

    S = exp(-a * dt) * S + outer(dt * x, b), and the result is S c + d * x.
    """

    num_heads: int
    head_dim: int
    #: Groups of heads that share b and c.
    num_groups: int
    state_dim: int
    kernel_size: int
    conv_bias: bool = True
    bias: bool = False
    #: Limits of dt.
    min_step: float = 0.0
    max_step: float = float("inf")

    @property
    def inner_size(self) -> int:
        """Elements of all heads."""
        return self.num_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Elements of all groups' b, and of their c."""
        return self.num_groups * self.state_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: of x, b and c."""
        return self.inner_size + 2 * self.group_size

    @property
    def state_size(self) -> int:
        """Numbers of the state: the convolution's last inputs, and S of each head."""
        return (self.kernel_size - 1) * self.conv_width + self.inner_size * self.state_dim


#: Mixers whose memory of the tokens before is a state of constant size.
RecurrentSpec: TypeAlias = ShortConvSpec | DeltaSpec | MambaSpec
Mixer: TypeAlias = AttentionSpec | LatentAttentionSpec | RecurrentSpec


class Activation(StrEnum):
    """The nonlinear function of a feed-forward."""

    SILU = "silu"
    GELU = "gelu"
    #: GELU with the hyperbolic tangent of a cubic.
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    #: The square of RELU.
    RELU2 = "relu2"
    #: Of a gate g <= 7 and an up u in [-7, 7], clamped to that: (u + 1) * g * sigmoid(1.702 * g).
    CLAMPED = "clamped"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardSpec:
    """down(act(gate(x)) * up(x)), or without a gate down(act(up(x)))."""

    inner_size: int
    bias: bool = False
    activation: Activation = Activation.SILU
    is_gated: bool = True


class RouterScores(StrEnum):
    """What a router makes of the logits of experts."""

    #: Their softmax, over all experts.
    SOFTMAX = "softmax"
    #: Each one's sigmoid.
    SIGMOID = "sigmoid"


class GroupScore(StrEnum):
    """The score of a group of experts."""

    #: The sum of its two best experts' scores.
    BEST_TWO = "best_two"
    #: Its best expert's score.
    BEST = "best"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """The choice of a token's experts: those with the best scores, each weighted with its score."""

    num_experts: int
    num_chosen: int
    scores: RouterScores = RouterScores.SOFTMAX
    #: The logits have a bias.
    has_bias: bool = False
    #: A learned number is added to each score, for the choice only.
    has_choice_bias: bool = False
    #: The weights are divided by their sum.
    is_normalised: bool = True
    #: Factor of the weights.
    scale: float = 1.0
    #: Experts are chosen among those of the best groups only.
    num_groups: int = 1
    num_chosen_groups: int = 1
    group_score: GroupScore = GroupScore.BEST_TWO


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """A weighted sum of the chosen experts' feed-forwards, and of the one that all tokens share."""

    router: RouterSpec
    expert: FeedForwardSpec
    shared: FeedForwardSpec | None = None
    #: The shared one is weighted with the sigmoid of a product with the token's row.
    has_shared_gate: bool = False

    @property
    def inner_size(self) -> int:
        """Numbers per token of the widest feed-forward."""
        return max(self.expert.inner_size, self.shared.inner_size if self.shared else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """A mixer and a feed-forward, with norms, around a residual."""

    mixer: Mixer
    #: None with the norm's place `ALONE`.
    feed_forward: FeedForwardSpec | ExpertsSpec | None
    norms: NormPlace = NormPlace.BEFORE
    #: Factor of what the mixer and the feed-forward add to the residual.
    residual_multiplier: float = 1.0

    @property
    def attention(self) -> AttentionSpec:
        """The mixer of a layer with attention.

        Raises:
            InternalError: it has another.
        """
        if not isinstance(self.mixer, AttentionSpec):
            raise InternalError(f"a layer with {type(self.mixer).__name__} does not attend")
        return self.mixer


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPositions:
    """Rows that are added to the embedding by position."""

    num_rows: int
    #: The row of position 0.
    first_row: int = 0


#: Bytes of a number that is kept of each token, in a block of 16 tokens in 16 bits.
_BYTES_PER_NUMBER = 16 * 2


def group_layers(kinds: Mapping[int, Hashable]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of layers that share a block table: the layers of each, ascending.

    kinds: by layer, the kind of its KV. The layers of a group are of one kind; groups come in the
    order of their kinds. Blocks of all groups are equally long, so that groups are about as large
    as the smallest kind: few bytes of a block are unused.
    """
    by_kind: dict[Hashable, list[int]] = {}
    for layer, kind in kinds.items():
        by_kind.setdefault(kind, []).append(layer)
    size = min(map(len, by_kind.values()), default=0)
    groups = []
    for layers in by_kind.values():
        num_groups = -(-len(layers) // size)
        ends = [number * len(layers) // num_groups for number in range(num_groups + 1)]
        groups += [tuple(layers[first:end]) for first, end in pairwise(ends)]
    return tuple(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A whole decoder: embedding, layers, norm, output head.

    Logits are head(norm(x)) * logit_multiplier; a cap c makes c * tanh(logit / c) of them.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    #: All norms are of this kind.
    norm: NormSpec
    has_final_norm: bool = True
    #: Whether the output head is the embedding.
    is_tied: bool = False
    #: Factor of the embedding, rounded to the dtype of the weights.
    embedding_multiplier: float = 1.0
    #: Numbers in a row of embedding and head, if projections make the hidden size of them.
    embedding_size: int | None = None
    learned_positions: LearnedPositions | None = None
    has_head_bias: bool = False
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None
    max_position_embeddings: int
    #: KV of all tokens is kept in one group, whatever windows layers have: that of a draft.
    keeps_all_kv: bool = False
    #: Positions of the rotary angles: more than the above if RoPE is stretched.
    num_positions: int
    #: Dtype of the stored weights.
    dtype: str = "float32"
    eos_token_ids: tuple[int, ...] = ()
    #: config.json as read.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def max_model_len(self) -> int:
        """Longest sequence that the positions cover."""
        return self.num_positions

    @property
    def kv_groups(self) -> tuple[tuple[int, ...], ...]:
        """By group of layers that share a block table: the layers, ascending.

        Groups with states are the last ones.
        """
        kinds = {
            number: (self.kv_window(number), mixer.kv_shape)
            for number, mixer in self.attentions.items()
        }
        full_first = sorted(kinds, key=lambda layer: kinds[layer][0] is not None)
        groups = group_layers({layer: kinds[layer] for layer in full_first})
        return (*groups, *self._state_groups(groups))

    @property
    def num_token_groups(self) -> int:
        """Number of groups of layers with attention, which are the first ones."""
        return sum(layers[0] in self.attentions for layers in self.kv_groups)

    @property
    def attentions(self) -> dict[int, AttentionSpec | LatentAttentionSpec]:
        """The layers that keep something of each token, and their mixers."""
        mixers = {number: layer.mixer for number, layer in enumerate(self.layers)}
        return {
            n: mixer
            for n, mixer in mixers.items()
            if isinstance(mixer, AttentionSpec | LatentAttentionSpec)
        }

    @property
    def recurrences(self) -> dict[int, RecurrentSpec]:
        """The layers with states, and what they do with them."""
        mixers = {number: layer.mixer for number, layer in enumerate(self.layers)}
        return {n: mixer for n, mixer in mixers.items() if isinstance(mixer, RecurrentSpec)}

    def _state_groups(self, others: tuple[tuple[int, ...], ...]) -> Iterator[tuple[int, ...]]:
        """Yield groups with states, each about as large as a block of the `others`."""
        attentions = self.attentions
        room = max(
            (
                sum(prod(attentions[layer].kv_shape) for layer in layers) * _BYTES_PER_NUMBER
                for layers in others
            ),
            default=0,
        )
        by_size: dict[int, list[int]] = {}
        for layer, mixer in self.recurrences.items():
            by_size.setdefault(mixer.state_size, []).append(layer)
        for size, layers in by_size.items():
            most = max(1, room // (4 * size)) if room else len(layers)
            yield from (tuple(layers[n : n + most]) for n in range(0, len(layers), most))

    def kv_window(self, layer: int) -> int | None:
        """Return the window in which a layer reads keys and values; None: it reads all tokens."""
        window = self.attentions[layer].window
        is_full = window is None or window >= self.num_positions or self.keeps_all_kv
        return None if is_full else window

    def kv_place(self, layer: int) -> tuple[int, int]:
        """Return the group of a layer, and its index among that group's layers."""
        for number, layers in enumerate(self.kv_groups):
            if layer in layers:
                return number, layers.index(layer)
        raise InternalError(f"layer {layer} of {self.architecture} is in no KV group")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """By layer with attention: its window."""
        return tuple(mixer.window for mixer in self.attentions.values())

    @property
    def ropes(self) -> tuple[RopeConfig | None, ...]:
        """The rotations that layers use, each once, in the order of their first layers."""
        found: list[RopeConfig | None] = []
        for mixer in self.attentions.values():
            if mixer.rope not in found:
                found.append(mixer.rope)
        return tuple(found)

    @property
    def qk_norm(self) -> NormSpec:
        """The norm of queries and keys, where a layer has one."""
        return replace(self.norm, has_bias=False)

    @property
    def attention(self) -> AttentionSpec:
        """The common description of all layers' attention, with the window None.

        Raises:
            InternalError: they differ in more. Executors that use this compute equal layers only.
        """
        first, *others = (
            replace(self.layers[number].attention, window=None) for number in self.attentions
        )
        if self.recurrences or any(other != first for other in others):
            raise InternalError(f"the layers of {self.architecture} attend in different ways")
        return first

    @property
    def inner_size(self) -> int:
        """Numbers per token of the widest feed-forward of any layer."""
        found = (layer.feed_forward for layer in self.layers)
        return max((own.inner_size for own in found if own is not None), default=0)

    @property
    def has_latents(self) -> bool:
        """Whether a layer's attention keeps rows instead of keys and values."""
        return any(isinstance(own, LatentAttentionSpec) for own in self.attentions.values())

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps a state."""
        return bool(self.recurrences)

    @property
    def has_experts(self) -> bool:
        """Whether the computation depends on choices among experts."""
        return any(isinstance(layer.feed_forward, ExpertsSpec) for layer in self.layers)
