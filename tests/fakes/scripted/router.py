"""A router that answers by script. `python -m tests.fakes.scripted.router` serves it on its own."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import grpc

from baton.v1 import common_pb2, router_pb2, router_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    Script = Callable[[Any, Any], AsyncIterator[router_pb2.GenerateResponse]]

MODEL = "scripted"
WORDS = ("The ", "baton ", "is ", "passed.")


class ScriptedRouter(router_pb2_grpc.RouterServicer):
    """Plays one script per call, in order; then `tells(WORDS)` for ever."""

    def __init__(self) -> None:
        self.scripts: deque[Script] = deque()
        self.requests: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        #: Set when the client has gone away in the middle of a call.
        self.cancelled = asyncio.Event()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 in the contract
        async for response in self._play(request, context):
            yield response

    async def Chat(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 in the contract
        async for response in self._play(request, context):
            yield response

    async def Embed(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 in the contract
        self._note(request, context)
        for index in range(len(request.inputs)):
            vector = common_pb2.Vector(data=b"\0" * 8, num_rows=1)
            yield router_pb2.EmbedResponse(request_id="r", index=index, vector=vector)

    async def Rerank(self, request: Any, context: Any) -> Any:  # noqa: N802 in the contract
        self._note(request, context)
        return router_pb2.RerankResponse(request_id="r")

    async def Score(self, request: Any, context: Any) -> Any:  # noqa: N802 in the contract
        self._note(request, context)
        return router_pb2.ScoreResponse(request_id="r")

    async def Classify(self, request: Any, context: Any) -> Any:  # noqa: N802 in the contract
        self._note(request, context)
        return router_pb2.ClassifyResponse(request_id="r")

    def _note(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))

    async def ListModels(self, request: Any, context: Any) -> Any:  # noqa: N802 in the contract
        self.metadata.append(dict(context.invocation_metadata()))
        model = router_pb2.Model(id=MODEL, max_model_len=2048, created=1)
        return router_pb2.ListModelsResponse(models=[model])

    async def LoadLoraAdapter(self, request: Any, context: Any) -> Any:  # noqa: N802 in the contract
        self.requests.append(request)
        return router_pb2.LoadLoraAdapterResponse()

    async def UnloadLoraAdapter(self, request: Any, context: Any) -> Any:  # noqa: N802 in the contract
        self.requests.append(request)
        return router_pb2.UnloadLoraAdapterResponse()

    async def _play(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        script = self.scripts.popleft() if self.scripts else tells(WORDS)
        try:
            async for response in script(request, context):
                yield response
        except (asyncio.CancelledError, GeneratorExit):
            # The second, if the call was cancelled while it sent what was yielded last.
            self.cancelled.set()
            raise


def tells(words: Sequence[str], *, num_answers: int = 1) -> Script:
    """Every word is a piece; the last one ends the answer."""

    async def script(request: Any, context: Any) -> AsyncIterator[router_pb2.GenerateResponse]:
        request_id = request.request_id or "made-by-server"
        for number, word in enumerate(words):
            for index in range(num_answers):
                piece = router_pb2.GenerateResponse(
                    request_id=request_id, index=index, text=word, token_ids=[number]
                )
                if getattr(request, "read_answers", False):
                    piece.reading = router_pb2.READING_PLAIN
                if number == len(words) - 1:
                    piece.finish_reason = common_pb2.FINISH_REASON_STOP
                    if index == num_answers - 1:
                        _account(piece, num_tokens=len(words) * num_answers)
                yield piece

    return script


def fails(
    status: grpc.StatusCode, details: str = "by script", *, after: Sequence[str] = (), **extra: str
) -> Script:
    """Some words, then an error. `extra` is its metadata: baton_param becomes `baton-param`."""
    metadata = tuple((key.replace("_", "-"), value) for key, value in extra.items())

    async def script(request: Any, context: Any) -> AsyncIterator[router_pb2.GenerateResponse]:
        for word in after:
            yield router_pb2.GenerateResponse(request_id=request.request_id, text=word)
        await context.abort(status, details, metadata)

    return script


def hangs(*, after: Sequence[str] = ()) -> Script:
    """Some words, then nothing until the client goes away."""

    async def script(request: Any, context: Any) -> AsyncIterator[router_pb2.GenerateResponse]:
        for word in after:
            yield router_pb2.GenerateResponse(request_id=request.request_id, text=word)
        await asyncio.Event().wait()

    return script


def plays(*responses: router_pb2.GenerateResponse) -> Script:
    """Exactly these messages."""

    async def script(request: Any, context: Any) -> AsyncIterator[router_pb2.GenerateResponse]:
        for response in responses:
            yield response

    return script


def _account(piece: router_pb2.GenerateResponse, *, num_tokens: int) -> None:
    piece.usage.prompt_tokens = 8
    piece.usage.completion_tokens = num_tokens
    piece.usage.cached_tokens = 4
    piece.usage.sources.computed = 2
    piece.usage.sources.transferred = 6
    piece.usage.sources.transferred_hit = 4
    piece.timings.first_token_ms = 12.5
    piece.timings.decode_ms = 30.0
    piece.timings.total_ms = 42.5
    piece.timings.transfer_bytes = 3 * 2**20
    piece.timings.connector = "shm"
    piece.timings.prefill_worker = "prefill-0"
    piece.timings.decode_worker = "decode-0"


async def serve(
    router: ScriptedRouter, address: str, *, credentials: grpc.ServerCredentials | None = None
) -> tuple[grpc.aio.Server, int]:
    """Start a server for `router`; the port it took is the second value."""
    server = grpc.aio.server()
    router_pb2_grpc.add_RouterServicer_to_server(router, server)
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    await server.start()
    return server, port


async def main(address: str) -> None:
    """Print the port, then serve until killed."""
    server, port = await serve(ScriptedRouter(), address)
    print(port, flush=True)  # noqa: T201 the caller reads it
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:0"))
