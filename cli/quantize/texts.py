"""Texts for calibration and perplexity, as tokens of the model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.errors import CommandError
from shared.text.chat_template import ChatTemplate
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: Files with a JSON object in each line: `{"text": …}` or `{"messages": […]}`.
_LINES = (".jsonl", ".ndjson")
#: Of a file for both purposes: what share of its texts is kept out of calibration.
HELD_OUT = 10


@dataclass(frozen=True, slots=True)
class Text:
    """A text as tokens."""

    tokens: list[int]
    #: The first ones are given; the perplexity is that of those behind.
    num_given: int = 1

    def cut(self, size: int) -> Iterator[Text]:
        """Yield pieces of at most so many tokens of which some are not given."""
        for start in range(0, len(self.tokens), size):
            tokens = self.tokens[start : start + size]
            piece = Text(tokens, max(1, self.num_given - start))
            if piece.num_given < len(tokens):
                yield piece


class TextReader:
    """Reads files for one model."""

    def __init__(self, model_dir: Path, *, num_samples: int, num_tokens: int) -> None:
        """num_samples: most texts of a file, spread over it; num_tokens: most of a text."""
        self._num_samples = num_samples
        self._num_tokens = num_tokens
        self._tokenizer = Tokenizer.load(model_dir)
        self._template = ChatTemplate.load(model_dir, self._tokenizer.special_tokens)

    def read(self, file: Path) -> list[Text]:
        """Return the texts of a file; longer ones are cut.

        Raises:
            CommandError: it cannot be read, or has no text of two tokens.
        """
        found = [piece for text in self._texts(file) for piece in text.cut(self._num_tokens)]
        if not found:
            raise CommandError(f"{file} has no text of two tokens")
        num = min(len(found), self._num_samples)
        return [found[len(found) * n // num] for n in range(num)]

    def _texts(self, file: Path) -> Iterator[Text]:
        try:
            content = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read {file}: {error}") from error
        if file.suffix not in _LINES:
            yield Text(self._tokenizer.encode(content))
            return
        # Not splitlines: strings of JSON may have other ends of lines, as U+2028.
        for number, line in enumerate(content.split("\n"), 1):
            if line.strip():
                yield self._of_line(line, f"{file}, line {number}")

    def _of_line(self, line: str, where: str) -> Text:
        try:
            own: Any = json.loads(line)
        except ValueError as error:
            raise CommandError(f"{where} is not valid JSON: {error}") from error
        text = own.get("text") if isinstance(own, dict) else None
        if isinstance(text, str):
            return Text(self._tokenizer.encode(text))
        messages = own.get("messages") if isinstance(own, dict) else None
        if not isinstance(messages, list) or not messages:
            raise CommandError(f'{where} has neither "text" nor "messages"')
        return self._of_messages(messages)

    def _of_messages(self, messages: list[Any]) -> Text:
        """A conversation; what comes before its last message is given."""
        tokens = self._rendered(messages, is_open=False)
        given = self._rendered(messages[:-1], is_open=True) if len(messages) > 1 else []
        is_front = tokens[: len(given)] == given
        return Text(tokens, max(1, len(given)) if is_front else 1)

    def _rendered(self, messages: list[Any], *, is_open: bool) -> list[int]:
        rendered = self._template.render(messages, add_generation_prompt=is_open)
        return self._tokenizer.encode(rendered, add_special_tokens=False)


def hold_out(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Return the first texts, and the last ones: one in ten, at least one.

    Raises:
        CommandError: there is one text only.
    """
    if len(texts) < 2:
        raise CommandError("the file has one text only: name another one for --evaluate")
    first = len(texts) - max(1, len(texts) // HELD_OUT)
    return list(texts[:first]), list(texts[first:])


def digest(texts: Sequence[Text]) -> str:
    """Return a number that differs if the tokens do."""
    return hashlib.sha256(json.dumps([each.tokens for each in texts]).encode()).hexdigest()
