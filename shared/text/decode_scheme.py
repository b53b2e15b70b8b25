"""A decoder's rules from tokens to bytes, as far as they apply token by token."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HfTokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class SchemeKind(StrEnum):
    """The families of decoders."""

    BYTE_LEVEL = "byte_level"
    SENTENCEPIECE = "sentencepiece"
    #: Any other: only the decoder itself knows, and only for a run of tokens.
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeScheme:
    """A decoder's rules, read from its description in tokenizer.json."""

    kind: SchemeKind
    #: Substitutions inside a token, in order.
    replacements: tuple[tuple[str, str], ...] = ()
    #: Tokens like <0xE4> stand for one byte.
    byte_fallback: bool = False
    #: Number of spaces removed from the beginning of a whole text.
    num_stripped_spaces: int = 0
    #: Character removed from the very first token, at any place in it.
    dropped_from_first: str | None = None

    @classmethod
    def of(cls, tokenizer: HfTokenizer) -> DecodeScheme:
        """Return the scheme of a loaded tokenizer."""
        if tokenizer.decoder is None:
            return cls(kind=SchemeKind.OTHER)
        spec = json.loads(tokenizer.decoder.__getstate__())
        steps = spec["decoders"] if spec["type"] == "Sequence" else [spec]
        if any(step["type"] == "ByteLevel" for step in steps):
            # After ByteLevel, sequences contain steps without effect (Fuse).
            known = all(step["type"] in ("ByteLevel", "Fuse") for step in steps)
            return cls(kind=SchemeKind.BYTE_LEVEL if known else SchemeKind.OTHER)
        return _read_sentencepiece(steps)

    def is_byte(self, token: str) -> bool:
        """Return whether the token is a single byte that may be part of a character."""
        return self.byte_fallback and _BYTE_TOKEN.fullmatch(token) is not None

    def to_bytes(self, token: str) -> bytes:
        """Return the token's bytes in the middle of a text. Not for OTHER."""
        if self.kind is SchemeKind.BYTE_LEVEL:
            table = byte_level_alphabet()
            if all(char in table for char in token):
                return bytes(table[char] for char in token)
            return token.encode()
        if self.is_byte(token):
            return bytes([int(token[3:5], 16)])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode()


@cache
def byte_level_alphabet() -> dict[str, int]:
    """Return the characters in which byte-level BPE writes bytes.

    Printable Latin-1 characters represent themselves; the other bytes, in order, are written as the
    characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table |= {chr(0x100 + place): byte for place, byte in enumerate(others)}
    return table


def _read_sentencepiece(steps: list[dict[str, Any]]) -> DecodeScheme:
    replacements: list[tuple[str, str]] = []
    byte_fallback = fused = False
    num_stripped = 0
    dropped = None
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": str(mark)}:
                replacements.append((mark, " "))
                dropped = None if step.get("prepend_scheme") == "never" else mark
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0} if fused:
                num_stripped = start
            case _:
                return DecodeScheme(kind=SchemeKind.OTHER)
    if not replacements and not byte_fallback:
        return DecodeScheme(kind=SchemeKind.OTHER)
    return DecodeScheme(
        kind=SchemeKind.SENTENCEPIECE,
        replacements=tuple(replacements),
        byte_fallback=byte_fallback,
        num_stripped_spaces=num_stripped,
        dropped_from_first=dropped,
    )
