"""The check for a head in a model's own files, before its weights are loaded or replaced.

Reads headers only, and imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.model.checkpoint.config import parse_spec
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.headers.further import find_further

if TYPE_CHECKING:
    from shared.engine.settings.speculation import SpeculationConfig
    from shared.model.spec.decoder import DecoderSpec


def check_own_head(
    speculation: SpeculationConfig | None, made_from: Path | int, model: DecoderSpec
) -> None:
    """Check that a model's directory has the head that the settings ask for; a seed has any.

    Raises:
        ModelLoadError: it has none.
    """
    if speculation is None or speculation.method != "mtp" or not isinstance(made_from, Path):
        return
    try:
        find_further(find_checkpoint_files(made_from), parse_spec(model.raw))
    except ModelLoadError as error:
        raise ModelLoadError(f"speculative_config: method mtp: {error}") from error
