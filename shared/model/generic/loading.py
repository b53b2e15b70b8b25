"""Makes transformers' module of a checkpoint, with its attention replaced by ours."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.base import Module
from shared.model.checkpoint.headers.parts import Parts, all_headers
from shared.model.checkpoint.matrices.layout import StoredMatrix
from shared.model.families.further import is_behind_last
from shared.model.generic.attention import NAME, register
from shared.model.generic.description import load_config
from shared.model.generic.entries import open_entries
from shared.model.generic.linears import give_matrices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel

    from shared.model.checkpoint.files.checkpoint_files import CheckpointFiles
    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import StoredFormat
    from shared.model.generic.entries import Entries
    from shared.model.linear.base import LinearMethod

log = structlog.get_logger(__name__)


def empty_module(
    model_dir: Path, *, dtype: torch.dtype, trust_remote_code: bool
) -> PreTrainedModel:
    """Return the module on the host; its numbers are not set.

    Raises:
        ModelLoadError: transformers cannot make it.
    """
    register()
    config = load_config(model_dir, trust_remote_code=trust_remote_code)
    return _for_use(_made(model_dir, config, dtype=dtype, trust_remote_code=trust_remote_code))


def load_module(
    model_dir: Path,
    files: CheckpointFiles,
    *,
    dtype: torch.dtype,
    stored: StoredFormat | None,
    method: LinearMethod,
    trust_remote_code: bool,
) -> PreTrainedModel:
    """Return the module with its weights, on the host.

    A linear keeps its matrix as `stored` has it if `method` does; all others become dense.

    Raises:
        ModelLoadError: transformers cannot make it, or the files do not fit it; names the tensor.
    """
    register()
    config = load_config(model_dir, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        outline = _made(model_dir, config, dtype=dtype, trust_remote_code=trust_remote_code)
    tensors = _tensors(files, config, stored, _modules_of(outline))
    _check_matrices(model_dir, tensors, outline)
    with open_entries(tensors, dtype, method) as entries:
        module = _filled(model_dir, type(outline), config, entries, dtype)
        num_exact = give_matrices(module, entries, method)
    if num_exact:
        log.info("inputs_not_rounded", num=num_exact, of="the output head")
    return _for_use(module)


def _made(
    model_dir: Path, config: PretrainedConfig, *, dtype: torch.dtype, trust_remote_code: bool
) -> PreTrainedModel:
    auto: Any = AutoModelForCausalLM  # its functions have no types
    with _errors_of(model_dir):
        made: PreTrainedModel = auto.from_config(
            config, dtype=dtype, attn_implementation=NAME, trust_remote_code=trust_remote_code
        )
    return made


def _tensors(
    files: CheckpointFiles,
    config: PretrainedConfig,
    stored: StoredFormat | None,
    module_of: Callable[[str], Module],
) -> Mapping[str, TensorHeader | StoredMatrix]:
    headers = {
        name: header
        for name, header in all_headers(files.shards).items()
        if not is_behind_last(
            name,
            num_layers=getattr(config, "num_hidden_layers", 0) or 0,
            num_further=getattr(config, "num_nextn_predict_layers", 0) or 0,
        )
    }
    if stored is None:
        return headers
    return Parts.of(headers, stored).tensors(stored, module_of)


def _modules_of(outline: PreTrainedModel) -> Callable[[str], Module]:
    """Return what makes a module of its name; an embedding is known by the last part of it."""
    untyped: Any = outline
    embedding = untyped.get_input_embeddings()
    names = (name for name, own in outline.named_modules() if own is embedding)
    last = next(names, "").rpartition(".")[2]
    return lambda name: Module((name,), is_embedding=name.rpartition(".")[2] == last)


def _check_matrices(
    model_dir: Path,
    tensors: Mapping[str, TensorHeader | StoredMatrix],
    outline: PreTrainedModel,
) -> None:
    """Refuse weights whose rows are inputs: a square one would be taken for its transpose."""
    if any(isinstance(each, StoredMatrix) for each in tensors.values()) and any(
        isinstance(own, Conv1D) for own in outline.modules()
    ):
        raise ModelLoadError(
            f"{model_dir}: transformers' {type(outline).__name__} has weights with columns for "
            "rows, which are not read from quantised files"
        )


def _filled(
    model_dir: Path,
    kind: type[PreTrainedModel],
    config: PretrainedConfig,
    entries: Entries,
    dtype: torch.dtype,
) -> PreTrainedModel:
    untyped: Any = kind
    with _errors_of(model_dir, entries):
        module, info = untyped.from_pretrained(
            None,
            config=config,
            state_dict=entries.by_name,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            dtype=dtype,
            attn_implementation=NAME,
        )
    _check_fit(model_dir, info)
    made: PreTrainedModel = module
    return made


def _check_fit(model_dir: Path, info: Mapping[str, Any]) -> None:
    for name, stored, asked in sorted(info.get("mismatched_keys") or ()):
        raise ModelLoadError(
            f"{model_dir}: tensor {name!r} has shape {list(stored)}, "
            f"the config asks for {list(asked)}"
        )
    for problem in ("missing", "unexpected"):
        names = sorted(map(str, info.get(f"{problem}_keys") or ()))
        if names:
            many = f"{len(names)} are"
            raise ModelLoadError(f"{model_dir}: tensor {names[0]!r} is {problem} ({many})")


@contextmanager
def _errors_of(model_dir: Path, entries: Entries | None = None) -> Iterator[None]:
    """Name what others' code, on files that are not trusted, or our own reader fails for."""
    try:
        yield
    except Exception as error:
        own = None if entries is None else entries.error
        if isinstance(own, ModelLoadError):
            raise own from error
        reason = (str(own or error).strip() or type(error).__name__).splitlines()[0]
        raise ModelLoadError(f"{model_dir}: transformers cannot load it: {reason}") from error


def _for_use(module: PreTrainedModel) -> PreTrainedModel:
    nn.Module.train(module, mode=False)
    module.requires_grad_(requires_grad=False)
    return module
