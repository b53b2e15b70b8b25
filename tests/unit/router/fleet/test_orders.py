"""Errors of several workers as one."""

from __future__ import annotations

import pytest

from services.router.fleet.orders import succeeded
from shared.errors import BatonError, InvalidRequestError, UnavailableError
from shared.identity import Role
from tests.unit.router.routing.workers import endpoint


def test_each_worker_is_named_once() -> None:
    p, d, e = endpoint("p"), endpoint("d", Role.DECODE), endpoint("e", Role.DECODE)
    answers: dict[object, object] = {
        p: UnavailableError("p: 3 requests did not finish in 1 s"),
        d: UnavailableError("d computes nothing now"),
        e: UnavailableError("double fault"),
    }
    with pytest.raises(UnavailableError) as caught:
        succeeded(answers)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "p: 3 requests did not finish in 1 s; d computes nothing now; e: double fault"
    )


def test_one_wrong_request_is_the_caller_s_fault() -> None:
    p, d = endpoint("p"), endpoint("d", Role.DECODE)
    answers: dict[object, object] = {
        p: UnavailableError("gone"),
        d: InvalidRequestError("no such level", param="level"),
    }
    with pytest.raises(BatonError, match="p: gone; d: no such level") as caught:
        succeeded(answers)  # type: ignore[arg-type]
    assert isinstance(caught.value, InvalidRequestError)
    assert caught.value.param == "level"
