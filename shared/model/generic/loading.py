"""Makes transformers' module of a checkpoint, with its attention replaced by ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import AutoModelForCausalLM

from shared.errors import ModelLoadError
from shared.model.generic.attention import NAME, register
from shared.model.generic.description import load_config

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel


def make_module(
    model_dir: Path, *, dtype: torch.dtype, with_weights: bool, trust_remote_code: bool
) -> PreTrainedModel:
    """Return the module on the host; without weights its numbers are not set.

    Raises:
        ModelLoadError: transformers cannot make it, or the files do not fit it; names the tensor.
    """
    register()
    config = load_config(model_dir, trust_remote_code=trust_remote_code)
    own: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": NAME,
        "trust_remote_code": trust_remote_code,
    }
    auto: Any = AutoModelForCausalLM  # its functions have no types
    try:
        if not with_weights:
            made: PreTrainedModel = auto.from_config(config, **own)
            return _for_use(made)
        module, info = auto.from_pretrained(
            model_dir,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            **own,
        )
    except Exception as error:  # others' code, on files that are not trusted
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelLoadError(f"{model_dir}: transformers cannot load it: {reason}") from error
    for problem in ("missing", "unexpected", "mismatched"):
        names = sorted(map(str, info.get(f"{problem}_keys") or ()))
        if names:
            many = f"{len(names)} are"
            raise ModelLoadError(f"{model_dir}: tensor {names[0]!r} is {problem} ({many})")
    return _for_use(module)


def _for_use(module: PreTrainedModel) -> PreTrainedModel:
    nn.Module.train(module, mode=False)
    module.requires_grad_(requires_grad=False)
    return module
