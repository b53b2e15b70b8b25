"""What ranks do not compute together, refused by name before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.model.sharding.split import Split


def check_ranks(
    split: Split, *, is_module: bool, attention_backend: str, quantization: str
) -> None:
    """Refuse settings that a model in parts does not have.

    is_module: transformers' module computes it; quantization: what dense weights are narrowed to.

    Raises:
        ConfigError: names the setting, and what to do.
    """
    size = f"tensor_parallel_size {split.size}"
    if split.size == 1:
        size = f"pipeline_parallel_size {split.num_stages}"
    if is_module:
        raise ConfigError(
            f"{size}: a module of transformers is not divided among ranks; models of Baton's "
            "families are"
        )
    if attention_backend == "native":
        raise ConfigError(
            f"{size}: the native kernels do not compute a part of a model; take "
            "--attention-backend torch"
        )
    if quantization != "none":
        raise ConfigError(
            f"{size}: weights are not narrowed to {quantization} by ranks, which would round a "
            "part as a whole; take a checkpoint that is quantised"
        )
