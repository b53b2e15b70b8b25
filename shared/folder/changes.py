"""Settings that replace parts of a model's folder. Names as in vLLM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 read at run time by the settings loader
from typing import Any

from shared.config import setting
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderChanges:
    """What is read from elsewhere than from the folder of `--model`.

    They change the model that is served, so all services of a model need the same.
    """

    hf_overrides: str | None = setting(
        None,
        help="values that replace those of config.json, as a JSON object such as "
        '{"rope_theta": 1000000}; objects in text_config and the like are merged',
    )
    hf_config_path: Path | None = setting(
        None, help="folder, or name on the hub, whose config.json is read in place of the model's"
    )
    tokenizer: Path | None = setting(
        None,
        help="folder, GGUF file or name on the hub whose tokenizer and chat template are used in "
        "place of the model's",
    )
    tokenizer_revision: str | None = setting(
        None, help="branch, tag or commit of --tokenizer on the hub; by default its main branch"
    )

    def __post_init__(self) -> None:
        _ = self.overrides
        if self.tokenizer_revision is not None and self.tokenizer is None:
            raise ConfigError("--tokenizer-revision needs --tokenizer, whose revision it is")

    @property
    def overrides(self) -> dict[str, Any]:
        """The values that replace those of config.json.

        Raises:
            ConfigError: they are no JSON object.
        """
        if self.hf_overrides is None:
            return {}
        try:
            given = json.loads(self.hf_overrides)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"--hf-overrides is not valid JSON: {error}") from error
        if not isinstance(given, dict):
            raise ConfigError(f"--hf-overrides must be a JSON object, not {self.hf_overrides!r}")
        return given
