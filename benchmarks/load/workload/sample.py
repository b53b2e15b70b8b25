"""One request to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One request to be. `prompt_len` is 0 where only the server can count."""

    prompt: str | list[int]
    prompt_len: int
    output_len: int
