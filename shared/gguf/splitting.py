"""How byte-level vocabularies cut a text before they merge, by llama.cpp's name of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"
#: Words that begin in capitals, and words of small letters.
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """A way to cut."""

    #: What the pieces match; None: as GPT-2.
    pattern: str | None = None
    #: Digits are pieces of their own before that.
    splits_digits: bool = False
    #: Texts are brought to Unicode's form NFC.
    is_composed: bool = False
    #: A piece that is a token is not merged.
    takes_whole_pieces: bool = False
    #: Whether texts begin with BOS if a file does not say it.
    adds_bos: bool = False

    def steps(self) -> dict[str, Any]:
        """Return the pre-tokenizer of a tokenizer.json."""
        use_regex = self.pattern is None
        steps: list[dict[str, Any]] = []
        if self.splits_digits:
            steps.append({"type": "Digits", "individual_digits": True})
        if self.pattern is not None:
            pattern = {"Regex": self.pattern}
            own = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
            steps.append(own)
        steps.append(
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": use_regex,
            }
        )
        return {"type": "Sequence", "pretokenizers": steps}


_GPT2, _DIGITS = Splitting(), Splitting(splits_digits=True)
_DBRX = Splitting(pattern=rf"{_ENDINGS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}[\r\n]*|{_REST}")
_LLAMA3 = replace(_DBRX, takes_whole_pieces=True, adds_bos=True)
_QWEN2 = Splitting(
    pattern=rf"{_ENDINGS}|{_WORDS}|\p{{N}}|{_SIGNS}[\r\n]*|{_REST}", is_composed=True
)
_TEKKEN = Splitting(
    pattern=rf"{_UPPER}|{_LOWER}|\p{{N}}|{_SIGNS}[\r\n/]*|{_REST}",
    takes_whole_pieces=True,
    adds_bos=True,
)
_GPT4O = Splitting(
    pattern=rf"{_UPPER}{_ENDINGS}?|{_LOWER}{_ENDINGS}?|\p{{N}}{{1,3}}|{_SIGNS}[\r\n/]*|{_REST}"
)
#: By `tokenizer.ggml.pre`.
SPLITTINGS: Mapping[str, Splitting] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "starcoder": _DIGITS,
    "smollm": _DIGITS,
    "refact": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "dbrx": _DBRX,
    "smaug-bpe": _DBRX,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
    "gpt-4o": _GPT4O,
}
