"""Names of what keys and values are kept as, spelled as in vLLM where it has them."""

from __future__ import annotations

from shared.errors import ConfigError

#: The checkpoint's own scales, where it has some; otherwise the model's dtype.
AUTO = "auto"
#: The checkpoint's own scales.
CHECKPOINT = "checkpoint"
#: PyTorch's name of each; None: the model or its checkpoint says. In 8 bits with a scale for each
#: token.
TORCH_NAMES = {
    AUTO: None,
    CHECKPOINT: None,
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
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
