from __future__ import annotations

import pytest

from services.router.answer.retry import may_succeed_elsewhere
from shared import errors
from shared.rpc.retry_budget import RetryBudget


def test_retries_stay_a_fraction_of_requests() -> None:
    budget = RetryBudget(ratio=0.25, burst=2)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    num_retries = 0
    for _ in range(100):
        budget.earn()
        num_retries += budget.spend()
    assert num_retries == 25


def test_saved_retries_are_bounded() -> None:
    budget = RetryBudget(ratio=1, burst=2)
    for _ in range(10):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.WorkerLostError("x"), True),
        (errors.DrainingError("x"), True),
        (errors.OverloadedError("x"), True),
        (errors.InvalidRequestError("x"), False),
        (errors.DeadlineError("x"), False),
        (errors.InternalError("x"), True),
        (errors.AuthenticationError("x"), False),
    ],
)
def test_only_some_errors_are_the_workers_alone(error: errors.BatonError, expected: bool) -> None:
    assert may_succeed_elsewhere(error) is expected
