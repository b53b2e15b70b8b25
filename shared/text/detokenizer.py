"""Conversion of token ids to text as they arrive.

Returned text is final: never half a character.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

from shared.text.decode_scheme import SchemeKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shared.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
#: Tokens before a window that give its first token its context, and number of tokens without a
#: final character after which a window is returned nevertheless.
_CONTEXT = 5
_PATIENCE = 16


class _Stream(Protocol):
    def feed(self, ids: Iterable[int]) -> str: ...

    def flush(self) -> str: ...


class IncrementalDetokenizer:
    """The text of one answer. All pieces joined are the decoding of all ids.

    `prompt_ids` precede the answer: tokenizers that drop the space at the beginning of a text must
    not drop it between prompt and answer. Without `spaces_between_special_tokens`, where special
    tokens are not skipped, an added token behind another one is its bare text, as in vLLM: some
    decoders write a space between them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        shown_token_ids: frozenset[int] = frozenset(),
        prompt_ids: Sequence[int] = (),
    ) -> None:
        skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._skipped = skipped - shown_token_ids
        self._stream: _Stream
        if not tokenizer.has_text:
            self._stream = _NoText()
            return
        match tokenizer.scheme.kind:
            case SchemeKind.BYTE_LEVEL:
                self._stream = _ByteLevelStream(tokenizer)
            case SchemeKind.SENTENCEPIECE:
                at_start = not any(
                    i not in self._skipped and tokenizer.token(i) is not None for i in prompt_ids
                )
                self._stream = _SentencePieceStream(tokenizer, at_start=at_start)
            case SchemeKind.OTHER:
                tail = [i for i in prompt_ids[-4 * _CONTEXT :] if i not in self._skipped]
                self._stream = _WindowStream(tokenizer, tail[-_CONTEXT:])
        if not skip_special_tokens and not spaces_between_special_tokens:
            self._stream = _UnspacedStream(self._stream, tokenizer.added_tokens)

    def feed(self, ids: Sequence[int]) -> str:
        """Add ids; return the text that became final."""
        if not self._skipped.isdisjoint(ids):
            ids = [i for i in ids if i not in self._skipped]
        return self._stream.feed(ids)

    def flush(self) -> str:
        """Return the remaining text, with U+FFFD for bytes that became no character."""
        return self._stream.flush()


class _NoText:
    def feed(self, ids: Iterable[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


class _ByteLevelStream:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        #: The beginning of a character. (The library's own decoder takes twice as long per token.)
        self._rest = b""

    def feed(self, ids: Iterable[int]) -> str:
        data = self._rest + b"".join(map(self._token_bytes, ids))
        text, num_read = codecs.utf_8_decode(data, "replace", False)
        self._rest = data[num_read:]
        return text

    def flush(self) -> str:
        text, _ = codecs.utf_8_decode(self._rest, "replace", True)
        self._rest = b""
        return text


class _SentencePieceStream:
    """Byte tokens wait until their run has ended: one bad byte makes the whole run unreadable."""

    def __init__(self, tokenizer: Tokenizer, *, at_start: bool) -> None:
        self._tokenizer = tokenizer
        self._scheme = tokenizer.scheme
        self._run = bytearray()
        self._at_first_token = at_start
        self._num_to_strip = self._scheme.num_stripped_spaces if at_start else 0

    def feed(self, ids: Iterable[int]) -> str:
        parts: list[str] = []
        for i in ids:
            token = self._tokenizer.token(i)
            if token is None:
                continue
            if self._scheme.is_byte(token):
                self._run += self._tokenizer.token_bytes(i)
            else:
                parts += (self._end_run(), self._text(token, i))
            self._at_first_token = False
        return self._strip("".join(parts))

    def flush(self) -> str:
        return self._strip(self._end_run())

    def _text(self, token: str, token_id: int) -> str:
        mark = self._scheme.dropped_from_first
        if self._at_first_token and mark is not None:
            return self._scheme.to_bytes(token.replace(mark, "")).decode()
        return self._tokenizer.token_bytes(token_id).decode()

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return REPLACEMENT * len(run)

    def _strip(self, text: str) -> str:
        while self._num_to_strip and text:
            if text[0] != " ":
                self._num_to_strip = 0
            else:
                self._num_to_strip -= 1
                text = text[1:]
        return text


class _WindowStream:
    """Decodes the last few tokens again with each new one, for unknown decoders."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(context)
        self._num_read = len(self._ids)

    def feed(self, ids: Iterable[int]) -> str:
        self._ids += ids
        text = self._unread()
        if not text:
            return ""
        if text.endswith(REPLACEMENT) and len(self._ids) - self._num_read < _PATIENCE:
            return ""
        del self._ids[: max(0, self._num_read - _CONTEXT)]
        self._num_read = len(self._ids)
        return text

    def flush(self) -> str:
        text = self._unread()
        self._num_read = len(self._ids)
        return text

    def _unread(self) -> str:
        # Special tokens to be skipped were removed before.
        before = self._tokenizer.decode(self._ids[: self._num_read], skip_special_tokens=False)
        return self._tokenizer.decode(self._ids, skip_special_tokens=False)[len(before) :]


class _UnspacedStream:
    """Writes each added token that follows another one as its bare text."""

    def __init__(self, stream: _Stream, added_tokens: Mapping[int, str]) -> None:
        self._stream = stream
        self._added_tokens = added_tokens
        self._is_behind_added = False

    def feed(self, ids: Iterable[int]) -> str:
        return "".join(map(self._text, ids))

    def flush(self) -> str:
        return self._stream.flush()

    def _text(self, token_id: int) -> str:
        text = self._stream.feed((token_id,))
        bare = self._added_tokens.get(token_id)
        if bare is not None and self._is_behind_added:
            text = bare
        self._is_behind_added = bare is not None
        return text
