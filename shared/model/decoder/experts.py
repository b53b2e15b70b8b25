"""Feed-forwards of experts, over packed tokens [num_tokens, hidden]."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import linear

from kernels.grouped_matmul import group_rows
from kernels.weighted_sum import weighted_sum
from shared.model.decoder.layers import GatedMLP, NoNorm, PlainMLP, make_norm
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear
from shared.model.linear.stacked import StackedLinears
from shared.model.spec.feed_forwards import ExpertsSpec, GroupScore, RouterScores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from shared.model.linear.base import LinearMethod
    from shared.model.spec.feed_forwards import FeedForwardSpec, RouterSpec
    from shared.model.spec.norms import NormSpec

#: So that no sum of weights is zero.
_LEAST = 1e-20


def make_feed_forward(
    own: FeedForwardSpec | ExpertsSpec | None,
    *,
    hidden: int,
    norm: NormSpec,
    dtype: torch.dtype,
    implementation: str = "torch",
    method: LinearMethod = DENSE,
) -> Experts | GatedMLP | PlainMLP | nn.Identity:
    """Return the feed-forward that a description asks for; for None one that is not run.

    norm: of norms that it may have.
    """
    if own is None:
        return nn.Identity()
    if isinstance(own, ExpertsSpec):
        kind = Experts if own.own is None else OwnExperts
        return kind(
            own,
            hidden=hidden,
            norm=norm,
            dtype=dtype,
            implementation=implementation,
            method=method,
        )
    return _make_dense(
        own, hidden=hidden, dtype=dtype, implementation=implementation, method=method
    )


def _make_dense(
    own: FeedForwardSpec,
    *,
    hidden: int,
    dtype: torch.dtype,
    implementation: str,
    method: LinearMethod,
) -> GatedMLP | PlainMLP:
    """Return a feed-forward without experts; the arguments are those of `make_feed_forward`."""
    if own.is_gated:
        return GatedMLP(
            own, hidden=hidden, dtype=dtype, implementation=implementation, method=method
        )
    return PlainMLP(own, hidden=hidden, dtype=dtype, method=method)


class Experts(nn.Module):
    """Each token's chosen experts, and the one that all tokens share."""

    def __init__(
        self,
        own: ExpertsSpec,
        *,
        hidden: int,
        norm: NormSpec,
        dtype: torch.dtype,
        implementation: str = "torch",
        method: LinearMethod = DENSE,
    ) -> None:
        """implementation: see `GatedMLP`."""
        super().__init__()
        self.spec = own
        router = own.router
        self.router = FusedLinear(
            in_size=hidden, out_sizes=(router.num_experts,), bias=router.has_bias, dtype=dtype
        )
        self.choice_bias: nn.Parameter | None = None
        if router.has_choice_bias:
            bias = torch.empty(router.num_experts, dtype=torch.float32)
            self.choice_bias = nn.Parameter(bias, requires_grad=False)
        make_dense = partial(_make_dense, dtype=dtype, implementation=implementation, method=method)
        made = [
            make_dense(own.expert, hidden=own.latent_size or hidden)
            for _ in own.own or range(router.num_experts)
        ]
        self.experts = nn.ModuleList(made)
        self._together: _Together | None = None
        if implementation == "triton" and method is DENSE and own.own is None:
            self._together = _Together(made, own, implementation)
        self.shared = None if own.shared is None else make_dense(own.shared, hidden=hidden)
        self.latent_down, self.latent_up = self._make_latent(own, hidden, dtype, method)
        self.shared_gate: FusedLinear | None = None
        if own.has_shared_gate:
            self.shared_gate = FusedLinear(in_size=hidden, out_sizes=(1,), bias=False, dtype=dtype)
        self._make_scales(own, hidden, dtype)
        make = partial(make_norm, size=hidden, dtype=dtype, implementation=implementation)
        #: Of the router, of the chosen experts, and of both parts' results.
        self.router_norm, self.input_norm, self.output_norm, self.shared_norm = (
            make(replace(norm, has_weight=has_weight, has_bias=False)) if wanted else NoNorm()
            for wanted, has_weight in (
                (router.has_input_scale, False),
                *((own.is_apart, True),) * 3,
            )
        )

    @staticmethod
    def _make_latent(
        own: ExpertsSpec, hidden: int, dtype: torch.dtype, method: LinearMethod
    ) -> tuple[FusedLinear | None, FusedLinear | None]:
        """See `ExpertsSpec.latent_size`."""
        if own.latent_size is None:
            return None, None
        make = partial(FusedLinear, bias=own.has_latent_bias, dtype=dtype, method=method)
        return (
            make(in_size=hidden, out_sizes=(own.latent_size,)),
            make(in_size=own.latent_size, out_sizes=(hidden,)),
        )

    def _make_scales(self, own: ExpertsSpec, hidden: int, dtype: torch.dtype) -> None:
        self.router_scale: nn.Parameter | None = None
        self.expert_scale: nn.Parameter | None = None
        if own.router.has_input_scale:
            self.router_scale = nn.Parameter(torch.empty(hidden, dtype=dtype), requires_grad=False)
        if own.router.has_expert_scale:
            scale = torch.empty(own.router.num_experts, dtype=dtype)
            self.expert_scale = nn.Parameter(scale, requires_grad=False)

    def forward(self, x: Tensor, stream: Tensor) -> Tensor:
        """Map [num_tokens, hidden] to the same shape.

        stream: the residual stream, of which x is the norm. The experts of a token are added in the
        order of their numbers.
        """
        if self.spec.is_apart:
            assert self.shared is not None
            chosen = self._chosen(self.input_norm(stream), stream)
            normed: Tensor = self.shared_norm(self.shared(x)) + self.output_norm(chosen)
            return normed
        total = self._chosen(x, stream)
        if self.shared is None:
            return total
        common: Tensor = self.shared(x)
        if self.shared_gate is not None:
            common = self.shared_gate(x)[0].sigmoid() * common
        return total + common

    @property
    def is_recordable(self) -> bool:
        """See `CausalLM.is_recordable`: whether the host does not read which ones are chosen."""
        return self._together is not None

    def _chosen(self, x: Tensor, stream: Tensor) -> Tensor:
        """The weighted sum of the chosen experts."""
        read = x if self.router_scale is None else self._router_rows(stream, self.router_scale)
        chosen, weights = choose(self._logits(read), self.spec.router, self.choice_bias)
        if self.expert_scale is not None:
            weights = weights * self.expert_scale[chosen]
        add_up = self._together or self._one_by_one
        if self.latent_down is None or self.latent_up is None:
            return add_up(x, chosen, weights.to(x.dtype))
        (rows,) = self.latent_down(x)
        total: Tensor = self.latent_up(add_up(rows, chosen, weights.to(x.dtype)))[0]
        return total

    def _one_by_one(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of each token's experts; the host reads which are chosen."""
        total = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            token, place = (chosen == number).nonzero(as_tuple=True)
            weight = weights[token, place].unsqueeze(-1)
            if self.spec.scales_input:
                out: Tensor = self.experts[number](x[token] * weight)
            else:
                out = self.experts[number](x[token]) * weight
            total.index_add_(0, token, out)
        return total

    def _router_rows(self, stream: Tensor, scale: Tensor) -> Tensor:
        """See `RouterSpec.has_input_scale`."""
        rows: Tensor = self.router_norm(stream) * scale * stream.shape[-1] ** -0.5
        return rows

    def _logits(self, x: Tensor) -> Tensor:
        """Float32 [num_tokens, num_experts]. Those for sigmoids are computed in float32."""
        if self.spec.router.scores is RouterScores.SIGMOID:
            logits: Tensor = linear(x.float(), self.router.weight.float())
            return logits
        own: Tensor = self.router(x)[0]
        return own.float()


class OwnExperts(Experts):
    """Some of the experts: see `ExpertsSpec.own`. Their modules have the numbers of the whole."""

    def __init__(self, own: ExpertsSpec, **settings: Any) -> None:
        """settings: those of `Experts`."""
        super().__init__(own, **settings)
        assert own.own is not None
        self._own = own.own
        others = [nn.Identity() for _ in range(self._own.start)]
        #: The last one stands for all experts that are elsewhere.
        self.experts = nn.ModuleList([*others, *self.experts, _Nothing()])

    def _one_by_one(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        is_own = (chosen >= self._own.start) & (chosen < self._own.stop)
        return super()._one_by_one(x, chosen.where(is_own, -1), weights)


class _Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class _Together:
    """The weighted sum of each token's experts: those of all tokens in one product."""

    def __init__(
        self, experts: Sequence[GatedMLP | PlainMLP], own: ExpertsSpec, implementation: str
    ) -> None:
        """Take experts with dense weights that are not filled yet."""
        self._entry, self._down = (
            StackedLinears(linears, implementation)
            for linears in ([e.entry for e in experts], [e.down for e in experts])
        )
        self._gate: Callable[..., Tensor] = experts[0].gate
        self._own, self._implementation = own, implementation

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """x: [num_tokens, hidden]; chosen, weights: [num_tokens, num_chosen]."""
        chosen, places = chosen.sort(dim=-1)
        weights = weights.gather(-1, places)
        factors: Tensor | None = weights
        if self._own.scales_input:
            x, factors = (x[:, None] * weights[..., None]).flatten(0, 1), None
        groups = group_rows(chosen.flatten(), self._own.router.num_experts)
        (rows,) = self._down(self._gate(*self._entry(x, groups)), groups)
        return weighted_sum(rows, factors, chosen.shape[1], implementation=self._implementation)


def choose(logits: Tensor, router: RouterSpec, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the numbers of the chosen experts, int64 [num_tokens, num_chosen], and their weights.

    logits: float32 [num_tokens, num_experts]; bias: see `RouterSpec.has_choice_bias`.
    """
    is_sigmoid = router.scores is RouterScores.SIGMOID
    scores = logits.sigmoid() if is_sigmoid else logits.softmax(dim=-1)
    # Of large logits, other scores are equal.
    merits = logits if bias is None and router.num_groups == 1 else scores
    if bias is not None:
        merits = scores + bias
    if router.num_groups > 1:
        grouped = merits.unflatten(-1, (router.num_groups, -1))
        num_best = 2 if router.group_score is GroupScore.BEST_TWO else 1
        best = grouped.topk(num_best, dim=-1).values.sum(dim=-1)
        kept = best.topk(router.num_chosen_groups, dim=-1).indices
        is_out = torch.ones_like(best, dtype=torch.bool).scatter_(-1, kept, value=False)
        merits = grouped.masked_fill(is_out.unsqueeze(-1), -torch.inf).flatten(-2)
    chosen = merits.topk(router.num_chosen, dim=-1).indices
    weights = scores.gather(-1, chosen)
    if router.is_normalised:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + _LEAST)
    return chosen, weights * router.scale
