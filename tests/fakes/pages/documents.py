"""The programs in documents: their fenced blocks, made to ask another cluster than the reader's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[3]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    path: str
    #: Of its first line in the document.
    line: int
    language: str
    text: str

    def asking(self, addresses: Mapping[str, str]) -> str:
        """Its text with every one of `addresses` replaced; its lines stay where they were."""
        return replaced(self.text, addresses)


def blocks(path: str) -> list[Block]:
    """Of a document, given by its path in the repository."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return [
        Block(path, text.count("\n", 0, match.start(2)) + 1, match[1], match[2])
        for match in _FENCE.finditer(text)
    ]


def replaced(text: str, addresses: Mapping[str, str]) -> str:
    """`text` with other addresses."""
    for written, meant in addresses.items():
        text = text.replace(written, meant)
    return text
