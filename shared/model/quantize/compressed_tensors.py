"""compressed-tensors as it is written: what vLLM and transformers read, too."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.model.matrix.rounding import Element, ScaleRule
from shared.model.quantize.output import KvCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.model.matrix.rounding import Rounding
    from shared.model.quantize.output import Choices
    from shared.model.quantize.scheme import Scheme

_WHOLE_BYTE = 8
_MX = {4: "mxfp4-pack-quantized", 6: "mxfp6-pack-quantized", 8: "mxfp8-quantized"}
_KV_TYPES = {KvCache.FP8: "float", KvCache.INT8: "int"}


@dataclass(frozen=True, slots=True)
class CompressedTensorsOutput:
    """See `OutputFormat`."""

    name: str = "compressed-tensors"

    def check(self, choices: Choices) -> None:
        """See `OutputFormat.check`: it can say all of them."""

    def suffixes(self, scheme: Scheme) -> Sequence[str]:
        """See `OutputFormat.suffixes`."""
        if not _is_packed(scheme):
            return ".weight", ".weight_scale"
        size = (".weight_shape",) if scheme.weights.element is Element.INT else ()
        return ".weight_packed", ".weight_scale", *size

    def config(self, choices: Choices) -> dict[str, Any]:
        """See `OutputFormat.config`."""
        by_target = [(_target(pattern), own) for pattern, own in choices.others]
        groups = [_group(own, [target]) for target, own in by_target]
        groups.append(_group(choices.usual, ["Linear"]))
        formats = {each["format"] for each in groups}
        return {
            "quant_method": self.name,
            "format": formats.pop() if len(formats) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": {f"group_{number}": each for number, each in enumerate(groups)},
            "ignore": [_target(pattern) for pattern in choices.excluded],
            "kv_cache_scheme": _kv_cache(choices.kv_cache),
        }


def _is_packed(scheme: Scheme) -> bool:
    is_int = scheme.weights.element is Element.INT
    return scheme.weights.bits < _WHOLE_BYTE or (is_int and scheme.inputs is None)


def _format(scheme: Scheme) -> str:
    if scheme.weights.scale is ScaleRule.POWER:
        return _MX[scheme.weights.bits]
    if scheme.weights.element is not Element.INT:
        return "float-quantized"
    return "pack-quantized" if _is_packed(scheme) else "int-quantized"


def _group(scheme: Scheme, targets: list[str]) -> dict[str, Any]:
    rows, columns = scheme.row_range, scheme.weights.group
    weights = _numbers(scheme.weights, "channel", is_dynamic=False)
    if rows > 1:
        weights |= {"strategy": "block", "block_structure": [rows, columns], "group_size": None}
    inputs = None
    if scheme.inputs is not None:
        inputs = _numbers(scheme.inputs, "token", is_dynamic=True)
    return {
        "targets": targets,
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
        "format": _format(scheme),
    }


def _numbers(rule: Rounding, whole: str, *, is_dynamic: bool) -> dict[str, Any]:
    """What a group says of weights or inputs. `whole`: of scales that no group of columns has."""
    own = {
        "num_bits": rule.bits,
        "type": "int" if rule.element is Element.INT else "float",
        "symmetric": True,
        "strategy": whole if rule.group is None else "group",
        "group_size": rule.group,
        "dynamic": is_dynamic,
    }
    if rule.scale is ScaleRule.POWER:
        own |= {"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
    return own


def _kv_cache(own: KvCache | None) -> dict[str, Any] | None:
    if own is None:
        return None
    return {
        "num_bits": 8,
        "type": _KV_TYPES[own],
        "strategy": "tensor",
        "dynamic": False,
        "symmetric": True,
    }


def _target(pattern: str) -> str:
    """A pattern as the library reads it: it knows names and expressions, and no `*`."""
    if pattern.startswith("re:") or not any(each in pattern for each in "*?"):
        return pattern
    translated = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return f"re:{translated}$"
