"""The part of a layer that takes each token alone: a feed-forward, or a choice among experts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """down(act(gate(x) * factor) * up(x)), or without a gate down(act(up(x)))."""

    inner_size: int
    bias: bool = False
    activation: Activation = Activation.SILU
    is_gated: bool = True
    #: The factor of gates.
    gate_multiplier: float = 1.0


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
    #: It reads norm(x) * s / sqrt(hidden_size) with a learned s, where x is the residual stream and
    #: the norm has no weight. Otherwise it reads what experts read.
    has_input_scale: bool = False
    #: The weights have learned factors by expert.
    has_expert_scale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """A weighted sum of the chosen experts' feed-forwards, and of the one that all tokens share."""

    router: RouterSpec
    expert: FeedForwardSpec
    shared: FeedForwardSpec | None = None
    #: The shared one is weighted with the sigmoid of a product with the token's row.
    has_shared_gate: bool = False
    #: A chosen expert's weight is a factor of what it reads, not of what it returns.
    scales_input: bool = False
    #: The shared one reads y, the layer's norm of the residual stream x; chosen ones read a norm of
    #: their own: norm(shared(y)) + norm(experts(norm(x))).
    is_apart: bool = False
    #: Chosen ones read down(x), which has so many numbers, and up() of their sum is added.
    latent_size: int | None = None
    #: Those two have biases.
    has_latent_bias: bool = False
    #: The numbers of the experts that are in this part of a decoder, which adds nothing for the
    #: others; None: all.
    own: range | None = None

    @property
    def inner_size(self) -> int:
        """Numbers per token of the widest feed-forward."""
        return max(self.expert.inner_size, self.shared.inner_size if self.shared else 0)
