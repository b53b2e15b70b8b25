"""A request of the worker's own, which shows whether the engine answers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING

from shared.engine.sequence.events import Failed
from shared.engine.sequence.request import EngineRequest
from shared.errors import WorkerLostError
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from shared.engine.thread.engine_thread import EngineThread

#: Shorter than any block size in use, so that nothing of it is cached.
PROMPT = (1, 2, 3)
#: One step computes the prompt, another one decodes.
NUM_TOKENS = 2
#: Before all other requests.
PRIORITY = -(2**31)


class SelfCheck:
    """Sends a short request to the engine. A call returns when the answer is complete."""

    def __init__(self, engine: EngineThread, *, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._numbers = count(1)

    async def __call__(self) -> None:
        """Send the request.

        Raises:
            BatonError, TimeoutError: the engine does not answer correctly.
        """
        request = EngineRequest(
            request_id=f"self-check-{next(self._numbers)}",
            prompt_token_ids=PROMPT,
            sampling=SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True),
            priority=PRIORITY,
        )
        num_tokens = 0
        async with asyncio.timeout(self._timeout_s):
            stream = await self._engine.submit(request)
            async with aclosing(stream):
                async for event in stream:
                    if isinstance(event, Failed):
                        raise WorkerLostError(f"a step failed: {event.error}")
                    num_tokens += len(getattr(event, "token_ids", ()))
        if num_tokens != NUM_TOKENS:
            raise WorkerLostError(f"{num_tokens} tokens instead of {NUM_TOKENS}")
