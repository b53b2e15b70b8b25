"""The formats of reasoning that are built in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.reasoning.think import ThinkFormat
from services.router.parsers.row import Row

if TYPE_CHECKING:
    from services.router.parsers.base import ReasoningFormat

REASONING_ROWS: tuple[Row[ReasoningFormat], ...] = (
    Row(
        names=("think",),
        format=ThinkFormat(opens_unsaid=False),
        writes="`<think>…</think>` before the answer; the chat template may open it, or close it "
        "at once",
        families="Qwen 3, QwQ",
        signs=(("<think>",), ("</think>",)),
    ),
    Row(
        names=("deepseek_r1",),
        format=ThinkFormat(opens_unsaid=True),
        writes="the same, but an answer begins within the reasoning even where nothing opens it; "
        "never chosen by `auto`",
        families="DeepSeek R1",
    ),
)
