"""Asks with LiteLLM, whole and as a stream, and prints both. Runs where LiteLLM is installed."""

from __future__ import annotations

import importlib
import json
import sys


def main() -> None:
    """The only argument is the fields of the completion, as JSON."""
    litellm = importlib.import_module("litellm")
    asked = json.loads(sys.argv[1])
    whole = litellm.completion(**asked)
    chunks = litellm.completion(**asked, stream=True)
    said = {
        "whole": whole.choices[0].message.content or "",
        "completion_tokens": whole.usage.completion_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
    }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
