"""Mixers with states: short convolutions, the gated delta rule, Mamba-2.

States are float32. The tokens of a sequence change its state one after the other, by the same
operations in each step, so that a state does not depend on how its tokens were divided into steps.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from shared.model.linear.fused import FusedLinear
from shared.model.mixers import DeltaSpec, MambaSpec, ShortConvSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from shared.model.attention.base import AttentionMetadata
    from shared.model.linear.base import LinearMethod
    from shared.model.mixers import RecurrentSpec
    from shared.model.spec import DecoderSpec

#: Added to the square of the length of queries and keys that are normalised.
_LENGTH_EPS = 1e-6


class Values(nn.Module):
    """A weight, and a bias if it has one, that no product uses."""

    def __init__(
        self, *shape: int, bias: int | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        self.bias: nn.Parameter | None = None
        if bias is not None:
            self.bias = nn.Parameter(torch.empty(bias, dtype=dtype), requires_grad=False)


class RecurrentMixer(nn.Module):
    """A mixer with a state of constant size for each sequence."""

    conv: Values
    #: The last product.
    out: FusedLinear

    def __init__(self, *, spec: DecoderSpec, layer: int, own: RecurrentSpec) -> None:
        super().__init__()
        #: Its group of layers, and its place there.
        self.group, self.place = spec.kv_place(layer)
        #: Nothing is rotated.
        self.rope: int | None = None
        #: Of what a state holds behind the convolution's rows.
        self._held_shape: tuple[int, ...] = ()
        self._number = self.group - spec.num_token_groups
        self._num_kept = own.kernel_size - 1
        self._conv_size = self._num_kept * own.conv_width

    @property
    def is_recordable(self) -> bool:
        """See `CausalLM.is_recordable`. Tokens are followed on the host."""
        return False

    def forward(
        self, x: Tensor, _positions: Tensor, states: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        """[num_tokens, hidden] to the same; reads and writes the sequences' states.

        states: float32 [num_blocks, num_layers, state_size].
        """
        assert metadata.states is not None  # the batch of a model with states
        before, after = metadata.states[self._number].long().unbind(-1)
        own = states[:, self.place]
        state = own[before.clamp(min=0)]
        state[before < 0] = 0.0
        mixed = self._mix(x, state, metadata.query_lens_list)
        own[after] = state
        return mixed

    def _mix(self, x: Tensor, state: Tensor, lens: Sequence[int]) -> Tensor:
        """Return the result [num_tokens, hidden], and bring `state` [num_seqs, size] up to date."""
        raise NotImplementedError

    def _runs(
        self,
        rows: Tensor,
        others: Sequence[Tensor],
        state: Tensor,
        lens: Sequence[int],
    ) -> Iterator[tuple[slice, Tensor, list[Tensor]]]:
        """Yield runs of sequences with equal numbers n of tokens, their rows convolved.

        rows, others: [num_tokens, ...]. Of each run: its tokens; what the states hold behind the
        convolution's rows, in place; silu of the convolved rows, and the others, each
        [num_seqs, n, ...].
        """
        for tokens, seqs in _equal_lens(lens):
            split = (seqs.stop - seqs.start, -1)
            own = rows[tokens].unflatten(0, split)
            held = state[seqs, self._conv_size :].unflatten(1, self._held_shape)
            seen = functional.silu(self._convolve(own, state[seqs]))
            yield tokens, held, [seen, *(part[tokens].unflatten(0, split) for part in others)]

    def _convolve(self, rows: Tensor, state: Tensor) -> Tensor:
        """Return the causal convolution, by channel, of float32 rows [num_seqs, n, channels].

        state: [num_seqs, state_size], of which the first numbers are the rows before these.
        """
        num, kept = rows.shape[1], self._num_kept
        kernel = self.conv.weight.float().squeeze(1)
        last = state[:, : self._conv_size].unflatten(1, (kept, -1))
        seen = torch.cat((last, rows), dim=1)
        out = seen[:, :num] * kernel[:, 0]
        for at in range(1, kept + 1):
            out += seen[:, at : at + num] * kernel[:, at]
        last.copy_(seen[:, num:])
        return out if self.conv.bias is None else out + self.conv.bias.float()


class ShortConv(RecurrentMixer):
    """See `ShortConvSpec`."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        layer: int,
        own: ShortConvSpec,
        dtype: torch.dtype,
        method: LinearMethod,
    ) -> None:
        super().__init__(spec=spec, layer=layer, own=own)
        width, bias = own.width, own.bias
        self.inputs = FusedLinear(
            in_size=spec.hidden_size, out_sizes=(width,) * 3, bias=bias, dtype=dtype, method=method
        )
        self.conv = Values(width, 1, own.kernel_size, bias=width if bias else None, dtype=dtype)
        self.out = FusedLinear(
            in_size=width, out_sizes=(spec.hidden_size,), bias=bias, dtype=dtype, method=method
        )

    def _mix(self, x: Tensor, state: Tensor, lens: Sequence[int]) -> Tensor:
        b, c, value = self.inputs(x)
        rows = (b * value).float()
        mixed = torch.empty_like(rows)
        for tokens, seqs in _equal_lens(lens):
            own = rows[tokens].unflatten(0, (seqs.stop - seqs.start, -1))
            mixed[tokens] = self._convolve(own, state[seqs]).flatten(0, 1)
        out: Tensor = self.out(c * mixed.to(x.dtype))[0]
        return out


