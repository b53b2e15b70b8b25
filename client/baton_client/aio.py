"""The asynchronous client."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc

from baton_client import checks, contract
from baton_client.addresses import read_addresses
from baton_client.channels import MAX_MESSAGE_BYTES, ChannelRing
from baton_client.errors import invalid, too_large
from baton_client.options import ChatOptions, Options, chat_request, generate_request
from baton_client.responses import read_models
from baton_client.retry import RetryPolicy, attempts, rpc_timeout_s
from baton_client.stream import AsyncStream
from baton_client.vectors import (
    classify_request,
    embed_request,
    read_classes,
    read_embeddings,
    read_ranking,
    read_scores,
    rerank_request,
    score_request,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from baton_client.embeds import Embeds
    from baton_client.messages import Message
    from baton_client.types import Generation, Model
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

    Request = contract.GenerateRequest | contract.ChatRequest

T = TypeVar("T")

DEFAULT_ADDRESS = "127.0.0.1:50051"
#: Of calls whose repetition would fail if the first one did its work.
ONCE = RetryPolicy(max_attempts=1)
#: Environment variable of the default key; an empty `api_key` sends none.
API_KEY_VARIABLE = "BATON_API_KEY"


class AsyncBaton:
    """A client of Baton routers over gRPC.

    Nothing is connected before the first request; all requests share one connection per router. One
    client belongs to one event loop.

    Args:
        address: host:port of a router's gRPC port, or of several routers of one cluster. The first
            is used until it fails, then the next; a request in progress continues there.
        model: for requests that name none; needed only if several models are served.
        timeout_s: for requests that name none; `math.inf` is no limit.
        retry: which failures to repeat; see `RetryPolicy`.
        api_key: sent as a bearer token; by default the environment's BATON_API_KEY.
        credentials: for TLS, e.g. `grpc.ssl_channel_credentials()`; None connects unencrypted.

    Raises:
        InvalidRequestError: an argument is wrong; `param` names it.
    """

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
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise invalid("retry", "it must be a RetryPolicy")
        if credentials is not None and not isinstance(credentials, grpc.ChannelCredentials):
            raise invalid("credentials", "they must be grpc.ChannelCredentials")
        self._channels = ChannelRing(read_addresses(address), credentials)
        self._model = "" if model is None else checks.text("model", model)
        self._timeout_s = checks.seconds("timeout_s", timeout_s)
        self._retry = retry or RetryPolicy()
        self._metadata = _authorization(api_key)

    async def generate(
        self, prompt: str | Sequence[int] | Embeds, **options: Unpack[Options]
    ) -> Generation:
        """Continue a prompt, given as text, ids or embeddings, and return the whole answer."""
        async with self.stream_generate(prompt, **options) as stream:
            return await stream.collect()

    async def chat(
        self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]
    ) -> Generation:
        """Answer a conversation (a string is one user message) and return the whole answer."""
        async with self.stream_chat(messages, **options) as stream:
            return await stream.collect()

    def stream_generate(
        self, prompt: str | Sequence[int] | Embeds, **options: Unpack[Options]
    ) -> AsyncStream:
        """Continue a prompt, and stream the answer by pieces."""
        known = self._with_defaults(options)
        return self._stream(contract.GENERATE, generate_request(prompt, known), known)

    def stream_chat(
        self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]
    ) -> AsyncStream:
        """Answer a conversation, and stream the answer by pieces."""
        known = self._with_defaults(options)
        return self._stream(contract.CHAT, chat_request(messages, known), known)

    async def models(self, *, timeout_s: float | None = None) -> tuple[Model, ...]:
        """Return the served models, and their adapters."""
        response = await self._call(
            contract.LIST_MODELS,
            contract.ListModelsRequest(),
            contract.ListModelsResponse,
            policy=self._retry,
            timeout_s=timeout_s,
        )
        return read_models(response)

    async def load_adapter(
        self,
        name: str,
        path: str,
        *,
        in_place: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> str:
        """Load a LoRA adapter on all workers, or on none; return the digest of its content.

        Requests ask for it with `model=name`. `path`: its folder, below the workers' --lora-dir;
        relative: from there. `in_place`: the name may mean another adapter, which it no longer does
        then. `model`: of whose workers, where there are several models. Needs an operator's key
        where there are keys. It is not tried again: see `models`.
        """
        request = contract.LoadLoraAdapterRequest(
            name=checks.text("name", name),
            path=checks.text("path", path),
            load_inplace=checks.flag("in_place", in_place),
            model=checks.text("model", model),
        )
        response = await self._call(
            contract.LOAD_ADAPTER,
            request,
            contract.LoadLoraAdapterResponse,
            policy=ONCE,
            timeout_s=timeout_s,
        )
        return str(response.adapter.digest.hex())

    async def unload_adapter(
        self, name: str, *, model: str = "", timeout_s: float | None = None
    ) -> None:
        """Take a LoRA adapter's name away on all workers. Running requests keep it.

        Raises ModelNotFoundError if no adapter has the name. Needs an operator's key, too.
        """
        request = contract.UnloadLoraAdapterRequest(
            name=checks.text("name", name), model=checks.text("model", model)
        )
        answer = contract.UnloadLoraAdapterResponse
        await self._call(contract.UNLOAD_ADAPTER, request, answer, policy=ONCE, timeout_s=timeout_s)

    async def embed(
        self, inputs: str | Sequence[str | Sequence[int]], **options: Unpack[EmbedOptions]
    ) -> Embeddings:
        """Return the vector of each text, given as text or token ids."""
        known = self._with_defaults(options)
        request = embed_request(inputs, known)

        async def call(remaining_s: float) -> Embeddings:
            place, channel = self._channels.current()
            method = channel.unary_stream(
                contract.EMBED,
                request_serializer=contract.EmbedRequest.SerializeToString,
                response_deserializer=contract.EmbedResponse.FromString,
            )
            try:
                stream = method(
                    request, timeout=rpc_timeout_s(remaining_s), metadata=self._metadata
                )
                return read_embeddings([message async for message in stream], len(request.inputs))
            except grpc.aio.AioRpcError:
                self._channels.leave(place)
                raise

        return await self._attempts(call, request, known)

    async def rerank(
        self, query: str, documents: Sequence[str], **options: Unpack[RerankOptions]
    ) -> Ranking:
        """Return the documents in the order of their relevance for the query, best first."""
        known = self._with_defaults(options)
        request = rerank_request(query, documents, known)
        call = self._unary(contract.RERANK, request, contract.RerankResponse)
        return read_ranking(await self._attempts(call, request, known), list(documents))

    async def score(
        self,
        queries: str | Sequence[str],
        documents: str | Sequence[str],
        **options: Unpack[ScoreOptions],
    ) -> Scores:
        """Return a score for each pair: of one query with all documents, or of two lists."""
        known = self._with_defaults(options)
        request = score_request(queries, documents, known)
        call = self._unary(contract.SCORE, request, contract.ScoreResponse)
        return read_scores(await self._attempts(call, request, known))

    async def classify(
        self, inputs: str | Sequence[str | Sequence[int]], **options: Unpack[PoolOptions]
    ) -> Classes:
        """Return the classes of each text, given as text or token ids."""
        known = self._with_defaults(options)
        request = classify_request(inputs, known)
        call = self._unary(contract.CLASSIFY, request, contract.ClassifyResponse)
        return read_classes(await self._attempts(call, request, known))

    async def close(self) -> None:
        """Close the connections; running requests are cancelled. Safe to repeat."""
        await self._channels.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(
        self,
        path: str,
        request: Any,
        answer: type[Any],
        *,
        policy: RetryPolicy,
        timeout_s: float | None,
    ) -> Any:
        """Return the answer of one message to one message."""
        limit_s = self._timeout_s if timeout_s is None else checks.seconds("timeout_s", timeout_s)
        return await attempts(self._unary(path, request, answer), policy=policy, timeout_s=limit_s)

    def _unary(self, path: str, request: Any, answer: Any) -> Callable[[float], Awaitable[Any]]:
        """Return a call of one message and one answer, for `attempts`."""

        async def call(remaining_s: float) -> Any:
            place, channel = self._channels.current()
            method = channel.unary_unary(
                path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            try:
                return await method(
                    request, timeout=rpc_timeout_s(remaining_s), metadata=self._metadata
                )
            except grpc.aio.AioRpcError:
                self._channels.leave(place)
                raise

        return call

    async def _attempts(
        self, call: Callable[[float], Awaitable[T]], request: Any, options: Mapping[str, Any]
    ) -> T:
        _check_size(request)
        timeout_s = checks.seconds("timeout_s", options["timeout_s"])
        return await attempts(
            call, policy=self._retry, timeout_s=timeout_s, request_id=request.request_id
        )

    def _with_defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in options.items() if value is not None}
        return {"model": self._model, "timeout_s": self._timeout_s, **given}

    def _stream(self, path: str, request: Request, options: Mapping[str, Any]) -> AsyncStream:
        if not request.request_id:
            request.request_id = f"sdk-{secrets.token_hex(16)}"
        if not request.params.HasField("seed"):
            # Another router must be able to continue with the same random numbers.
            request.params.seed = secrets.randbits(63)
        _check_size(request)
        failed: list[int] = []

        def start(request: Request, remaining_s: float) -> Any:
            if failed:
                self._channels.leave(failed.pop())
            place, channel = self._channels.current()
            failed.append(place)
            method = channel.unary_stream(
                path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=contract.GenerateResponse.FromString,
            )
            timeout_s = rpc_timeout_s(remaining_s)
            return method(request, timeout=timeout_s, metadata=self._metadata)

        timeout_s = checks.seconds("timeout_s", options["timeout_s"])
        return AsyncStream(start, request, retry=self._retry, timeout_s=timeout_s)


def _check_size(request: Any) -> None:
    """Refuse messages that gRPC would refuse with the status of an overloaded server."""
    size = request.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        names = ("messages", "inputs", "documents")
        param = next((name for name in names if name in request.DESCRIPTOR.fields_by_name), "")
        param = param or "prompt"
        message = f"the request has {size} bytes, and a message at most {MAX_MESSAGE_BYTES}"
        raise too_large(param, message)


def _authorization(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata of every call."""
    given = os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key
    if not isinstance(given, str):
        raise invalid("api_key", f"it must be a string, not {type(given).__name__}")
    key = given.strip()
    if not (key.isascii() and key.isprintable()):
        # grpc would refuse it as well, with the key in its message.
        raise invalid("api_key", "it has characters that no key has")
    return (("authorization", f"Bearer {key}"),) if key else ()
