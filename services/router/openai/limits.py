"""How large a request may be. Larger ones are refused before any work is done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the HTTP API. The pipeline has its own, on tokens and on queues."""

    max_body_bytes: int = 16 * 2**20
    #: Prompts in one completions request; each counts as a request of its own.
    max_prompts: int = 256
    #: Answers per prompt.
    max_n: int = 128
    max_stop_strings: int = 64
    #: Bodies longer than this are tokenised in a thread, so that other streams keep flowing.
    inline_body_bytes: int = 2**10
