"""Runs a program, then asks with LiteLLM, whole and as a stream, and prints both.

Runs where LiteLLM is installed.
"""

from __future__ import annotations

import importlib
import json
import runpy
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
    """The arguments are the program, and a list of the fields of completions, as JSON."""
    program, asked = sys.argv[1:]
    runpy.run_path(program, run_name="__main__")
    litellm = importlib.import_module("litellm")
    answers = [ask(litellm, fields) for fields in json.loads(asked)]
    sys.stdout.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
