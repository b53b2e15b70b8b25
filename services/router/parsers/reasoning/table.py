"""The formats of reasoning that are built in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.formats.kimi_k3 import SILENT, THINK, THINK_END, TOOLS
from services.router.parsers.formats.messages.harmony import HarmonyReasoning
from services.router.parsers.formats.messages.inkling import InklingReasoning
from services.router.parsers.formats.messages.muse_glimmer import MuseGlimmerReasoning
from services.router.parsers.reasoning.kept import KeptThinkFormat
from services.router.parsers.reasoning.think import ThinkFormat
from services.router.parsers.row import Row

if TYPE_CHECKING:
    from services.router.parsers.base import ReasoningFormat

#: In the order in which `auto` looks for them: the marks of the last rows are in templates of the
#: others as well.
REASONING_ROWS: tuple[Row[ReasoningFormat], ...] = (
    Row(
        names=("openai_gptoss",),
        format=HarmonyReasoning(),
        writes="`<|channel|>analysis<|message|>…<|end|>`, before and between calls",
        families="gpt-oss",
        signs=(("<|channel|>analysis",),),
    ),
    Row(
        names=("mistral",),
        format=ThinkFormat(begins=("[THINK]",), ends=("[/THINK]",)),
        writes="`[THINK]…[/THINK]`",
        families="Magistral, Ministral 3",
        signs=(("[THINK]",),),
    ),
    Row(
        names=("seed_oss",),
        format=ThinkFormat(begins=("<seed:think>",), ends=("</seed:think>",)),
        writes="`<seed:think>…</seed:think>`",
        families="Seed OSS",
        signs=(("<seed:think>",),),
    ),
    Row(
        names=("gemma4",),
        format=ThinkFormat(begins=("<|channel>thought",), ends=("<channel|>",)),
        writes="`<|channel>thought…<channel|>`",
        families="Gemma 4",
        signs=(("<|channel>",),),
    ),
    Row(
        names=("muse_glimmer",),
        format=MuseGlimmerReasoning(),
        writes="` to=self<|message|>…<|eom|>`, before and between calls",
        families="Muse Glimmer",
        signs=(("<atem:function_calls>",), ("to=self",)),
    ),
    Row(
        names=("inkling",),
        format=InklingReasoning(),
        writes="`<|content_thinking|>…<|end_message|>`, before and between calls",
        families="Inkling",
        signs=(("<|content_thinking|>",),),
    ),
    Row(
        names=("kimi_k3",),
        format=ThinkFormat(begins=(THINK,), ends=(THINK_END,), calls=(TOOLS,), silent=SILENT),
        writes="`<|open|>think<|sep|>…<|close|>think<|sep|>`, then the answer in "
        "`<|open|>response<|sep|>…<|close|>response<|sep|>`, or calls",
        families="Kimi K3",
        signs=((THINK,), ("<|open|>", "<|close|>", "<|sep|>")),
    ),
    Row(
        names=("plamo3",),
        format=ThinkFormat(
            begins=("<|plamo:begin_think:plamo|>",),
            ends=("<|plamo:end_think:plamo|>",),
            calls=("<|plamo:begin_tool_requests:plamo|>",),
        ),
        writes="`<|plamo:begin_think:plamo|>…<|plamo:end_think:plamo|>`; requests end it as well",
        families="PLaMo 3",
        signs=(("<|plamo:begin_think",),),
    ),
    Row(
        names=("k2_horizon",),
        format=ThinkFormat(
            begins=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
            ends=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
            calls=("<ifm|tool_calls>",),
        ),
        writes="`<ifm|think>…</ifm|think>`, also `think_fast` and `think_faster`; calls end it as "
        "well",
        families="K2 Horizon",
        signs=(("<ifm|think>",), ("<ifm|think_fast>",)),
    ),
    Row(
        names=("minimax_m3",),
        format=ThinkFormat(begins=("<mm:think>",), ends=("</mm:think>",)),
        writes="`<mm:think>…</mm:think>`",
        families="MiniMax M3",
        signs=(("<mm:think>",),),
    ),
    Row(
        names=("hy_v3", "hy_v4"),
        format=ThinkFormat(
            begins=("<think>", "<think:opensource>"), ends=("</think>", "</think:opensource>")
        ),
        writes="`<think>…</think>`, also `<think:opensource>…</think:opensource>`",
        families="Hunyuan 3, 4",
        signs=(("<think:opensource>",), ("<think>", "<tool_sep>")),
    ),
    Row(
        names=("cohere_command4",),
        format=ThinkFormat(
            begins=("<|START_THINKING|>",),
            ends=("<|END_THINKING|>",),
            answer=("<|START_TEXT|>", "<|END_TEXT|>"),
        ),
        writes="`<|START_THINKING|>…<|END_THINKING|>`, then `<|START_TEXT|>…<|END_TEXT|>` or calls",
        families="Command A+",
        signs=(("<|START_THINKING|>", "<|START_TEXT|>"),),
    ),
    Row(
        names=("cohere_command3",),
        format=ThinkFormat(
            begins=("<|START_THINKING|>",),
            ends=("<|END_THINKING|>",),
            answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
        writes="`<|START_THINKING|>…<|END_THINKING|>`, then "
        "`<|START_RESPONSE|>…<|END_RESPONSE|>` or calls",
        families="Command R7B, Command A",
        signs=(("<|START_THINKING|>",),),
    ),
    Row(
        names=("granite",),
        format=ThinkFormat(
            begins=("Here is my thought process:", "Here's my thought process:"),
            ends=("Here is my response:", "Here's my response:"),
        ),
        writes="`Here is my thought process: … Here is my response: …`",
        families="Granite 3.2, 3.3",
        signs=(("Here is my thought process:",),),
    ),
    Row(
        names=("hunyuan_a13b",),
        format=ThinkFormat(answer=("<answer>", "</answer>")),
        writes="`<think>…</think>`, then `<answer>…</answer>`",
        families="Hunyuan A13B",
        signs=(("<think>", "<answer>"),),
    ),
    Row(
        names=("ernie45",),
        format=ThinkFormat(answer=("<response>", "</response>"), opens_unsaid=True),
        writes="`…</think>`, then `<response>…</response>` or the bare answer",
        families="ERNIE 4.5 Thinking",
        signs=(("<think>", "<response>"),),
    ),
    Row(
        names=("kimi_k2",),
        format=ThinkFormat(calls=("<|tool_calls_section_begin|>",)),
        writes="`<think>…</think>`; a section of calls ends it as well",
        families="Kimi K2 Thinking",
        signs=(("<think>", "<|tool_calls_section_begin|>"),),
    ),
    Row(
        names=(
            "think",
            "qwen3",
            "deepseek_v3",
            "deepseek_v4",
            "deepseek_v41",
            "glm45",
            "glm47",
            "granite_thinking_parser",
            "holo2",
            "ling3",
            "mimo",
            "nemotron_v3",
            "poolside_v1",
        ),
        format=ThinkFormat(),
        writes="`<think>…</think>` before the answer; the chat template may open it, or close it "
        "at once",
        families="Qwen 3, DeepSeek V3.1, GLM 4.5, Granite 4.2, Holo 2, MiMo, Nemotron 3",
        signs=(("<think>",), ("</think>",)),
    ),
    Row(
        names=("deepseek_r1", "minimax_m2", "olmo3", "step3", "step3p5"),
        format=ThinkFormat(opens_unsaid=True),
        writes="the same, but an answer begins within the reasoning even where nothing opens it; "
        "never chosen by `auto`",
        families="DeepSeek R1, MiniMax M2, OLMo 3, Step 3, Step 3.5",
    ),
    Row(
        names=("minimax_m2_append_think",),
        format=KeptThinkFormat(),
        writes="the same, and it stays in `content` behind `<think>`; never chosen by `auto`",
        families="MiniMax M2, for clients that send the reasoning back",
    ),
)
