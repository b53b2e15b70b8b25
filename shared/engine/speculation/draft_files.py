"""The check of a draft model's files, before any weights are loaded.

Reads headers only, and imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ConfigError, ModelLoadError
from shared.gguf.folder import model_folder
from shared.model.checks import check_model

if TYPE_CHECKING:
    from shared.engine.settings.speculation import SpeculationConfig
    from shared.model.spec.decoder import DecoderSpec


def check_draft(speculation: SpeculationConfig | None, target: DecoderSpec, *, device: str) -> None:
    """Check the checkpoint of a draft model; other methods check their own.

    Raises:
        ConfigError: it cannot be used, or counts other tokens than its target.
    """
    if speculation is None or speculation.method != "draft_model" or speculation.model is None:
        return
    try:
        draft = check_model(
            model_folder(Path(speculation.model)),
            dtype=speculation.dtype,
            load_format=speculation.load_format,
            quantization=speculation.quantization,
            device=device,
        )
    except (ConfigError, ModelLoadError) as error:
        raise ConfigError(f"speculative_config: model: {error}") from error
    require_same_tokens(speculation, draft, target)


def require_same_tokens(
    speculation: SpeculationConfig, draft: DecoderSpec, target: DecoderSpec
) -> None:
    """Require a draft model's vocabulary to be as large as its target's.

    Raises:
        ConfigError: it is not.
    """
    if draft.vocab_size != target.vocab_size:
        raise ConfigError(
            f"speculative_config: model {speculation.model!r} has vocab_size {draft.vocab_size}, "
            f"the target has {target.vocab_size}: a draft must count tokens as its target does"
        )
