"""Tools with OpenAI's client: the model calls a function, gets its result, and goes on."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from openai import OpenAI

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def get_weather(city: str) -> str:
    """What a real program would look up."""
    return f"sunny in {city}"


def main() -> None:
    """One round: question, call, result, answer."""
    key = os.environ.get("BATON_API_KEY", "none")
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "How is the weather in Rome?"}
    ]
    with OpenAI(base_url="http://127.0.0.1:8000/v1", api_key=key) as client:
        # `required`: the answer is calls that fit the schema, whatever the model. With `auto` it
        # may answer in words; then the model has to know how calls are written (docs/tools.md).
        answer = client.chat.completions.create(
            model="pydoc",
            messages=messages,
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        [call] = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        print(call.function.name, call.function.arguments)

        messages += [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {
                            "name": call.function.name,
                            "arguments": call.function.arguments,
                        },
                    }
                ],
            },
            {
                "role": "tool",
                "tool_call_id": call.id,
                "content": get_weather(**json.loads(call.function.arguments)),
            },
        ]
        answer = client.chat.completions.create(model="pydoc", messages=messages, max_tokens=32)
        print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
