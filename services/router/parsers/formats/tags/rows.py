"""Formats whose arguments stand between tags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.formats.tags.hunyuan import HunyuanFormat
from services.router.parsers.formats.tags.k2_horizon import K2HorizonFormat
from services.router.parsers.formats.tags.minicpm5 import MiniCpm5Format
from services.router.parsers.formats.tags.minimax_m3 import MinimaxM3Format
from services.router.parsers.formats.tags.tagged import XmlFormat
from services.router.parsers.row import Row
from services.router.parsers.syntax.values import NO_STRING

if TYPE_CHECKING:
    from services.router.parsers.base import ToolFormat

_STRING = frozenset({"string"})
#: Behind names in quotes.
_QUOTED = (('">', frozenset[str]()),)
#: DeepSeek's own prefix of tags.
_DSML = "｜DSML｜"


def _dsml(block: str, gap: str = "") -> XmlFormat:
    mark = _DSML + gap
    return XmlFormat(
        block=(f"<{mark}{block}>", f"</{mark}{block}>"),
        call=f'<{mark}invoke name="',
        name_ends=('">',),
        key=f'<{mark}parameter name="',
        key_ends=(('" string="true">', _STRING), ('" string="false">', NO_STRING), *_QUOTED),
        value_end=f"</{mark}parameter>",
        call_end=f"</{mark}invoke>",
    )


def _invoke_tags(block: str) -> XmlFormat:
    return XmlFormat(
        block=(f"<{block}>", f"</{block}>"),
        call='<invoke name="',
        name_ends=('">',),
        key='<parameter name="',
        key_ends=_QUOTED,
        value_end="</parameter>",
        call_end="</invoke>",
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


XML_ROWS: tuple[Row[ToolFormat], ...] = (
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
        names=("glm45", "glm47", "ling3", "poolside_v1"),
        format=XmlFormat(
            call="<tool_call>",
            name_ends=("<arg_key>", "</tool_call>"),
            key="<arg_key>",
            key_ends=(("</arg_key>", frozenset()),),
            value="<arg_value>",
            value_end="</arg_value>",
            call_end="</tool_call>",
        ),
        writes="`<tool_call>f<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>`",
        families="GLM 4.5, 4.6, 4.7, Ling 3",
        signs=(("<arg_key>",),),
        unlike=("<tool_sep>",),
    ),
    Row(
        names=("hy_v3", "hy_v4"),
        format=HunyuanFormat(),
        writes="`<tool_calls><tool_call>f<tool_sep><arg_key>city</arg_key>"
        "<arg_value>Rome</arg_value></tool_call></tool_calls>`, also without `<tool_sep>`, and "
        "with `:opensource` in each tag",
        families="Hunyuan 3, 4",
        signs=(("<tool_sep>",), ("<tool_call:opensource>",)),
    ),
    Row(
        names=("k2_horizon",),
        format=K2HorizonFormat(),
        writes="`<ifm|tool_calls><ifm|tool_call>f<ifm|arg_key>city</ifm|arg_key>"
        "<ifm|arg_value>Rome</ifm|arg_value></ifm|tool_call></ifm|tool_calls>`, also with types, "
        "or JSON in `<ifm|tool_call>`",
        families="K2 Horizon",
        signs=(("<ifm|tool_call",),),
    ),
    Row(
        names=("minimax_m2",),
        format=_invoke_tags("minimax:tool_call"),
        writes='`<minimax:tool_call><invoke name="f"><parameter name="city">Rome</parameter>'
        "</invoke></minimax:tool_call>`",
        families="MiniMax M2",
        signs=(("<minimax:tool_call>",),),
    ),
    Row(
        names=("minimax_m3",),
        format=MinimaxM3Format(),
        writes="the same with `]<]minimax[>[` before every tag, and `<city>Rome</city>` for an "
        "argument",
        families="MiniMax M3",
        signs=(("]<]minimax[>[",),),
    ),
    Row(
        names=("minicpm5",),
        format=MiniCpm5Format(),
        writes='`<function name="f"><param name="city">Rome</param></function>`',
        families="MiniCPM 5",
        signs=(('<function name="', '<param name="'),),
    ),
    Row(
        names=("dots",),
        format=_invoke_tags("dots_function_call"),
        writes="as `minimax_m2` between `<dots_function_call>` and `</dots_function_call>`",
        families="dots.llm",
        signs=(("<dots_function_call>",),),
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
        names=("deepseek_v41",),
        format=_dsml("calls", " "),
        writes="the same between `<｜DSML｜ calls>` and `</｜DSML｜ calls>`",
        families="DeepSeek V4.1",
        signs=((f"{_DSML} calls",),),
        unlike=("function_calls", f"{_DSML}tool_calls"),
    ),
    Row(
        names=("step3",),
        format=XmlFormat(
            block=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
            call='<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
            name_ends=('">',),
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
