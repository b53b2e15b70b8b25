"""The formats of tool calls that are built in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.formats.gemma import GemmaFormat
from services.router.parsers.formats.json_rows import JSON_ROWS
from services.router.parsers.formats.kimi_k3 import KimiK3Format
from services.router.parsers.formats.messages.harmony import HarmonyCalls
from services.router.parsers.formats.messages.inkling import InklingCalls
from services.router.parsers.formats.messages.muse_glimmer import MuseGlimmerCalls
from services.router.parsers.formats.pythonic import PythonicFormat
from services.router.parsers.formats.section_rows import SECTION_ROWS
from services.router.parsers.formats.tags.rows import XML_ROWS
from services.router.parsers.row import Row

if TYPE_CHECKING:
    from services.router.parsers.base import ToolFormat

_OTHER_ROWS: tuple[Row[ToolFormat], ...] = (
    Row(
        names=("pythonic", "llama4_pythonic"),
        format=PythonicFormat(
            begin="<|python_start|>", end="<|python_end|>", bare=True, arguments="parameters"
        ),
        writes='`[f(a=1), g(b="x")]`, also between `<|python_start|>` and `<|python_end|>`',
        families="Llama 3.2 small, Llama 4",
        signs=(("<|python_start|>",), ("[func_name1(",)),
    ),
    Row(
        names=("lfm2",),
        format=PythonicFormat(begin="<|tool_call_start|>", end="<|tool_call_end|>", bare=False),
        writes="`<|tool_call_start|>[f(a=1)]<|tool_call_end|>`",
        families="LFM2",
        signs=(("<|tool_call_start|>",),),
    ),
    Row(
        names=("olmo3",),
        format=PythonicFormat(begin="<function_calls>", end="</function_calls>", bare=False),
        writes="`<function_calls>f(a=1)` and a call a line",
        families="OLMo 3",
        signs=(("<function_calls>",),),
    ),
    Row(
        names=("openai",),
        format=HarmonyCalls(),
        writes="`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>`, "
        "among reasoning",
        families="gpt-oss",
        signs=(("<|channel|>analysis",),),
    ),
    Row(
        names=("functiongemma",),
        format=GemmaFormat(
            begin="<start_function_call>", end="<end_function_call>", quote="<escape>"
        ),
        writes="`<start_function_call>call:f{city:<escape>Rome<escape>}<end_function_call>`",
        families="FunctionGemma",
        signs=(("<start_function_call>",),),
    ),
    Row(
        names=("gemma4",),
        format=GemmaFormat(begin="<|tool_call>", end="<tool_call|>", quote='<|"|>'),
        writes='`<|tool_call>call:f{city:<|"|>Rome<|"|>}<tool_call|>`',
        families="Gemma 4",
        signs=(("<|tool_call>",),),
    ),
    Row(
        names=("kimi_k3",),
        format=KimiK3Format(),
        writes='`<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>`, also one `json` for all arguments",
        families="Kimi K3",
        signs=(("<|open|>tools<|sep|>",), ("<|open|>", "<|close|>", "<|sep|>")),
    ),
    Row(
        names=("muse_glimmer",),
        format=MuseGlimmerCalls(),
        writes="`<|start|>assistant to=f<|message|><atem:function_calls>"
        '<atem:invoke name="f"><atem:parameter name="city">Rome</atem:parameter></atem:invoke>'
        "</atem:function_calls><|eom|>`, among reasoning",
        families="Muse Glimmer",
        signs=(("<atem:function_calls>",),),
    ),
    Row(
        names=("inkling",),
        format=InklingCalls(),
        writes='`<|message_model|>f<|content_invoke_tool_json|>{"name": …, "args": {…}}'
        "<|end_message|>`, among reasoning",
        families="Inkling",
        signs=(("<|content_invoke_tool_json|>",),),
    ),
)

TOOL_ROWS = (*JSON_ROWS, *SECTION_ROWS, *XML_ROWS, *_OTHER_ROWS)
