"""Formats whose calls are JSON objects with the name in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import JsonListFormat
from services.router.parsers.formats.llama3_json import Llama3JsonFormat
from services.router.parsers.formats.marked_json import MarkedJsonFormat
from services.router.parsers.formats.mistral import MistralFormat
from services.router.parsers.row import Row

if TYPE_CHECKING:
    from services.router.parsers.base import ToolFormat

JSON_ROWS: tuple[Row[ToolFormat], ...] = (
    Row(
        names=("hermes", "qwen3_json", "granite4", "ernie45"),
        format=MarkedJsonFormat(begins=("<tool_call>",), ends=("</tool_call>",), marks_each=True),
        writes='`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, anywhere',
        families="Hermes, Qwen 2.5, Qwen 3, Granite 4, ERNIE 4.5",
        signs=(("<tool_call>",),),
        unlike=("<function=", "<arg_key>", "<|tool_call|>", "]<]minimax[>["),
    ),
    Row(
        names=("longcat",),
        format=MarkedJsonFormat(
            begins=("<longcat_tool_call>",), ends=("</longcat_tool_call>",), marks_each=True
        ),
        writes='`<longcat_tool_call>{"name": …, "arguments": {…}}</longcat_tool_call>`',
        families="LongCat Flash",
        signs=(("<longcat_tool_call>",),),
    ),
    Row(
        names=("jamba", "hunyuan_a13b", "minimax"),
        format=MarkedJsonFormat(begins=("<tool_calls>",), ends=("</tool_calls>",)),
        writes="`<tool_calls>[{…}, {…}]</tool_calls>`, also a call a line without brackets",
        families="Jamba, Hunyuan A13B, MiniMax M1",
        signs=(("<tool_calls>",),),
        unlike=("<arg_key>",),
    ),
    Row(
        names=("granite",),
        format=MarkedJsonFormat(begins=("<|tool_call|>", "<tool_call>")),
        writes="`<|tool_call|>[{…}, {…}]`, also with `<tool_call>`",
        families="Granite 3",
        signs=(("<|tool_call|>", "<|start_of_role|>"),),
    ),
    Row(
        names=("granite-20b-fc",),
        format=MarkedJsonFormat(begins=("<function_call>",)),
        writes='`<function_call> {"name": …, "arguments": {…}}`, once per call',
        families="Granite 20B function calling",
        signs=(("<function_call>",),),
    ),
    Row(
        names=("phi4_mini_json",),
        format=MarkedJsonFormat(begins=("functools", "<|tool_call|>"), ends=("<|/tool_call|>",)),
        writes="`functools[{…}, {…}]`, also `<|tool_call|>[{…}]<|/tool_call|>`",
        families="Phi-4 mini",
        signs=(("functools[",), ("<|tool|>", "<|/tool|>")),
    ),
    Row(
        names=("internlm",),
        format=MarkedJsonFormat(
            begins=("<|action_start|><|plugin|>",), ends=("<|action_end|>",), arguments="parameters"
        ),
        writes='`<|action_start|><|plugin|>{"name": …, "parameters": {…}}<|action_end|>`',
        families="InternLM 2, 2.5",
        signs=(("<|action_start|>",),),
    ),
    Row(
        names=("gigachat3",),
        format=MarkedJsonFormat(begins=("<|function_call|>", "function call<|role_sep|>")),
        writes='`<|function_call|>{"name": …, "arguments": {…}}`',
        families="GigaChat 3",
        signs=(("<|function_call|>",), ("function call<|role_sep|>",)),
    ),
    Row(
        names=("cohere_command3", "cohere_command4"),
        format=MarkedJsonFormat(
            begins=("<|START_ACTION|>",), ends=("<|END_ACTION|>",), arguments="parameters"
        ),
        writes='`<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>`',
        families="Command R7B, Command A, Command A+",
        signs=(("<|START_ACTION|>",),),
    ),
    Row(
        names=("apertus",),
        format=MarkedJsonFormat(
            begins=("<|tools_prefix|>",), ends=("<|tools_suffix|>",), is_keyed=True
        ),
        writes="`<|tools_prefix|>[{name: {…}}]<|tools_suffix|>`",
        families="Apertus",
        signs=(("<|tools_prefix|>",),),
    ),
    Row(
        names=("xlam",),
        format=MarkedJsonFormat(
            begins=("<tool_call>", "```json", "```\n"),
            ends=("</tool_call>", "```"),
            bare=True,
        ),
        writes="a list of calls, alone or in a block of code; never chosen by `auto`",
        families="xLAM",
    ),
    Row(
        names=("llama3_json", "llama4_json"),
        format=Llama3JsonFormat(),
        writes='`{"name": …, "parameters": {…}}`, several with `;`; also after `<|python_tag|>`',
        families="Llama 3.1, 3.2, 3.3, 4",
        signs=(("<|python_tag|>",), ("<|start_header_id|>", '"parameters": ')),
    ),
    Row(
        names=("mistral",),
        format=MistralFormat(),
        writes="`[TOOL_CALLS] [{…}, {…}]`, or `[TOOL_CALLS]name[ARGS]{…}`",
        families="Mistral, Ministral",
        signs=(("[TOOL_CALLS]",),),
    ),
    Row(
        names=("json",),
        format=JsonListFormat(),
        writes='`[{"name": …, "parameters": {…}}]` and nothing else; never chosen by `auto`',
        families="models told to in the prompt",
    ),
)
