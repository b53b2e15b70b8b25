"""The error table is total, and every error survives the wire."""

from __future__ import annotations

import inspect
from typing import Any

import grpc
import pytest

from shared import errors
from shared.rpc.status import error_metadata, from_rpc_error, grpc_status, http_status

SAMPLES: dict[type[errors.BatonError], tuple[Any, ...]] = {
    errors.TransferError: (errors.TransferFailure.CORRUPT, "block 3"),
}


def all_errors() -> list[type[errors.BatonError]]:
    found = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    return [c for c in found if issubclass(c, errors.BatonError) and c is not errors.BatonError]


def make(cls: type[errors.BatonError]) -> errors.BatonError:
    if cls is errors.IncompatiblePeerError:
        return errors.IncompatiblePeerError("dtype", ours="float32", theirs="bfloat16")
    if issubclass(cls, errors.InvalidRequestError):
        return cls("top_p is wrong", param="top_p")
    if cls is errors.OverloadedError:
        return errors.OverloadedError("full", retry_after_s=2.5)
    return cls(*SAMPLES.get(cls, ("something happened",)))


def over_the_wire(error: errors.BatonError) -> errors.BatonError:
    metadata = grpc.aio.Metadata(*error_metadata(error))
    rpc_error = grpc.aio.AioRpcError(
        grpc_status(error), grpc.aio.Metadata(), metadata, details=str(error)
    )
    return from_rpc_error(rpc_error, peer="worker-1")


@pytest.mark.parametrize("cls", all_errors())
def test_every_error_comes_back_as_itself(cls: type[errors.BatonError]) -> None:
    error = make(cls)
    back = over_the_wire(error)
    assert type(back) is cls
    assert str(error) in str(back)
    assert "worker-1" in str(back)


@pytest.mark.parametrize("cls", all_errors())
def test_every_error_has_its_own_status(cls: type[errors.BatonError]) -> None:
    error = make(cls)
    is_bug = isinstance(error, errors.InternalError | errors.ConfigError | errors.ModelLoadError)
    assert (grpc_status(error) is grpc.StatusCode.INTERNAL) == is_bug
    assert (http_status(error) == 500) == is_bug


def test_details_survive() -> None:
    back = over_the_wire(make(errors.OverloadedError))
    assert isinstance(back, errors.OverloadedError)
    assert back.retry_after_s == 2.5
    back = over_the_wire(make(errors.InvalidRequestError))
    assert isinstance(back, errors.InvalidRequestError)
    assert back.param == "top_p"
    back = over_the_wire(make(errors.TransferError))
    assert isinstance(back, errors.TransferError)
    assert back.reason is errors.TransferFailure.CORRUPT
    back = over_the_wire(make(errors.IncompatiblePeerError))
    assert isinstance(back, errors.IncompatiblePeerError)
    assert back.field == "dtype"


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_bare_status_becomes_an_error(code: grpc.StatusCode) -> None:
    rpc_error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=None)
    assert isinstance(from_rpc_error(rpc_error, peer="p"), errors.BatonError)


def test_foreign_exceptions_are_internal() -> None:
    assert grpc_status(ValueError("x")) is grpc.StatusCode.INTERNAL
    assert http_status(ValueError("x")) == 500


def test_an_internal_status_that_no_server_of_ours_made_is_a_broken_connection() -> None:
    """gRPC gives it to calls that fail while its connection ends: somebody else may do the work."""
    bare = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), details="from Core"
    )
    assert isinstance(from_rpc_error(bare, peer="p"), errors.WorkerLostError)
    assert isinstance(over_the_wire(errors.InternalError("a bug")), errors.InternalError)
