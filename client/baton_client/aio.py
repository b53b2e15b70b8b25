"""The client. Everything else in this package serves it."""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING, Any, Self, Unpack

import grpc

from baton_client import contract
from baton_client.errors import UnavailableError, invalid
from baton_client.options import ChatOptions, Message, Options, chat_request, generate_request
from baton_client.responses import read_models
from baton_client.retry import RetryPolicy, attempts
from baton_client.stream import AsyncStream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from baton_client.types import Generation, Model

DEFAULT_ADDRESS = "127.0.0.1:50051"
#: Where the key comes from if none is given; an empty `api_key` sends none.
API_KEY_VARIABLE = "BATON_API_KEY"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Notices a server that vanished in the middle of an answer, without pinging an idle one.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


class AsyncBaton:
    """Asks a Baton router over gRPC.

    Nothing is connected before the first request; all requests share one connection. One client
    belongs to one event loop.

    Args:
        address: host:port of the router's gRPC port.
        model: for requests that name none; needed only where several models are served.
        timeout_s: for requests that name none.
        retry: what to repeat; see `RetryPolicy`.
        api_key: sent as a bearer token; by default the environment's BATON_API_KEY.
        credentials: for TLS, e.g. `grpc.ssl_channel_credentials()`; None connects in the clear.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        model: str = "",
        timeout_s: float = 600.0,
        retry: RetryPolicy | None = None,
        api_key: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._address = address
        self._model = model
        self._timeout_s = timeout_s
        self._retry = retry or RetryPolicy()
        self._metadata = _authorization(api_key)
        self._credentials = credentials
        self._channel: grpc.aio.Channel | None = None
        self._closed = False

    async def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Generation:
        """Continue a prompt, given as text or token ids, and return the whole answer."""
        async with self.stream_generate(prompt, **options) as stream:
            return await stream.collect()

    async def chat(
        self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]
    ) -> Generation:
        """Answer a conversation (a string is one user message) and return the whole answer."""
        async with self.stream_chat(messages, **options) as stream:
            return await stream.collect()

    def stream_generate(
        self, prompt: str | Sequence[int], **options: Unpack[Options]
    ) -> AsyncStream:
        """Continue a prompt and get the answer piece by piece."""
        known = self._with_defaults(options)
        return self._stream(contract.GENERATE, generate_request(prompt, known), known)

    def stream_chat(
        self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]
    ) -> AsyncStream:
        """Answer a conversation and get the answer piece by piece."""
        known = self._with_defaults(options)
        return self._stream(contract.CHAT, chat_request(messages, known), known)

    async def models(self, *, timeout_s: float | None = None) -> tuple[Model, ...]:
        """What this router serves."""
        method = self._open_channel().unary_unary(
            contract.LIST_MODELS,
            request_serializer=contract.ListModelsRequest.SerializeToString,
            response_deserializer=contract.ListModelsResponse.FromString,
        )

        async def call(remaining_s: float) -> contract.ListModelsResponse:
            response: contract.ListModelsResponse = await method(
                contract.ListModelsRequest(), timeout=remaining_s, metadata=self._metadata
            )
            return response

        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return read_models(await attempts(call, policy=self._retry, timeout_s=limit_s))

    async def close(self) -> None:
        """Close the connection; running requests are cancelled. Safe to repeat."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _with_defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in options.items() if value is not None}
        return {"model": self._model, "timeout_s": self._timeout_s, **given}

    def _stream(
        self,
        path: str,
        request: contract.GenerateRequest | contract.ChatRequest,
        options: Mapping[str, Any],
    ) -> AsyncStream:
        def start(remaining_s: float) -> Any:
            method = self._open_channel().unary_stream(
                path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=contract.GenerateResponse.FromString,
            )
            return method(request, timeout=remaining_s, metadata=self._metadata)

        return AsyncStream(
            start,
            retry=self._retry,
            timeout_s=options["timeout_s"],
            request_id=request.request_id,
        )

    def _open_channel(self) -> grpc.aio.Channel:
        if self._closed:
            raise UnavailableError("the client is closed")
        if self._channel is None:
            options: list[tuple[str, Any]] = list(_OPTIONS)
            if _is_loopback(self._address):
                options.append(("grpc.enable_http_proxy", 0))
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._address, options=options)
            else:
                self._channel = grpc.aio.secure_channel(
                    self._address, self._credentials, options=options
                )
        return self._channel


def _authorization(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """What goes with every call."""
    key = (os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key).strip()
    if not (key.isascii() and key.isprintable()):
        # grpc would refuse it as well, with the key in its message.
        raise invalid("api_key", "it has characters that no key has")
    return (("authorization", f"Bearer {key}"),) if key else ()


def _is_loopback(address: str) -> bool:
    """A proxy of the environment cannot reach this machine's own ports."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
