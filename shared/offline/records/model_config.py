"""What programs ask a loaded model about itself: vLLM's `model_config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A loaded model. `model` and `tokenizer` are its folder."""

    folder: Path
    #: Longest sequence, prompt and answer together, in tokens.
    max_model_len: int
    vocab_size: int

    @property
    def model(self) -> str:
        """Return the folder, which for a GGUF file is the one made of it."""
        return str(self.folder)

    @property
    def tokenizer(self) -> str:
        """Return the folder with the tokenizer."""
        return str(self.folder)

    @property
    def hf_config(self) -> Any:
        """Return the configuration as transformers has it."""
        from transformers import AutoConfig  # noqa: PLC0415 two seconds, and rarely used

        return AutoConfig.from_pretrained(self.folder)

    def get_vocab_size(self) -> int:
        """Return the number of token ids."""
        return self.vocab_size
