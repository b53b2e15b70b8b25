"""What an answer's log probabilities are."""

from __future__ import annotations

from enum import StrEnum


class LogprobsMode(StrEnum):
    """Names as in vLLM. Raw: what the model computes; processed: what the token is drawn from.

    Between the two lie the grammar, penalties and all else that changes logits, the temperature and
    the filters. A processed number of a token that cannot come is minus infinity. Prompts have no
    such steps: their numbers are raw.
    """

    RAW_LOGPROBS = "raw_logprobs"
    PROCESSED_LOGPROBS = "processed_logprobs"
    RAW_LOGITS = "raw_logits"
    PROCESSED_LOGITS = "processed_logits"

    @property
    def is_processed(self) -> bool:
        """Whether they are taken behind all steps of sampling."""
        return self in (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS)

    @property
    def is_logits(self) -> bool:
        """Whether they are logits, not log probabilities."""
        return self in (LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS)
