"""What a quantization_config says of keys and values: their numbers, and that scales are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.model.checkpoint.formats.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KEY = "quantization_config"
_INT8, _FLOAT8 = "int8", "float8_e4m3fn"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVScheme:
    """Keys and values as 8-bit numbers, with scales that the checkpoint has."""

    #: The key of the config.
    where: str
    #: PyTorch's name of the numbers.
    dtype: str = _FLOAT8
    #: A scale for each head; otherwise one for each layer.
    by_head: bool = False
    #: Why they cannot be kept so; empty: they can.
    problem: str = ""


def find_kv_scheme(raw: Mapping[str, Any]) -> KVScheme | None:
    """Return what a model's config says; None: nothing, or that scales are not stored.

    Raises:
        ModelLoadError: a key is unknown or wrong; names it.
    """
    own = raw.get(_KEY)
    if not isinstance(own, dict):
        return None
    read = _READERS.get(str(own.get("quant_method")).lower())
    return None if read is None else read(own)


def _of_scheme(own: Mapping[str, Any]) -> KVScheme | None:
    """Read `kv_cache_scheme`, as compressed-tensors has it."""
    where = f"{_KEY}.kv_cache_scheme"
    raw = own.get("kv_cache_scheme")
    if raw is None:
        return None
    scheme = Settings(raw, where)
    bits, kind = scheme.integer("num_bits", 8), scheme.choice("type", ("int", "float"), "int")
    strategy = str(scheme.any("strategy", "tensor"))
    is_symmetric = scheme.flag("symmetric", default=True)
    is_dynamic = scheme.any("dynamic", default=False) is not False
    scheme.close(ignored=_CALIBRATION)
    if is_dynamic:
        return None
    problem = ""
    if bits != 8:
        problem = f"{where}.num_bits is {bits}, not 8"
    elif strategy not in ("tensor", "attn_head"):
        problem = f"{where}.strategy is {strategy!r}, not 'tensor' or 'attn_head'"
    elif not is_symmetric:
        problem = f"{where}.symmetric is false"
    return KVScheme(
        where=where,
        dtype=_INT8 if kind == "int" else _FLOAT8,
        by_head=strategy == "attn_head",
        problem=problem,
    )


#: Keys of a scheme that say how scales were found.
_CALIBRATION = (
    "group_size",
    "block_structure",
    "actorder",
    "scale_dtype",
    "zp_dtype",
    "observer",
    "observer_kwargs",
)


def _of_fp8(own: Mapping[str, Any]) -> KVScheme | None:
    """Read `kv_cache_scheme`, which may be a word."""
    found = own.get("kv_cache_scheme")
    if found == "static":
        return KVScheme(where=f"{_KEY}.kv_cache_scheme")
    return _of_scheme(own) if isinstance(found, dict) else None


def _of_modelopt(own: Mapping[str, Any]) -> KVScheme | None:
    if own.get("kv_cache_scheme") is not None:
        return _of_scheme(own)
    where = f"{_KEY}.kv_cache_quant_algo"
    name = str(own.get("kv_cache_quant_algo") or "none").lower()
    if name == "none":
        return None
    return KVScheme(where=where, problem="" if name == "fp8" else f"{where} is {name}, not fp8")


def _of_quark(own: Mapping[str, Any]) -> KVScheme | None:
    """Read the settings of what the projections of keys and values return."""
    read = Settings(own, _KEY)
    where, settings = f"{_KEY}.kv_cache_quant_config", read.objects("kv_cache_quant_config")
    if not settings:
        where, layers = f"{_KEY}.layer_quant_config", read.objects("layer_quant_config")
        export = read.object("export")
        names = () if export is None else export.names("kv_cache_group")
        settings = {name: layers.get(name) for name in names}
    specs = [
        _outputs(each, f"{where}.{name}")
        for name, each in settings.items()
        if "q_proj" not in name and isinstance(each, dict) and each.get("output_tensors")
    ]
    if not specs or any(spec.get("is_dynamic") for spec in specs):
        return None
    problem = ""
    kinds = {str(spec.get("dtype")) for spec in specs}
    schemes = {str(spec.get("qscheme") or "per_tensor") for spec in specs}
    if len(kinds) > 1 or not kinds <= _QUARK_TYPES.keys():
        problem = f"{where} has outputs of {', '.join(sorted(kinds))}, not of fp8_e4m3 or int8"
    elif schemes != {"per_tensor"}:
        problem = f"{where} has outputs with scales {', '.join(sorted(schemes))}, not per_tensor"
    elif not all(spec.get("symmetric") in (None, True) for spec in specs):
        problem = f"{where} has outputs that are not symmetric"
    return KVScheme(where=where, dtype=_QUARK_TYPES.get(min(kinds), _FLOAT8), problem=problem)


def _outputs(group: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    return Settings(group, where).objects("output_tensors")


_QUARK_TYPES = {"fp8_e4m3": _FLOAT8, "int8": _INT8}

#: By `quant_method`; other methods say nothing of keys and values.
_READERS: Mapping[str, Callable[[Mapping[str, Any]], KVScheme | None]] = {
    "compressed-tensors": _of_scheme,
    "fp8": _of_fp8,
    "modelopt": _of_modelopt,
    "quark": _of_quark,
}