class GatedDelta(RecurrentMixer):
    """See `DeltaSpec`."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        layer: int,
        own: DeltaSpec,
        dtype: torch.dtype,
        method: LinearMethod,
    ) -> None:
        super().__init__(spec=spec, layer=layer, own=own)
        self.own, self._eps = own, spec.norm.eps
        self.inputs = FusedLinear(
            in_size=spec.hidden_size,
            out_sizes=(own.conv_width, own.value_size),
            bias=False,
            dtype=dtype,
            method=method,
        )
        self.rates = FusedLinear(
            in_size=spec.hidden_size,
            out_sizes=(own.num_heads, own.num_heads),
            bias=False,
            dtype=dtype,
            method=method,
        )
        self.conv = Values(own.conv_width, 1, own.kernel_size, dtype=dtype)
        #: By head: the logarithm of what a step is multiplied with, and what is added to the step.
        self.decay = Values(own.num_heads, bias=own.num_heads)
        self.norm = Values(own.value_dim, dtype=dtype)
        self._held_shape = (own.num_heads, own.key_dim, own.value_dim)
        self.out = FusedLinear(
            in_size=own.value_size,
            out_sizes=(spec.hidden_size,),
            bias=False,
            dtype=dtype,
            method=method,
        )

    def _mix(self, x: Tensor, state: Tensor, lens: Sequence[int]) -> Tensor:
        own = self.own
        rows, gate = self.inputs(x)
        rates, steps = self.rates(x)
        assert self.decay.bias is not None
        steps = functional.softplus(steps.float() + self.decay.bias)
        decays = (-self.decay.weight.exp() * steps).exp()
        rates, rows = rates.float().sigmoid(), rows.float()
        mixed = torch.empty(len(x), own.num_heads, own.value_dim, device=x.device)
        runs = self._runs(rows, (decays, rates), state, lens)
        for tokens, held, (seen, own_decays, own_rates) in runs:
            q, k, v = seen.split((own.key_size, own.key_size, own.value_size), dim=-1)
            result = _follow_delta(
                held,
                _unit(q, own) * own.key_dim**-0.5,
                _unit(k, own),
                v.unflatten(-1, (own.num_heads, -1)),
                own_decays,
                own_rates,
            )
            mixed[tokens] = result.flatten(0, 1)
        mixed = _normalise(mixed, self._eps).to(x.dtype) * self.norm.weight
        gate = functional.silu(gate.float()).unflatten(-1, (own.num_heads, -1))
        out: Tensor = self.out((mixed * gate).to(x.dtype).flatten(-2))[0]
        return out


class Mamba(RecurrentMixer):
    """See `MambaSpec`."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        layer: int,
        own: MambaSpec,
        dtype: torch.dtype,
        method: LinearMethod,
    ) -> None:
        super().__init__(spec=spec, layer=layer, own=own)
        self.own, self._eps = own, spec.norm.eps
        width = own.conv_width
        self.inputs = FusedLinear(
            in_size=spec.hidden_size,
            out_sizes=(own.inner_size, width, own.num_heads),
            bias=own.bias,
            dtype=dtype,
            method=method,
        )
        conv_bias = width if own.conv_bias else None
        self.conv = Values(width, 1, own.kernel_size, bias=conv_bias, dtype=dtype)
        #: See `GatedDelta`.
        self.decay = Values(own.num_heads, bias=own.num_heads)
        self.skip = Values(own.num_heads)
        self._held_shape = (own.num_heads, own.head_dim, own.state_dim)
        self.norm = Values(own.inner_size, dtype=dtype)
        self.out = FusedLinear(
            in_size=own.inner_size,
            out_sizes=(spec.hidden_size,),
            bias=own.bias,
            dtype=dtype,
            method=method,
        )

    def _mix(self, x: Tensor, state: Tensor, lens: Sequence[int]) -> Tensor:
        own = self.own
        gate, rows, steps = self.inputs(x)
        assert self.decay.bias is not None
        steps = functional.softplus(steps.float() + self.decay.bias)
        steps, rows = steps.clamp(own.min_step, own.max_step), rows.float()
        decays = (-self.decay.weight.exp() * steps).exp()
        mixed = torch.empty(len(x), own.num_heads, own.head_dim, device=x.device)
        runs = self._runs(rows, (decays, steps), state, lens)
        for tokens, held, (seen, own_decays, own_steps) in runs:
            value, b, c = seen.split((own.inner_size, own.group_size, own.group_size), dim=-1)
            value = value.unflatten(-1, (own.num_heads, -1))
            b, c = (part.unflatten(-1, (own.num_groups, -1)) for part in (b, c))
            result = _follow_mamba(held, value * own_steps[..., None], b, c, own_decays)
            mixed[tokens] = (result + self.skip.weight[:, None] * value).flatten(0, 1)
        rows = mixed.flatten(-2) * functional.silu(gate.float())
        rows = _normalise(rows.unflatten(-1, (own.num_groups, -1)), self._eps).flatten(-2)
        out: Tensor = self.out(rows.to(x.dtype) * self.norm.weight)[0]
        return out


