"""Asks with LiteLLM, whole and as a stream, and prints both. Runs where LiteLLM is installed."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def ask(litellm: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The same completion twice."""
    whole = litellm.completion(**asked)
    chunks = litellm.completion(**asked, stream=True)
    return {
        "whole": whole.choices[0].message.content or "",
        "completion_tokens": whole.usage.completion_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
    }


def main() -> None:
    """The only argument is a list of the fields of completions, as JSON."""
    litellm = importlib.import_module("litellm")
    answers = [ask(litellm, asked) for asked in json.loads(sys.argv[1])]
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
