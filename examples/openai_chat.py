"""Chat with OpenAI's client: a whole answer, then one as a stream with what it cost."""

from __future__ import annotations

import os

from openai import OpenAI


def main() -> None:
    """Ask twice."""
    key = os.environ.get("BATON_API_KEY", "none")
    with OpenAI(base_url="http://127.0.0.1:8000/v1", api_key=key) as client:
        answer = client.chat.completions.create(
            model="pydoc",
            messages=[{"role": "user", "content": "What does os.path.join do?"}],
            max_tokens=64,
        )
        print(answer.choices[0].message.content)

        stream = client.chat.completions.create(
            model="pydoc",
            messages=[{"role": "user", "content": "What is a generator?"}],
            max_tokens=64,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
            if chunk.usage is not None:
                print(f"\n{chunk.usage.completion_tokens} tokens")


if __name__ == "__main__":
    main()
