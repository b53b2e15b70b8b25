"""An answer as an object, with OpenAI's client and Pydantic: the model can write nothing else."""

from __future__ import annotations

import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel, Field


class Review(BaseModel):
    """What the answer has to be."""

    mood: Literal["good", "bad"]
    stars: int = Field(ge=1, le=5)


def main() -> None:
    """Ask for a review."""
    key = os.environ.get("BATON_API_KEY", "none")
    with OpenAI(base_url="http://127.0.0.1:8000/v1", api_key=key) as client:
        answer = client.chat.completions.parse(
            model="pydoc",
            messages=[{"role": "user", "content": "Review: it was a lovely evening."}],
            response_format=Review,
            max_tokens=400,
            temperature=0,
        )
        review = answer.choices[0].message.parsed
        assert review is not None
        print(review.mood, review.stars)


if __name__ == "__main__":
    main()
