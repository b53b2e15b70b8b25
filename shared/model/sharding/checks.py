"""What ranks do not compute together, refused by name before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.model.sharding.split import Split

#: What the native kernels narrow to as one rank would.
_BY_RANKS = ("int8", "int4")


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


def check_narrowing(split: Split, quantization: str, *, natively: bool) -> None:
    """Refuse to narrow dense weights where a part's rounding is not the whole's.

    `natively`: the native kernels narrow them, otherwise PyTorch.

    Raises:
        ConfigError: says what to do.
    """
    if split.num_ranks > 1 and quantization not in ("none", *(_BY_RANKS if natively else ())):
        raise ConfigError(
            f"{split.description}: ranks narrow weights to int8 or int4 in the "
            f"native kernels alone, not to {quantization} here; take a checkpoint that is quantised"
        )
