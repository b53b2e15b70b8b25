"""A model runner in a process of its own, which gets plans through shared memory."""

from __future__ import annotations

import json
import multiprocessing
from collections import deque
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

from shared.engine.step.plan_codec import decode_plan, decode_result, encode_plan, encode_result

if TYPE_CHECKING:
    from multiprocessing.synchronize import Semaphore
    from pathlib import Path

    from shared.engine.step.model_runner import RunningStep, StepResult
    from shared.engine.step.plan import StepPlan

_NUM_BYTES = 1 << 22
_LENGTH_BYTES = 8
_TIMEOUT_S = 120.0
_BUILD, _LAUNCH, _COLLECT, _END = b"B", b"L", b"C", b"E"


class Box:
    """Room for one message in shared memory."""

    def __init__(self, context: Any) -> None:
        self._memory = SharedMemory(create=True, size=_NUM_BYTES)
        self._empty: Semaphore = context.Semaphore(1)
        self._full: Semaphore = context.Semaphore(0)

    def put(self, message: bytes) -> None:
        assert self._empty.acquire(timeout=_TIMEOUT_S)
        end = _LENGTH_BYTES + len(message)
        self._memory.buf[:end] = len(message).to_bytes(_LENGTH_BYTES, "little") + message
        self._full.release()

    def take(self) -> bytes:
        assert self._full.acquire(timeout=_TIMEOUT_S)
        num = int.from_bytes(self._memory.buf[:_LENGTH_BYTES], "little")
        message = bytes(self._memory.buf[_LENGTH_BYTES : _LENGTH_BYTES + num])
        self._empty.release()
        return message

    def close(self) -> None:
        self._memory.close()
        with suppress(FileNotFoundError):
            self._memory.unlink()


class RemoteRunner:
    """What an engine needs of a `ModelRunner`; nothing but bytes goes to the other process."""

    def __init__(self, model: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._plans, self._results = Box(context), Box(context)
        arguments = (str(model), self._plans, self._results)
        self._process = context.Process(target=_follow, args=arguments, daemon=True)
        self._process.start()

    def build(self, settings: dict[str, Any]) -> None:
        """Begin anew, for an engine with these settings of `LLM`."""
        self._plans.put(_BUILD + json.dumps(settings).encode())

    def launch(self, plan: StepPlan) -> RunningStep:
        self._plans.put(_LAUNCH + encode_plan(plan))
        return _Remote()  # type: ignore[return-value]  # the pipeline reads `hidden` alone

    def collect(self, step: RunningStep) -> StepResult:
        self._plans.put(_COLLECT)
        return decode_result(self._results.take())

    def close(self) -> None:
        self._plans.put(_END)
        self._process.join(_TIMEOUT_S)
        self._plans.close()
        self._results.close()


class _Remote:
    hidden = None


def _follow(model: str, plans: Box, results: Box) -> None:
    """The other process: it has a model, a KV cache and a runner, and schedules nothing."""
    from shared.engine.llm import LLM

    llm: LLM | None = None
    steps: deque[RunningStep] = deque()
    while (message := plans.take())[:1] != _END:
        kind, body = message[:1], message[1:]
        if kind == _BUILD:
            llm = LLM(model, **json.loads(body))
            continue
        assert llm is not None
        runner = llm.engine._parts.runner
        if kind == _LAUNCH:
            steps.append(runner.launch(decode_plan(body)))
        else:
            results.put(encode_result(runner.collect(steps.popleft())))
