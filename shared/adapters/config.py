"""The config of an adapter: what PEFT wrote of its ranks, its targets and its kind."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from shared.adapters.matching import Selection
from shared.errors import AdapterError, ModelLoadError
from shared.model.checkpoint.files.json_file import read_json
from shared.model.checkpoint.patterns import fits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_Value = TypeVar("_Value", int, float)

CONFIG_NAME = "adapter_config.json"
_MOST_RANK = 2**16
#: Keys whose values, where they say anything, change more than products of low rank do.
_REFUSED: Mapping[str, str] = {
    "use_dora": "DoRA, which scales the base's weights",
    "use_qalora": "QA-LoRA, which pools inputs",
    "use_bdlora": "block-diagonal matrices",
    "lora_bias": "biases of its matrices",
    "alora_invocation_tokens": "an activated LoRA, which begins within a prompt",
    "layer_replication": "layers that are computed several times",
    "target_parameters": "parameters of experts, not of linears",
    "trainable_token_indices": "embeddings of tokens",
    "megatron_config": "layers of Megatron",
    "arrow_config": "a choice among adapters",
    "kasa_config": "KaSA, which changes the base's weights",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
}
#: Ways to begin a training that leave the base's weights as they are.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal", "true", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """What is read of the file. Everything else that it says has no influence on results."""

    rank: int
    alpha: float
    #: Whether the scale is alpha / sqrt(rank), not alpha / rank.
    is_rank_stabilised: bool
    selection: Selection
    #: By expression for a module's name, the first that fits counts.
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    where: str = CONFIG_NAME

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's matrices."""
        return _first_fitting(self.ranks, module, self.rank, self.where)

    def scale_of(self, module: str) -> float:
        """Return the factor of what a module's matrices make of an input."""
        rank = self.rank_of(module)
        alpha = _first_fitting(self.alphas, module, self.alpha, self.where)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilised else rank)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read the config of an adapter's folder.

    Raises:
        AdapterError: it cannot be read, is of another kind of adapter, or has a wrong value.
    """
    path = folder / CONFIG_NAME
    try:
        raw = read_json(path)
    except ModelLoadError as error:
        raise AdapterError(str(error)) from error
    if not isinstance(raw, dict):
        raise AdapterError(f"{path} holds a {type(raw).__name__}, not an object")
    _check_kind(raw, path)
    return AdapterConfig(
        rank=_rank(raw.get("r", 8), "r", path),
        alpha=_alpha(raw.get("lora_alpha", 8), "lora_alpha", path),
        is_rank_stabilised=bool(raw.get("use_rslora")),
        selection=Selection.read(raw, str(path)),
        ranks={key: _rank(each, key, path) for key, each in _mapping(raw, "rank_pattern", path)},
        alphas={key: _alpha(each, key, path) for key, each in _mapping(raw, "alpha_pattern", path)},
        where=str(path),
    )


def _check_kind(raw: Mapping[str, Any], path: Path) -> None:
    kind = raw.get("peft_type", "missing")
    if kind != "LORA":
        raise AdapterError(f"{path}: peft_type is {kind}; only LORA is served")
    for key, what in _REFUSED.items():
        if raw.get(key):
            raise AdapterError(f"{path}: {key} asks for {what}: not served")
    bias = raw.get("bias", "none")
    if bias != "none":
        raise AdapterError(f"{path}: bias is {bias!r}: adapters with biases are not served")
    if raw.get("modules_to_save"):
        named = raw["modules_to_save"]
        raise AdapterError(f"{path}: modules_to_save has whole modules, {named}: not served")
    start = raw.get("init_lora_weights", True)
    if (start.lower() if isinstance(start, str) else start) not in _PLAIN_STARTS:
        raise AdapterError(
            f"{path}: init_lora_weights is {start!r}: its training changed the base's weights; "
            "convert it to a plain LoRA with PEFT (path_initial_model_for_weight_conversion)"
        )


def _first_fitting(
    patterns: Mapping[str, _Value], module: str, default: _Value, where: str
) -> _Value:
    for key, value in patterns.items():
        try:
            if fits(rf"(.*\.)?({key})$", [module], where):
                return value
        except ModelLoadError as error:
            raise AdapterError(str(error)) from error
    return default


def _mapping(raw: Mapping[str, Any], key: str, path: Path) -> list[tuple[str, Any]]:
    found = raw.get(key) or {}
    if not isinstance(found, dict):
        raise AdapterError(f"{path}: {key} must be an object, not {type(found).__name__}")
    return list(found.items())


def _rank(value: Any, key: str, path: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_RANK:
        raise AdapterError(f"{path}: the rank {key} must be from 1 to {_MOST_RANK}, not {value!r}")
    return value


def _alpha(value: Any, key: str, path: Path) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise AdapterError(f"{path}: {key} must be a finite number, not {value!r}")
    return float(value)
