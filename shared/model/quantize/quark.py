"""AMD Quark's layout as it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError
from shared.model.matrix.rounding import Element, ScaleRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.model.matrix.rounding import Rounding
    from shared.model.quantize.output import Choices
    from shared.model.quantize.scheme import Scheme

_FLOATS = {Element.E2M1: "fp4", Element.E2M3: "fp6_e2m3", Element.E4M3: "fp8_e4m3"}


@dataclass(frozen=True, slots=True)
class QuarkOutput:
    """See `OutputFormat`."""

    name: str = "quark"

    def check(self, choices: Choices) -> None:
        """See `OutputFormat.check`."""
        for scheme in (choices.usual, *(own for _, own in choices.others)):
            if scheme.row_range > 1:
                raise ConfigError(
                    f"scheme {scheme.name} is not written as Quark's: leave --format out"
                )
        if choices.kv_cache is not None:
            raise ConfigError("--kv-cache is not written as Quark's: leave --format out")
        if any(pattern.startswith("re:") for pattern, _ in choices.others):
            raise ConfigError("a --layer of Quark's takes a name or *, not re:")

    def suffixes(self, scheme: Scheme) -> Sequence[str]:
        """See `OutputFormat.suffixes`."""
        return ".weight", ".weight_scale"

    def config(self, choices: Choices) -> dict[str, Any]:
        """See `OutputFormat.config`."""
        return {
            "quant_method": self.name,
            "global_quant_config": _group(choices.usual),
            "layer_quant_config": {pattern: _group(own) for pattern, own in choices.others},
            "layer_type_quant_config": {},
            "exclude": list(choices.excluded),
            "quant_mode": "eager_mode",
            "export": {
                "kv_cache_group": [],
                "min_kv_scale": 0.0,
                "pack_method": "reorder",
                "weight_format": "real_quantized",
                "weight_merge_groups": None,
            },
        }


def _group(scheme: Scheme) -> dict[str, Any]:
    inputs = None if scheme.inputs is None else _numbers(scheme.inputs, is_dynamic=True)
    return {
        "weight": _numbers(scheme.weights, is_dynamic=False),
        "input_tensors": inputs,
        "output_tensors": None,
        "bias": None,
    }


def _numbers(rule: Rounding, *, is_dynamic: bool) -> dict[str, Any]:
    is_int = rule.element is Element.INT
    own: dict[str, Any] = {
        "dtype": f"int{rule.bits}" if is_int else _FLOATS[rule.element],
        "is_dynamic": is_dynamic,
        "symmetric": True,
        "round_method": "half_even",
    }
    if rule.group is None:
        return own | {"qscheme": "per_channel", "ch_axis": None if is_dynamic else 0}
    own |= {"qscheme": "per_group", "group_size": rule.group, "ch_axis": -1}
    if rule.scale is ScaleRule.POWER:
        own |= {"scale_format": "e8m0", "scale_calculation_mode": "even"}
    return own
