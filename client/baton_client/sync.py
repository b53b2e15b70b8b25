"""`AsyncBaton` for code without an event loop: one background thread runs the loop."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from baton_client.aio import DEFAULT_ADDRESS, AsyncBaton
from baton_client.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from types import TracebackType

    import grpc

    from baton_client.embeds import Embeds
    from baton_client.messages import Message
    from baton_client.options import ChatOptions, Options
    from baton_client.retry import RetryPolicy
    from baton_client.stream import AsyncStream
    from baton_client.types import Generation, Model, Piece
    from baton_client.vectors import (
        Classes,
        Embeddings,
        EmbedOptions,
        PoolOptions,
        Ranking,
        RerankOptions,
        ScoreOptions,
        Scores,
    )

T = TypeVar("T")


class Baton:
    """The same methods as `AsyncBaton`, blocking. May be shared by threads, not by processes."""

    def __init__(
        self,
        address: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        model: str | None = None,
        timeout_s: float = 600.0,
        retry: RetryPolicy | None = None,
        api_key: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._client = AsyncBaton(
            address,
            model=model,
            timeout_s=timeout_s,
            retry=retry,
            api_key=api_key,
            credentials=credentials,
        )
        self._loop = _LoopThread()

    def generate(
        self, prompt: str | Sequence[int] | Embeds, **options: Unpack[Options]
    ) -> Generation:
        """Continue a prompt, given as text, ids or embeddings, and return the whole answer."""
        return self._loop.run(self._client.generate(prompt, **options))

    def chat(self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]) -> Generation:
        """Answer a conversation (a string is one user message) and return the whole answer."""
        return self._loop.run(self._client.chat(messages, **options))

    def stream_generate(
        self, prompt: str | Sequence[int] | Embeds, **options: Unpack[Options]
    ) -> Stream:
        """Continue a prompt, and stream the answer by pieces."""
        return Stream(self._client.stream_generate(prompt, **options), self._loop)

    def stream_chat(
        self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]
    ) -> Stream:
        """Answer a conversation, and stream the answer by pieces."""
        return Stream(self._client.stream_chat(messages, **options), self._loop)

    def embed(
        self, inputs: str | Sequence[str | Sequence[int]], **options: Unpack[EmbedOptions]
    ) -> Embeddings:
        """Return the vector of each text, given as text or token ids."""
        return self._loop.run(self._client.embed(inputs, **options))

    def rerank(
        self, query: str, documents: Sequence[str], **options: Unpack[RerankOptions]
    ) -> Ranking:
        """Return the documents in the order of their relevance for the query, best first."""
        return self._loop.run(self._client.rerank(query, documents, **options))

    def score(
        self,
        queries: str | Sequence[str],
        documents: str | Sequence[str],
        **options: Unpack[ScoreOptions],
    ) -> Scores:
        """Return a score for each pair: of one query with all documents, or of two lists."""
        return self._loop.run(self._client.score(queries, documents, **options))

    def classify(
        self, inputs: str | Sequence[str | Sequence[int]], **options: Unpack[PoolOptions]
    ) -> Classes:
        """Return the classes of each text, given as text or token ids."""
        return self._loop.run(self._client.classify(inputs, **options))

    def models(self, *, timeout_s: float | None = None) -> tuple[Model, ...]:
        """Return the served models."""
        return self._loop.run(self._client.models(timeout_s=timeout_s))

    def load_adapter(
        self,
        name: str,
        path: str,
        *,
        in_place: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> str:
        """Load a LoRA adapter on all workers, or on none; return the digest of its content."""
        load = self._client.load_adapter(
            name, path, in_place=in_place, model=model, timeout_s=timeout_s
        )
        return self._loop.run(load)

    def unload_adapter(self, name: str, *, model: str = "", timeout_s: float | None = None) -> None:
        """Take a LoRA adapter's name away on all workers. Running requests keep it."""
        self._loop.run(self._client.unload_adapter(name, model=model, timeout_s=timeout_s))

    def close(self) -> None:
        """Cancel running requests, close the connection, end the thread. Safe to repeat."""
        self._loop.stop(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Stream:
    """Pieces of a request's answers. Leaving the `with` or calling `close` cancels the request."""

    def __init__(self, stream: AsyncStream, loop: _LoopThread) -> None:
        self._stream = stream
        self._loop = loop

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        piece = self._loop.run(_next_or_none(self._stream))
        if piece is None:
            raise StopIteration
        return piece

    def collect(self) -> Generation:
        """Read to the end and return the whole."""
        return self._loop.run(self._stream.collect())

    def close(self) -> None:
        """Cancel the request if it still runs. Safe to repeat."""
        if self._loop.running:
            self._loop.run(self._stream.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


async def _next_or_none(stream: AsyncStream) -> Piece | None:
    # A future cannot carry StopAsyncIteration.
    return await anext(stream, None)


class _LoopThread:
    """An event loop in a daemon thread, which never delays a program's end."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        #: A fork has no threads: nothing would ever run in it.
        self._process = os.getpid()
        #: Held while work is given to the loop, or its end ordered.
        self._giving = threading.Lock()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve, name="baton-client", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether `run` can be called."""
        return not self._is_stopping and self._process == os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`. An interrupt of this thread, such as Ctrl-C, cancels it.

        Raises:
            UnavailableError: the client is closed, or of another process.
        """
        if self._process != os.getpid():
            work.close()
            message = "the client is that of another process: make one after the fork"
            raise UnavailableError(message)
        with self._giving:
            if self._is_stopping:
                work.close()
                raise UnavailableError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise UnavailableError("the client is closed") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Do `last`, cancel what is left, and end the thread; later calls wait for that as well."""
        with self._giving:
            if self.running:
                self._is_stopping = True
                asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
            else:
                last.close()
        if self._process == os.getpid():
            self._thread.join()

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        try:
            await last
        finally:
            self._loop.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left) if left else asyncio.sleep(0))
        finally:
            self._loop.close()
