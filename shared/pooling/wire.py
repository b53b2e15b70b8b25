"""Conversion between what a model offers and proto/baton/v1/worker.proto."""

from __future__ import annotations

from baton.v1 import common_pb2, worker_pb2
from shared.errors import InvalidRequestError
from shared.pooling.facts import PoolingFacts, PoolingKind, PoolTask, ScoreActivation

_TASKS = {
    PoolTask.EMBED: common_pb2.POOL_TASK_EMBED,
    PoolTask.TOKEN_EMBED: common_pb2.POOL_TASK_TOKEN_EMBED,
    PoolTask.CLASSIFY: common_pb2.POOL_TASK_CLASSIFY,
    PoolTask.SCORE: common_pb2.POOL_TASK_SCORE,
}
_KNOWN = {number: task for task, number in _TASKS.items()}


def task_to_wire(task: PoolTask) -> common_pb2.PoolTask.ValueType:
    """Return the contract's value of a task."""
    return _TASKS[task]


def task_from_wire(number: common_pb2.PoolTask.ValueType) -> PoolTask:
    """Return the task of a message.

    Raises:
        InvalidRequestError: it is unset, or newer than this software.
    """
    task = _KNOWN.get(number)
    if task is None:
        raise InvalidRequestError(f"task: there is no value {number}", param="task")
    return task


def facts_to_wire(facts: PoolingFacts, *, is_only: bool) -> worker_pb2.PoolingFacts:
    """Return the message. `is_only`: the worker makes vectors alone."""
    return worker_pb2.PoolingFacts(
        kind=facts.kind.value,
        size=facts.size,
        max_len=facts.max_len,
        tasks=sorted(_TASKS[task] for task in facts.tasks),
        normalizes=facts.normalizes,
        supports_dimensions=facts.supports_dimensions,
        dimensions=facts.dimensions,
        prompts=dict(facts.prompts),
        default_prompt=facts.default_prompt,
        labels=facts.labels,
        activation=facts.activation.value,
        is_causal=facts.is_causal,
        num_token_types=facts.num_token_types,
        is_only=is_only,
    )


def facts_from_wire(message: worker_pb2.PoolingFacts) -> PoolingFacts:
    """Return what a worker offers, without tasks that are newer than this software.

    Raises:
        ValueError: it pools or scores in a way that is newer.
    """
    return PoolingFacts(
        kind=PoolingKind(message.kind),
        size=message.size,
        max_len=message.max_len,
        tasks=frozenset(_KNOWN[number] for number in message.tasks if number in _KNOWN),
        normalizes=message.normalizes,
        supports_dimensions=message.supports_dimensions,
        dimensions=tuple(message.dimensions),
        prompts=dict(message.prompts),
        default_prompt=message.default_prompt if message.HasField("default_prompt") else None,
        labels=tuple(message.labels),
        activation=ScoreActivation(message.activation),
        is_causal=message.is_causal,
        num_token_types=message.num_token_types,
    )
