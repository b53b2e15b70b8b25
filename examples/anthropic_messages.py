"""Messages with Anthropic's client: a whole answer, then one as a stream."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anthropic import Anthropic

if TYPE_CHECKING:
    from anthropic.types import MessageParam

QUESTION: list[MessageParam] = [{"role": "user", "content": "What does os.path.join do?"}]


def main() -> None:
    """Ask twice."""
    key = os.environ.get("BATON_API_KEY", "none")
    with Anthropic(base_url="http://127.0.0.1:8000", api_key=key) as client:
        message = client.messages.create(model="pydoc", messages=QUESTION, max_tokens=64)
        print("".join(block.text for block in message.content if block.type == "text"))
        print(message.usage.output_tokens, "tokens")

        with client.messages.stream(model="pydoc", messages=QUESTION, max_tokens=64) as stream:
            for text in stream.text_stream:
                print(text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
