"""Every gRPC method there is, and what an outsider gets for calling it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from baton.v1 import (
    decode_pb2,
    directory_pb2,
    prefill_pb2,
    router_pb2,
    transfer_pb2,
    worker_pb2,
)
from shared.rpc.auth import TOKEN_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Metadata = Sequence[tuple[str, str]]

FILES = (decode_pb2, directory_pb2, prefill_pb2, router_pb2, transfer_pb2, worker_pb2)
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
HEALTH = "/grpc.health.v1.Health/Check"
TIMEOUT_S = 20.0


def methods() -> Iterator[str]:
    """All methods of the contract, as paths."""
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}"


def service_of(method: str) -> str:
    """The last part of its service's name."""
    return method.split("/")[1].rpartition(".")[2]


def knock(channel: grpc.Channel, method: str, metadata: Metadata = ()) -> grpc.StatusCode:
    """Call with an empty message; how it ended."""
    call = channel.stream_stream(method)(iter([b""]), timeout=TIMEOUT_S, metadata=metadata)
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
    code: grpc.StatusCode = call.code()
    return code


def bearer(key: str) -> Metadata:
    """A client's key."""
    return [("authorization", f"Bearer {key}")]


def token(value: str) -> Metadata:
    """A cluster token."""
    return [(TOKEN_KEY, value)]
