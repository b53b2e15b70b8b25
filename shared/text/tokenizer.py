"""A checkpoint's tokenizer: text to token ids and back. Knows no requests and no models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as HfTokenizer

from shared.errors import ConfigError, InvalidRequestError
from shared.text.decode_scheme import DecodeScheme, SchemeKind
from shared.text.generation_defaults import FILE as GENERATION_FILE
from shared.text.generation_defaults import GenerationDefaults, read_token_ids
from shared.text.model_files import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

# A batch is encoded in the thread that asks, and not in threads that a fork would lose.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

#: Longer lists of ids are decoded without the interpreter lock.
_MAX_LOCKED_IDS = 1000
_SPECIAL_KEYS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class Tokenizer:
    """Encodes and decodes. Thread-safe; what encodes releases the interpreter lock."""

    #: Whether tokens have texts; see no_tokenizer.py.
    has_text = True

    def __init__(
        self,
        tokenizer: HfTokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
        defaults: GenerationDefaults | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap a tokenizer. `special_tokens`: text by the names of chat templates ("bos_token").

        `config`: the content of tokenizer_config.json.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.special_tokens = dict(special_tokens or {})
        self.defaults = defaults or GenerationDefaults()
        self.config = dict(config or {})
        self._mark_special()
        self.scheme = DecodeScheme.of(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        #: Texts of the tokens that were added to the model's own, by id.
        self.added_tokens = {i: str(token.content) for i, token in added.items()}
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        self.eos_token_ids = self._all_eos(eos_token_ids)
        #: Every id of the tokenizer is below this; the model may have more logits.
        self.vocab_size = max(tokenizer.get_vocab().values(), default=-1) + 1
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, model_dir: Path, *, defaults: GenerationDefaults | None = None) -> Tokenizer:
        """Read tokenizer.json and the files beside it. `defaults` replace the model's own.

        Raises:
            ConfigError: a file is missing or cannot be used; the message names it.
        """
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{path} does not exist; the model directory must hold a tokenizer")
        try:
            tokenizer = HfTokenizer.from_file(str(path))
        # The library raises bare Exception for every kind of bad file.
        except Exception as error:
            raise ConfigError(f"{path} is not a usable tokenizer: {error}") from error
        return cls(
            tokenizer,
            special_tokens=_read_special_tokens(model_dir),
            eos_token_ids=read_end_tokens(model_dir),
            defaults=defaults or GenerationDefaults.load(model_dir),
            config=read_json(model_dir / "tokenizer_config.json"),
        )

    def require_text(self, param: str) -> None:
        """Return if texts can be read and written.

        Raises:
            UnsupportedError: they cannot; the message names `param`.
        """

    def with_special(self, text: str) -> Tokenizer:
        """Return a copy for which `text` is one special token. Slow for a large vocabulary."""
        copied = HfTokenizer.from_str(self._tokenizer.to_str())
        copied.add_special_tokens([text])
        return Tokenizer(
            copied,
            special_tokens=self.special_tokens,
            eos_token_ids=self.eos_token_ids,
            defaults=self.defaults,
            config=self.config,
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens are added as tokenizer.json says.

        Often that is a BOS.
        """
        # No offsets are made, which takes a third of the time.
        encode = self._tokenizer.encode_batch_fast
        ids: list[int] = _encoding(encode, text, add_special_tokens).ids
        return ids

    def encode_with_offsets(
        self, text: str, add_special_tokens: bool = True
    ) -> list[tuple[int, int, int]]:
        """Return (token id, start, end), in characters; added tokens have start == end."""
        encoding = _encoding(self._tokenizer.encode_batch, text, add_special_tokens)
        return [(i, *span) for i, span in zip(encoding.ids, encoding.offsets, strict=True)]

    def encode_pair(self, text: str, other: str) -> tuple[list[int], list[int]]:
        """Return the ids of two texts that belong together, and which of the two each is of.

        tokenizer.json says which special tokens are around and between them.
        """
        try:
            (encoding,) = self._tokenizer.encode_batch([(text, other)])
        except (TypeError, UnicodeEncodeError) as error:
            message = f"the texts cannot be written in UTF-8: {error}"
            raise InvalidRequestError(message, param="prompt") from error
        return encoding.ids, encoding.type_ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; invalid ids are left out."""
        if len(ids) <= _MAX_LOCKED_IDS:
            text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
            return text
        # The library holds the interpreter lock for one list by itself.
        texts: list[str] = self._tokenizer.decode_batch(
            [ids], skip_special_tokens=skip_special_tokens
        )
        return texts[0]

    def token(self, token_id: int) -> str | None:
        """Return the vocabulary's spelling of a token, or None for an invalid id."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token

    def token_id(self, token: str) -> int | None:
        """Return the id of a vocabulary entry; None if there is none."""
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def token_bytes(self, token_id: int) -> bytes:
        """Return the token's bytes in the middle of a text; empty for an invalid id."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._make_bytes(token_id)
        return found

    def token_text(self, token_id: int) -> str:
        """Return the token's text in the middle of a text; half a character becomes U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _make_bytes(self, token_id: int) -> bytes:
        token = self.token(token_id)
        if token is None:
            return b""
        if self.scheme.kind is SchemeKind.OTHER:
            return self.decode([token_id], skip_special_tokens=False).encode()
        return self.scheme.to_bytes(token)

    def _mark_special(self) -> None:
        """Mark tokens as special that only tokenizer_config.json calls special."""
        known = [t for t in self.special_tokens.values() if self.token_id(t) is not None]
        self._tokenizer.add_special_tokens(known)

    def stop_reason(self, stop_token_id: int | None) -> int | None:
        """Return the token that ended an answer; None if it is the usual end, as in vLLM.

        That is the tokenizer's own end token. Others of the model's end tokens are named.
        """
        return None if stop_token_id == self._own_eos() else stop_token_id

    def _own_eos(self) -> int | None:
        return self.token_id(self.special_tokens.get("eos_token", ""))

    def _all_eos(self, configured: Sequence[int]) -> tuple[int, ...]:
        own = self._own_eos()
        ids = [*configured] if own is None else [own, *configured]
        return tuple(dict.fromkeys(ids))


