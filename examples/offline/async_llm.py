"""Stream several answers side by side: each output has the new tokens only."""

from __future__ import annotations

import asyncio

from baton import SamplingParams
from baton.engine.arg_utils import AsyncEngineArgs
from baton.sampling_params import RequestOutputKind
from baton.v1.engine.async_llm import AsyncLLM

PROMPTS = ["What does len do?", "What is a module?"]


async def stream(engine: AsyncLLM, prompt: str, request_id: str) -> str:
    """Return the text of an answer, piece by piece."""
    sampling_params = SamplingParams(
        max_tokens=40, temperature=0.8, top_p=0.95, seed=42, output_kind=RequestOutputKind.DELTA
    )
    pieces: list[str] = []
    async for output in engine.generate(
        request_id=request_id, prompt=prompt, sampling_params=sampling_params
    ):
        pieces += [completion.text for completion in output.outputs]
        if output.finished:
            break
    return f"{request_id}: {len(pieces)} pieces: {''.join(pieces)!r}"


async def main() -> None:
    """Print the answers."""
    engine_args = AsyncEngineArgs(model="models/pydoc/checkpoint", enforce_eager=True)
    engine = AsyncLLM.from_engine_args(engine_args)
    try:
        answers = (stream(engine, prompt, f"stream-{n}") for n, prompt in enumerate(PROMPTS))
        print(*await asyncio.gather(*answers), sep="\n")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
