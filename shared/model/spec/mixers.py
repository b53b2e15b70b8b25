"""What mixes a layer's tokens: attention of two kinds, and mixers with states, as records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from shared.kv.layout import StateSection

if TYPE_CHECKING:
    from shared.model.rope import RopeConfig


class QkNorm(StrEnum):
    """What a norm of queries and keys normalises. Its kind is that of the decoder's norms."""

    #: Each head, all with one weight.
    HEAD = "head"
    #: Each head, with a weight of its own.
    EACH_HEAD = "each_head"
    #: All heads of a token together.
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureSpec:
    """A factor of queries that grows with their position p (Llama 4).

    It is 1 + scale * log(1 + floor((p + 1) / step)).
    """

    step: int
    scale: float


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
    #: It sees those from the last multiple of `window` on instead: its chunk.
    is_chunked: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    #: Queries and keys are normalised before they are rotated.
    qk_norm: QkNorm | None = None
    has_qk_norm_weights: bool = True
    #: Factor of the scores; None: 1 / sqrt(head_dim).
    score_scale: float | None = None
    #: A cap c makes c * tanh(score / c) of every scaled score.
    softcap: float | None = None
    #: Each head has a learned score that takes part in the softmax and has no value.
    has_sinks: bool = False
    #: Queries, keys and values are clamped to [-clip, clip].
    clip: float | None = None
    #: Of queries, once they are rotated.
    temperature: TemperatureSpec | None = None
    #: Each number that the heads return has a gate: it is multiplied with that one's sigmoid.
    has_gate: bool = False
    #: Each head has one: a product with the rows that queries are computed from.
    has_head_gates: bool = False
    #: The layer whose keys and values this one reads, with the same window; None: its own. With one
    #: it projects, normalises and keeps none.
    kv_source: int | None = None
    #: Values are keys before their norm: they have no projection of their own.
    values_are_keys: bool = False
    #: Each head's values are normalised, without a weight.
    has_value_norm: bool = False

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
    def projection_sizes(self) -> tuple[int, ...]:
        """Elements of queries and gates, of keys, and of values, as far as they are projected."""
        sizes = self.projected_query_size, self.kv_size, self.kv_size
        if self.kv_source is not None:
            return sizes[:1]
        return sizes[:2] if self.values_are_keys else sizes

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
    def is_chunked(self) -> bool:
        """A token sees all tokens before it."""
        return False

    @property
    def kv_source(self) -> None:
        """The layer reads rows of its own."""
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

    @property
    def state_sections(self) -> tuple[StateSection, ...]:
        """How ranks divide the state: by channel."""
        return (StateSection(self.kernel_size - 1, ((self.width, 1),)),)


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

    @property
    def state_sections(self) -> tuple[StateSection, ...]:
        """How ranks divide the state: each of the convolution's parts by its heads, and S."""
        keys = (self.num_key_heads, self.key_dim)
        return (
            StateSection(self.kernel_size - 1, (keys, keys, (self.num_heads, self.value_dim))),
            StateSection(1, ((self.num_heads, self.key_dim * self.value_dim),)),
        )


class GatedNorm(StrEnum):
    """How Mamba-2 gates and normalises what it returns, before the last product."""

    #: norm(y * silu(gate))
    AFTER_GATE = "after_gate"
    #: norm(y) * silu(gate)
    BEFORE_GATE = "before_gate"
    #: y * silu(gate)
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaFactors:
    """Factors of what the first product of Mamba-2 returns."""

    gate: float
    x: float
    b: float
    c: float
    step: float


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
    #: Of each group of heads.
    norm: GatedNorm = GatedNorm.AFTER_GATE
    #: None: all are 1.
    factors: MambaFactors | None = None

    @property
    def inner_size(self) -> int:
        """Elements of all heads."""
        return self.num_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Elements of all groups' b, and of their c."""
        return self.num_groups * self.state_dim

    @property
    def column_factors(self) -> list[float] | None:
        """By column of the first product: its factor."""
        own = self.factors
        if own is None:
            return None
        sizes = (self.inner_size,) * 2 + (self.group_size,) * 2 + (self.num_heads,)
        each = (own.gate, own.x, own.b, own.c, own.step)
        return [one for one, size in zip(each, sizes, strict=True) for _ in range(size)]

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: of x, b and c."""
        return self.inner_size + 2 * self.group_size

    @property
    def state_size(self) -> int:
        """Numbers of the state: the convolution's last inputs, and S of each head."""
        return (self.kernel_size - 1) * self.conv_width + self.inner_size * self.state_dim

    @property
    def state_sections(self) -> tuple[StateSection, ...]:
        """How ranks divide the state: each of the convolution's parts by its heads, and S."""
        groups = (self.num_groups, self.state_dim)
        return (
            StateSection(self.kernel_size - 1, ((self.num_heads, self.head_dim), groups, groups)),
            StateSection(1, ((self.num_heads, self.head_dim * self.state_dim),)),
        )


#: Mixers whose memory of the tokens before is a state of constant size.
RecurrentSpec: TypeAlias = ShortConvSpec | DeltaSpec | MambaSpec
Mixer: TypeAlias = AttentionSpec | LatentAttentionSpec | RecurrentSpec
