"""Tokens without texts: for models that are asked in token ids alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tokenizers import Tokenizer as HfTokenizer
from tokenizers.models import WordLevel

from shared.errors import UnsupportedError
from shared.text.tokenizer import Tokenizer, read_end_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shared.text.generation_defaults import GenerationDefaults


class NoTokenizer(Tokenizer):
    """Knows the end tokens of a model's configuration, and no text of any token.

    Answers have no text; a token is called `token_id:…`, as in log probabilities.
    """

    has_text = False

    def __init__(self, model_dir: Path, *, defaults: GenerationDefaults) -> None:
        """Read the end tokens.

        Raises:
            ConfigError: a file of the model cannot be used.
        """
        empty = HfTokenizer(WordLevel({}, unk_token=""))
        super().__init__(empty, eos_token_ids=read_end_tokens(model_dir), defaults=defaults)

    def require_text(self, param: str) -> NoReturn:
        """See Tokenizer."""
        message = f"{param}: there is no tokenizer here (--skip-tokenizer-init): use token ids"
        raise UnsupportedError(message, param=param)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return no text."""
        return ""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the token's number."""
        return f"token_id:{token_id}".encode()

    def encode(self, text: str, add_special_tokens: bool = True) -> NoReturn:
        """Refuse a text."""
        self.require_text("prompt")

    def encode_with_offsets(self, text: str, add_special_tokens: bool = True) -> NoReturn:
        """Refuse a text."""
        self.require_text("prompt")

    def encode_pair(self, text: str, other: str) -> NoReturn:
        """Refuse two texts."""
        self.require_text("prompt")
