"""The formats of tool calls that are built in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from services.router.parsers.formats.gemma import GemmaFormat
from services.router.parsers.formats.harmony import HarmonyCalls
from services.router.parsers.formats.json_list import JsonListFormat
from services.router.parsers.formats.llama3_json import Llama3JsonFormat
from services.router.parsers.formats.marked_json import MarkedJsonFormat
from services.router.parsers.formats.mistral import MistralFormat
from services.router.parsers.formats.pythonic import PythonicFormat
from services.router.parsers.formats.sections import SectionFormat
from services.router.parsers.formats.xml import XmlFormat
from services.router.parsers.row import Row
from services.router.parsers.syntax.values import NO_STRING

if TYPE_CHECKING:
    from services.router.parsers.base import ToolFormat

_STRING = frozenset({"string"})
#: Behind names in quotes.
_QUOTED = (('">', frozenset[str]()),)
#: DeepSeek's own prefix of tags.
_DSML = "｜DSML｜"


def _dsml(block: str) -> XmlFormat:
    return XmlFormat(
        block=(f"<{_DSML}{block}>", f"</{_DSML}{block}>"),
        call=f'<{_DSML}invoke name="',
        name_end='">',
        key=f'<{_DSML}parameter name="',
        key_ends=(('" string="true">', _STRING), ('" string="false">', NO_STRING), *_QUOTED),
        value_end=f"</{_DSML}parameter>",
        call_end=f"</{_DSML}invoke>",
    )


def _function_tags(begin: str, end: str, *, trims_lines: bool) -> XmlFormat:
    return XmlFormat(
        block=(begin, end),
        call="<function=",
        key="<parameter=",
        value_end="</parameter>",
        call_end="</function>",
        trims_lines=trims_lines,
    )


_JSON_ROWS: tuple[Row[ToolFormat], ...] = (
    Row(
        names=("hermes", "qwen3_json", "granite4", "ernie45"),
        format=MarkedJsonFormat(begins=("<tool_call>",), ends=("</tool_call>",)),
        writes='`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, anywhere',
        families="Hermes, Qwen 2.5, Qwen 3, Granite 4, ERNIE 4.5",
        signs=(("<tool_call>",),),
        unlike=("<function=", "<arg_key>", "<|tool_call|>"),
    ),
    Row(
        names=("longcat",),
        format=MarkedJsonFormat(begins=("<longcat_tool_call>",), ends=("</longcat_tool_call>",)),
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
        names=("cohere_command3",),
        format=MarkedJsonFormat(
            begins=("<|START_ACTION|>",), ends=("<|END_ACTION|>",), arguments="parameters"
        ),
        writes='`<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>`',
        families="Command R7B, Command A",
        signs=(("<|START_ACTION|>",),),
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

_SECTION_ROWS: tuple[Row[ToolFormat], ...] = (
    Row(
        names=("deepseek_v3",),
        format=SectionFormat(
            section="<｜tool▁calls▁begin｜>",
            call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            header_end="\n```json\n",
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
            header_end="<｜tool▁sep｜>",
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
            header_end="<|tool_call_argument_begin|>",
            call_end="<|tool_call_end|>",
            section_end="<|tool_calls_section_end|>",
            header=re.compile(r"(?P<id>(?:functions\.)?(?P<name>.+?):\d+)"),
        ),
        writes="`<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        "<|tool_call_argument_begin|>{…}<|tool_call_end|>…`; the call's id is the model's",
        families="Kimi K2",
        signs=(("<|tool_calls_section_begin|>",),),
    ),
)

_XML_ROWS: tuple[Row[ToolFormat], ...] = (
    Row(
        names=("qwen3_coder", "qwen3_xml", "step3p5", "mimo"),
        format=_function_tags("<tool_call>", "</tool_call>", trims_lines=True),
        writes="`<tool_call><function=f><parameter=city>Rome</parameter></function></tool_call>`",
        families="Qwen 3 Coder, Qwen 3.5, Nemotron 3, Step 3.5, MiMo",
        signs=(("<tool_call>", "<function="),),
        unlike=("<seed:tool_call>",),
    ),
    Row(
        names=("seed_oss",),
        format=_function_tags("<seed:tool_call>", "</seed:tool_call>", trims_lines=False),
        writes="the same between `<seed:tool_call>` and `</seed:tool_call>`",
        families="Seed OSS",
        signs=(("<seed:tool_call>",),),
    ),
    Row(
        names=("glm45", "glm47"),
        format=XmlFormat(
            call="<tool_call>",
            name_end=None,
            key="<arg_key>",
            key_ends=(("</arg_key>", frozenset()),),
            value="<arg_value>",
            value_end="</arg_value>",
            call_end="</tool_call>",
        ),
        writes="`<tool_call>f<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>`",
        families="GLM 4.5, 4.6, 4.7",
        signs=(("<arg_key>",),),
    ),
    Row(
        names=("minimax_m2",),
        format=XmlFormat(
            block=("<minimax:tool_call>", "</minimax:tool_call>"),
            call='<invoke name="',
            name_end='">',
            key='<parameter name="',
            key_ends=_QUOTED,
            value_end="</parameter>",
            call_end="</invoke>",
        ),
        writes='`<minimax:tool_call><invoke name="f"><parameter name="city">Rome</parameter>'
        "</invoke></minimax:tool_call>`",
        families="MiniMax M2",
        signs=(("<minimax:tool_call>",),),
    ),
    Row(
        names=("deepseek_v32",),
        format=_dsml("function_calls"),
        writes='`<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="city" '
        'string="true">Rome</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>`',
        families="DeepSeek V3.2",
        signs=((f"{_DSML}function_calls",), ("｜DSML｜", "function_calls")),
    ),
    Row(
        names=("deepseek_v4",),
        format=_dsml("tool_calls"),
        writes="the same between `<｜DSML｜tool_calls>` and `</｜DSML｜tool_calls>`",
        families="DeepSeek V4",
        signs=((f"{_DSML}tool_calls",),),
        unlike=("function_calls",),
    ),
    Row(
        names=("step3",),
        format=XmlFormat(
            block=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
            call='<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
            name_end='">',
            key='<steptml:parameter name="',
            key_ends=_QUOTED,
            value_end="</steptml:parameter>",
            call_end="</steptml:invoke><｜tool_call_end｜>",
        ),
        writes="`<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="f"><steptml:parameter name="city">Rome</steptml:parameter>'
        "</steptml:invoke><｜tool_call_end｜>…`",
        families="Step 3",
        signs=(("<｜tool_calls_begin｜>",),),
    ),
)

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
)

TOOL_ROWS = (*_JSON_ROWS, *_SECTION_ROWS, *_XML_ROWS, *_OTHER_ROWS)
