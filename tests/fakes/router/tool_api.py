"""A chat API whose model reasons and calls tools as Hermes does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.plan import ChatFormats
from shared.generation.limits import RequestLimits
from tests.fakes.router.openai_api import OpenAIApi

HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
CALLS = (
    'I will look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"}}\n</tool_call>'
    '\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)
THOUGHT = "<think>\nWhere?\n</think>\n\n"
TEMPLATE = Path("tests/fakes/text/chat_templates/hermes.jinja").read_text()
LIMITS = RequestLimits(max_tools=2)
FORMATS = ChatFormats(tools=TOOL_FORMATS["hermes"], reasoning=REASONING_FORMATS["think"])


def tool_api(*answers: str) -> OpenAIApi:
    """It answers with reasoning, a text and two calls, unless it is told what to say."""
    return OpenAIApi(
        *(answers or (THOUGHT + CALLS,)), formats=FORMATS, chat_template=TEMPLATE, limits=LIMITS
    )
