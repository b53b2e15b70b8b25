"""Default sampling of `LLM`, as the model's authors recommend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigError, InvalidRequestError
from shared.request.sampling_params import SamplingParams
from shared.text.generation_defaults import FILE, GenerationDefaults

if TYPE_CHECKING:
    from pathlib import Path

#: vLLM's defaults.
_MAX_TOKENS = 16


def read_default_sampling(model_dir: Path, generation_config: str) -> SamplingParams:
    """Return the parameters that generation_config.json recommends.

    `generation_config`: `auto` is the model's file, `vllm` none, any other value a folder with one.

    Raises:
        ConfigError: there is no such folder, or a value in the file is wrong.
    """
    defaults = GenerationDefaults.choose(model_dir, generation_config)
    given = {name: getattr(defaults, name) for name in GenerationDefaults.__slots__}
    known = {name: value for name, value in given.items() if value is not None}
    try:
        return SamplingParams(**{"max_tokens": _MAX_TOKENS, **known})
    except InvalidRequestError as error:
        raise ConfigError(f"{FILE}: {error}") from error
