"""Names of the KV cache's dtypes, spelled as in vLLM."""

from __future__ import annotations

from shared.errors import ConfigError

#: PyTorch's name of each; `auto` is the model's own dtype.
TORCH_NAMES = {
    "auto": None,
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "int8": "int8",
}


def check_name(name: str) -> None:
    """Check that `name` is known.

    Raises:
        ConfigError: it is not.
    """
    if name == "fp8_e5m2":
        raise ConfigError(
            "kv_cache_dtype 'fp8_e5m2' is not supported: with a scale per token and head its "
            "range is of no use, and it is half as precise as fp8_e4m3"
        )
    if name not in TORCH_NAMES:
        raise ConfigError(f"kv_cache_dtype {name!r} is unknown; known: {', '.join(TORCH_NAMES)}")
