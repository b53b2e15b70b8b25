"""Formats whose calls are blocks with headers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from services.router.parsers.formats.sections import SectionFormat
from services.router.parsers.row import Row

if TYPE_CHECKING:
    from services.router.parsers.base import ToolFormat

_PLAMO_ARGUMENTS = "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>"

SECTION_ROWS: tuple[Row[ToolFormat], ...] = (
    Row(
        names=("deepseek_v3",),
        format=SectionFormat(
            section="<｜tool▁calls▁begin｜>",
            call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            header_ends=("\n```json\n",),
            call_end="```<｜tool▁call▁end｜>",
            section_end="<｜tool▁calls▁end｜>",
        ),
        writes="`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f` and the "
        "arguments in a block of code",
        families="DeepSeek V3, R1",
        signs=(("<｜tool▁calls▁begin｜>", "```json"),),
    ),
    Row(
        names=("deepseek_v31",),
        format=SectionFormat(
            section="<｜tool▁calls▁begin｜>",
            call="<｜tool▁call▁begin｜>",
            header_ends=("<｜tool▁sep｜>",),
            call_end="<｜tool▁call▁end｜>",
            section_end="<｜tool▁calls▁end｜>",
        ),
        writes="`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>…`",
        families="DeepSeek V3.1",
        signs=(("<｜tool▁calls▁begin｜>",),),
        unlike=("```json",),
    ),
    Row(
        names=("kimi_k2",),
        format=SectionFormat(
            section="<|tool_calls_section_begin|>",
            call="<|tool_call_begin|>",
            header_ends=("<|tool_call_argument_begin|>",),
            call_end="<|tool_call_end|>",
            section_end="<|tool_calls_section_end|>",
            header=re.compile(r"(?P<id>(?:functions\.)?(?P<name>.+?):\d+)"),
        ),
        writes="`<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        "<|tool_call_argument_begin|>{…}<|tool_call_end|>…`; the call's id is the model's",
        families="Kimi K2",
        signs=(("<|tool_calls_section_begin|>",),),
    ),
    Row(
        names=("plamo3",),
        format=SectionFormat(
            section="<|plamo:begin_tool_requests:plamo|>",
            call="<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>",
            header_ends=(
                f"{_PLAMO_ARGUMENTS}<|plamo:constrain|>json<|plamo:msg|>",
                f"{_PLAMO_ARGUMENTS}<|plamo:msg|>",
            ),
            call_end="<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
            section_end="<|plamo:end_tool_requests:plamo|>",
            parts=("<|plamo:begin_", "<|plamo:end_", ":plamo|>"),
        ),
        writes="`<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
        "<|plamo:begin_tool_name:plamo|>f<|plamo:end_tool_name:plamo|>"
        "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{…}…`",
        families="PLaMo 3",
        signs=(("<|plamo:begin_tool_request",),),
    ),
)