def read_end_tokens(model_dir: Path) -> tuple[int, ...]:
    """Return the end tokens of generation_config.json, otherwise of config.json.

    Raises:
        ConfigError: a file cannot be used; the message names it.
    """
    generation = read_json(model_dir / GENERATION_FILE)
    eos = read_token_ids(generation, "eos_token_id", model_dir / GENERATION_FILE)
    if eos:
        return eos
    config = read_json(model_dir / "config.json")
    return read_token_ids(config, "eos_token_id", model_dir / "config.json")


def _encoding(encode_batch: Callable[..., list[Any]], text: str, add_special_tokens: bool) -> Any:
    """Encode a batch of one: the library holds the interpreter lock for a text by itself."""
    try:
        (encoding,) = encode_batch([text], add_special_tokens=add_special_tokens)
    except (TypeError, UnicodeEncodeError) as error:
        message = f"the text cannot be written in UTF-8: {error}"
        raise InvalidRequestError(message, param="prompt") from error
    return encoding


def _read_special_tokens(model_dir: Path) -> dict[str, str]:
    """Return the named special tokens; special_tokens_map.json completes the newer file."""
    named: dict[str, str] = {}
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        content = read_json(model_dir / file)
        for key in _SPECIAL_KEYS:
            text = _token_text(content.get(key), key, model_dir / file)
            if text is not None:
                named.setdefault(key, text)
    return named


def _token_text(value: Any, key: str, path: Path) -> str | None:
    """Return the text of a special token, which is a string or an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise ConfigError(f"{key} in {path} must be a string or an object with a content string")
