"""Every gRPC status, and every error that the server can send, becomes the right exception."""

from __future__ import annotations

import inspect

import grpc
import pytest

import baton_client
from baton_client import errors as client_errors
from baton_client.errors import BY_STATUS, from_status
from shared import errors as server_errors
from shared.rpc.status import error_metadata, grpc_status

#: The server's errors whose name the client does not share, and what its caller gets for them.
TRANSLATED = {
    "AdapterError": client_errors.InvalidRequestError,
    "AdapterNotLoadedError": client_errors.UnavailableError,
    "NoWorkerError": client_errors.UnavailableError,
    "DrainingError": client_errors.UnavailableError,
    "WorkerLostError": client_errors.UnavailableError,
    "WorkerSilentError": client_errors.UnavailableError,
    "RankError": client_errors.UnavailableError,
    "GenerationGoneError": client_errors.UnavailableError,
    "TransferError": client_errors.UnavailableError,
    "IncompatiblePeerError": client_errors.InvalidRequestError,
    "UnknownIncarnationError": client_errors.ModelNotFoundError,
    "SequenceGapError": client_errors.InvalidRequestError,
    "ConfigError": client_errors.InternalError,
    "ModelLoadError": client_errors.InternalError,
}


def server_error(cls: type[server_errors.BatonError]) -> server_errors.BatonError:
    if cls is server_errors.IncompatiblePeerError:
        return server_errors.IncompatiblePeerError("dtype", ours="a", theirs="b")
    if cls is server_errors.TransferError:
        return server_errors.TransferError(server_errors.TransferFailure.CORRUPT, "x")
    return cls("said by the server")


def all_server_errors() -> list[type[server_errors.BatonError]]:
    classes = [cls for _, cls in inspect.getmembers(server_errors, inspect.isclass)]
    base = server_errors.BatonError
    return [cls for cls in classes if issubclass(cls, base) and cls is not base]


@pytest.mark.parametrize("status", list(grpc.StatusCode))
def test_every_status_has_an_exception(status: grpc.StatusCode) -> None:
    error = from_status(status, "why", {}, request_id="r1")
    assert type(error) is BY_STATUS[status]
    assert (str(error), error.status, error.request_id) == ("why", status, "r1")


@pytest.mark.parametrize("cls", all_server_errors())
def test_every_error_of_the_server_has_an_exception(cls: type[server_errors.BatonError]) -> None:
    sent = server_error(cls)
    received = from_status(grpc_status(sent), str(sent), dict(error_metadata(sent)))
    expected = TRANSLATED.get(cls.__name__) or getattr(client_errors, cls.__name__)
    assert type(received) is expected


@pytest.mark.parametrize("name", [n for n in dir(client_errors) if n.endswith("Error")])
def test_every_exception_is_public(name: str) -> None:
    assert name in baton_client.__all__
    assert issubclass(getattr(client_errors, name), client_errors.BatonError)


def test_the_offending_parameter_arrives() -> None:
    sent = server_errors.InvalidRequestError("too big", param="top_p")
    received = from_status(grpc_status(sent), str(sent), dict(error_metadata(sent)))
    assert isinstance(received, client_errors.InvalidRequestError)
    assert received.param == "top_p"


def test_the_advice_when_to_come_back_arrives() -> None:
    sent = server_errors.OverloadedError("full", retry_after_s=2.5)
    received = from_status(grpc_status(sent), str(sent), dict(error_metadata(sent)))
    assert isinstance(received, client_errors.OverloadedError)
    assert received.retry_after_s == 2.5


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", ""])
def test_advice_that_makes_no_sense_is_no_advice(text: str) -> None:
    received = from_status(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "full", {client_errors.RETRY_AFTER_KEY: text}
    )
    assert isinstance(received, client_errors.OverloadedError)
    assert received.retry_after_s is None
