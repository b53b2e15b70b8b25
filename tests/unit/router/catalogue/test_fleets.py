"""An order to all models that fails for one leaves the others as they were."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from services.router.catalogue.fleets import AllFleets
from services.router.fleet.pause import PauseMode
from shared.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection


class Model:
    """The workers of a model: serving, paused or asleep."""

    def __init__(self, state: str) -> None:
        self.state = state

    async def is_paused(self) -> bool:
        # A worker that sleeps holds requests, too.
        return self.state in ("paused", "asleep")

    async def is_sleeping(self) -> bool:
        return self.state == "asleep"

    async def pause(self, _mode: PauseMode, _timeout_s: float) -> None:
        if self.state != "asleep":
            self.state = "paused"

    async def resume(self) -> None:
        self.state = "serving"

    async def sleep(self, _level: int, _mode: PauseMode, _timeout_s: float) -> None:
        self.state = "asleep"

    async def wake_up(self, _tags: Collection[str]) -> bool:
        self.state = "serving"
        return True


class BusyModel(Model):
    """Its requests never finish."""

    async def pause(self, _mode: PauseMode, _timeout_s: float) -> None:
        raise UnavailableError("1 requests did not finish")

    async def sleep(self, _level: int, _mode: PauseMode, _timeout_s: float) -> None:
        raise UnavailableError("1 requests did not finish")


@pytest.mark.parametrize("order", ["pause", "sleep"])
async def test_an_order_that_fails_for_one_model_leaves_the_others_as_they_were(
    order: str,
) -> None:
    states = ["serving", "paused", "asleep"]
    models = [*map(Model, states), BusyModel("serving")]
    pools: Any = [
        SimpleNamespace(has_workers=True, parts=SimpleNamespace(fleet=each)) for each in models
    ]
    fleets = AllFleets(pools)
    if order == "pause":
        failing = fleets.pause(PauseMode.WAIT, 1.0)
    else:
        failing = fleets.sleep(1, PauseMode.WAIT, 1.0)
    with pytest.raises(UnavailableError, match="did not finish"):
        await failing
    assert [each.state for each in models] == [*states, "serving"]
