"""LangChain: `pip install langchain-openai`. Whole, as a stream, and as an object."""

from __future__ import annotations

import os
from typing import Literal

from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Mood(BaseModel):
    """How somebody feels."""

    mood: Literal["good", "bad"]


def main() -> None:
    """Ask three times."""
    chat = ChatOpenAI(
        model="pydoc",
        base_url="http://127.0.0.1:8000/v1",
        api_key=os.environ.get("BATON_API_KEY", "none"),
        temperature=0,
        max_completion_tokens=400,
    )
    print(chat.invoke("What does os.path.join do?").text)
    for chunk in chat.stream("What is a generator?"):
        print(chunk.text, end="", flush=True)
    print()
    print(chat.with_structured_output(Mood, method="json_schema").invoke("What a lovely evening!"))


if __name__ == "__main__":
    main()
