"""The SDK with an event loop: many requests at a time over one connection, and one given up."""

from __future__ import annotations

import asyncio

from baton_client import AsyncBaton, BatonError

QUESTIONS = ("What does os.path.join do?", "What is a generator?", "What does json.dumps do?")


async def main() -> None:
    """Ask all at once, then leave an answer in the middle."""
    async with AsyncBaton("127.0.0.1:50051") as baton:
        asked = (baton.chat(question, max_tokens=48, timeout_s=60) for question in QUESTIONS)
        for question, answer in zip(
            QUESTIONS, await asyncio.gather(*asked, return_exceptions=True), strict=True
        ):
            if isinstance(answer, BatonError):
                print(question, "failed:", answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                print(question, "->", answer.text)

        async with baton.stream_generate("Once upon a time", max_tokens=500) as stream:
            first = await anext(stream)
            print("left after", repr(first.text), "- the servers stop and free its memory")


if __name__ == "__main__":
    asyncio.run(main())
