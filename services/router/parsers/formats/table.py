"""The formats of tool calls that are built in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import JsonListFormat
from services.router.parsers.formats.llama3_json import Llama3JsonFormat
from services.router.parsers.formats.marked_json import MarkedJsonFormat
from services.router.parsers.formats.mistral import MistralFormat
from services.router.parsers.formats.pythonic import PythonicFormat
from services.router.parsers.row import Row

if TYPE_CHECKING:
    from services.router.parsers.base import ToolFormat

TOOL_ROWS: tuple[Row[ToolFormat], ...] = (
    Row(
        names=("hermes",),
        format=MarkedJsonFormat(begins=("<tool_call>",), end="</tool_call>"),
        writes='`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, anywhere',
        families="Hermes, Qwen 2.5, Qwen 3",
        signs=(("<tool_call>",),),
        unlike=("<function=", "<arg_key>"),
    ),
    Row(
        names=("llama3_json",),
        format=Llama3JsonFormat(),
        writes='`{"name": …, "parameters": {…}}`, several with `;`; also after `<|python_tag|>`',
        families="Llama 3.1, 3.2, 3.3",
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
        names=("pythonic",),
        format=PythonicFormat(),
        writes='`[f(a=1), g(b="x")]`, also between `<|python_start|>` and `<|python_end|>`',
        families="Llama 3.2 small, Llama 4",
        signs=(("<|python_start|>",), ("[func_name1(",)),
    ),
    Row(
        names=("json",),
        format=JsonListFormat(),
        writes='`[{"name": …, "parameters": {…}}]` and nothing else; never chosen by `auto`',
        families="models told to in the prompt",
    ),
)
