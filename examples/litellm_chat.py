"""LiteLLM: `pip install litellm`, in an environment of its own. OpenAI's API, then Anthropic's."""

from __future__ import annotations

import os

import litellm

litellm.suppress_debug_info = True
MESSAGES = [{"role": "user", "content": "What does os.path.join do?"}]


def main() -> None:
    """Ask twice; the model's prefix says which API is spoken."""
    key = os.environ.get("BATON_API_KEY", "none")
    answer = litellm.completion(
        model="openai/pydoc",
        api_base="http://127.0.0.1:8000/v1",
        api_key=key,
        messages=MESSAGES,
        max_tokens=64,
    )
    print(answer.choices[0].message.content)
    print("--")
    stream = litellm.completion(
        model="anthropic/pydoc",
        api_base="http://127.0.0.1:8000",
        api_key=key,
        messages=MESSAGES,
        max_tokens=64,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