def make_recurrent(
    *, spec: DecoderSpec, layer: int, dtype: torch.dtype, method: LinearMethod
) -> RecurrentMixer:
    """Return the mixer of a layer with states."""
    own = spec.recurrences[layer]
    if isinstance(own, ShortConvSpec):
        return ShortConv(spec=spec, layer=layer, own=own, dtype=dtype, method=method)
    if isinstance(own, DeltaSpec):
        return GatedDelta(spec=spec, layer=layer, own=own, dtype=dtype, method=method)
    return Mamba(spec=spec, layer=layer, own=own, dtype=dtype, method=method)


def _follow_delta(
    held: Tensor, q: Tensor, k: Tensor, v: Tensor, decays: Tensor, rates: Tensor
) -> Tensor:
    """Return [num_seqs, n, heads, value_dim], and bring the states up to date, token by token.

    held: [num_seqs, heads, key_dim, value_dim], in place; q, k, v: [num_seqs, n, heads, dim];
    decays, rates: [num_seqs, n, heads]. The recurrence of Yang and others, "Gated Delta Networks",
    2024.
    """
    results = []
    for token in range(v.shape[1]):
        held.mul_(decays[:, token, :, None, None])
        key = k[:, token]
        known = (key[..., None, :] @ held)[..., 0, :]
        change = (v[:, token] - known) * rates[:, token, :, None]
        held.addcmul_(key[..., None], change[..., None, :])
        results.append((q[:, token, :, None] @ held)[..., 0, :])
    return torch.stack(results, dim=1)


def _follow_mamba(held: Tensor, value: Tensor, b: Tensor, c: Tensor, decays: Tensor) -> Tensor:
    """Return [num_seqs, n, heads, head_dim], and bring the states up to date, token by token.

    held: [num_seqs, heads, head_dim, state_dim], in place; value: [num_seqs, n, heads, head_dim];
    b, c: [num_seqs, n, groups, state_dim]; decays: [num_seqs, n, heads]. The recurrence of Dao and
    Gu, "Transformers are SSMs", 2024.
    """
    heads_per_group = held.shape[1] // b.shape[2]
    b, c = (part.repeat_interleave(heads_per_group, dim=2) for part in (b, c))
    results = []
    for token in range(value.shape[1]):
        held.mul_(decays[:, token, :, None, None])
        held.addcmul_(value[:, token, ..., None], b[:, token, :, None])
        results.append((held @ c[:, token, ..., None])[..., 0])
    return torch.stack(results, dim=1)


def _unit(rows: Tensor, own: DeltaSpec) -> Tensor:
    """Queries or keys [..., heads * key_dim] as [..., states, key_dim], of length 1."""
    heads: Tensor = rows.unflatten(-1, (own.num_key_heads, own.key_dim))
    heads = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + _LENGTH_EPS)
    return heads.repeat_interleave(own.num_heads // own.num_key_heads, dim=-2)


def _normalise(rows: Tensor, eps: float) -> Tensor:
    """Divide float32 rows by the root of the mean of their squares."""
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)


def _equal_lens(lens: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Yield runs of sequences with equal numbers of tokens: their tokens, and themselves."""
    first_token = first_seq = 0
    for num, run in groupby(lens):
        num_seqs = sum(1 for _ in run)
        end = first_token + num * num_seqs
        yield slice(first_token, end), slice(first_seq, first_seq + num_seqs)
        first_token, first_seq = end, first_seq + num_seqs
