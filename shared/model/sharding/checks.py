"""What ranks do not compute together, refused by name before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.model.sharding.split import Split


def check_ranks(split: Split, *, is_module: bool) -> None:
    """Refuse a model that is not divided; is_module: transformers' module computes it.

    Raises:
        ConfigError: says what to do.
    """
    if is_module:
        raise ConfigError(
            f"{split.description}: a module of transformers is not divided among ranks; models of "
            "Baton's families are"
        )


def check_narrowing(split: Split, quantization: str) -> None:
    """Refuse what PyTorch would narrow dense weights to: a part's rounding is not the whole's.

    Raises:
        ConfigError: says what to do.
    """
    if quantization != "none":
        raise ConfigError(
            f"{split.description}: ranks narrow weights to int8 or int4 in the "
            f"native kernels alone, not to {quantization} here; take a checkpoint that is quantised"
        )
