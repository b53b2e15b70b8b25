"""vLLM's parameters of requests for vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.errors import UnsupportedError
from shared.generation.truncation import Side  # noqa: TC001 part of the class
from shared.pooling.facts import PoolTask

#: vLLM's names of what is wanted of a text.
TASKS = {
    "embed": PoolTask.EMBED,
    "token_embed": PoolTask.TOKEN_EMBED,
    "encode": PoolTask.TOKEN_EMBED,
    "classify": PoolTask.CLASSIFY,
    "score": PoolTask.SCORE,
}


@dataclass
class PoolingParams:
    """How texts become vectors; None: as the checkpoint says."""

    #: Keep this number of a text's tokens; -1: as many as the model takes.
    truncate_prompt_tokens: int | None = None
    truncation_side: Side | None = None
    #: Leading numbers of embeddings that are wanted.
    dimensions: int | None = None
    #: Whether embeddings get the length 1, and logits become scores.
    use_activation: bool | None = None
    #: vLLM's older name of the same.
    normalize: bool | None = None
    task: str | None = None
    #: Beyond vLLM: name of the checkpoint's prompt in front of each text; empty: none.
    prompt_name: str | None = None
    extra_kwargs: dict[str, Any] | None = None

    @property
    def activates(self) -> bool | None:
        """Whether numbers are activated."""
        return self.normalize if self.use_activation is None else self.use_activation


def read_task(name: str) -> PoolTask:
    """Return the task of a name.

    Raises:
        UnsupportedError: there is none here.
    """
    task = TASKS.get(name)
    if task is None:
        known = ", ".join(TASKS)
        raise UnsupportedError(f"pooling_task {name!r} is not known; there are {known}")
    return task
