"""The native library's record of a mixer with states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels.native.kinds import RecurrentKind
from kernels.native.structures import Recurrent
from shared.errors import InternalError
from shared.model.decoder.mixing.recurrent import GatedDelta, Mamba, ShortConv
from shared.model.sharding.norms import SharedGroups
from shared.model.spec.mixers import GatedNorm

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from shared.model.decoder.mixing.recurrent import RecurrentMixer, Values
    from shared.model.linear.fused import FusedLinear


def make_record(
    mixer: RecurrentMixer, matrix: Callable[[FusedLinear], int], keep: Callable[[Tensor], int]
) -> Recurrent:
    """Return the record of a mixer.

    `matrix` returns the library's handle of a linear, `keep` the address of a float32 array, which
    lives as long as the model.
    """
    if isinstance(mixer, ShortConv):
        return Recurrent(
            kind=RecurrentKind.SHORT_CONV,
            inputs=matrix(mixer.inputs),
            num_groups=1,
            **_convolution(mixer.conv, keep),
        )
    if isinstance(mixer, GatedDelta):
        return Recurrent(
            kind=RecurrentKind.DELTA,
            inputs=matrix(mixer.inputs),
            rates=matrix(mixer.rates),
            num_heads=mixer.own.num_heads,
            num_groups=mixer.own.num_key_heads,
            key_dim=mixer.own.key_dim,
            head_dim=mixer.own.value_dim,
            norm=keep(mixer.norm.weight.detach().float()),
            **_decay(mixer.decay, keep),
            **_convolution(mixer.conv, keep),
        )
    if isinstance(mixer, Mamba):
        factors = mixer.own.column_factors
        return Recurrent(
            kind=RecurrentKind.MAMBA,
            inputs=matrix(mixer.inputs),
            num_heads=mixer.own.num_heads,
            num_groups=mixer.own.num_groups,
            key_dim=mixer.own.state_dim,
            head_dim=mixer.own.head_dim,
            min_step=mixer.own.min_step,
            max_step=mixer.own.max_step,
            skip=keep(mixer.skip.weight.detach()),
            norm=None if mixer.norm is None else keep(mixer.norm.weight.detach().float()),
            is_norm_first=mixer.own.norm is GatedNorm.BEFORE_GATE,
            factors=None if factors is None else keep(torch.tensor(factors)),
            **_shared_groups(mixer),
            **_decay(mixer.decay, keep),
            **_convolution(mixer.conv, keep),
        )
    raise InternalError(f"the native kernels do not know {type(mixer).__name__}")


def _shared_groups(mixer: Mamba) -> dict[str, int]:
    """Return the fields of norms over groups that ranks share; none: groups are whole."""
    own, shared = mixer.own, mixer.normalise
    if mixer.norm is None or not isinstance(shared, SharedGroups):
        return {}
    size = own.inner_size // own.num_groups
    return {
        "whole_groups": shared.num_groups,
        "first_group": shared.first,
        "whole_size": size * shared.num_ranks(own.num_groups),
    }


def _convolution(own: Values, keep: Callable[[Tensor], int]) -> dict[str, Any]:
    """Return the fields of a convolution: its weight is [kernel_size, channels] there."""
    channels, _, kernel_size = own.weight.shape
    return {
        "kernel": keep(own.weight.detach().float().squeeze(1).T),
        "bias": None if own.bias is None else keep(own.bias.detach().float()),
        "channels": channels,
        "kernel_size": kernel_size,
    }


def _decay(own: Values, keep: Callable[[Tensor], int]) -> dict[str, Any]:
    assert own.bias is not None  # each decay has one
    return {"decay": keep(-own.weight.detach().exp()), "step_bias": keep(own.bias.detach())}
