"""What is not received in host memory waits for the pool, and is counted by its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.offload.landings import LandingRefusal
from shared.engine.prompt_hidden import HiddenWish
from shared.engine.step.hidden import HiddenNeeds
from tests.fakes.engine.engines import expected_tokens, make_engine, make_request
from tests.fakes.engine.model import FakeLoadedModel, FakeModel, make_spec
from tests.unit.engine.offload.asking import PROMPTS, ask
from tests.unit.engine.offload.crowd import NUM_BLOCKS, Crowd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.engine.engine import Engine


def _settings(reason: LandingRefusal, folder: Path) -> dict[str, Any]:
    match reason:
        case LandingRefusal.OFF:
            return {"kv_offload_landing": False}
        case LandingRefusal.LAYOUT:
            spec, model = make_spec(windows=(None, 6)), FakeModel((None, 6))
            return {"loaded": FakeLoadedModel(model=model, spec=spec), "num_blocks": 16}
        case LandingRefusal.NO_SLOTS:
            return {"host_blocks": 11}
        case LandingRefusal.ON_DISK:
            return {"host_blocks": 12, "disk": folder, "disk_blocks": 100}
        case _:
            return {}


def _fields(reason: LandingRefusal, engine: Engine) -> dict[str, Any]:
    match reason:
        case LandingRefusal.WHOLE_PROMPT:
            return {"prompt_logprobs": 1}
        case LandingRefusal.HIDDEN_STATES:
            form = engine.hidden.format(HiddenNeeds(final=True))
            assert form is not None
            return {"hidden": HiddenWish(format=form, first_position=None)}
        case _:
            return {}


@pytest.mark.parametrize(
    "reason",
    [
        reason
        for reason in LandingRefusal
        # The last has a test of its own, and ranks are in `ranks/test_group`.
        if reason not in (LandingRefusal.RANKS, LandingRefusal.ON_THE_WAY)
    ],
)
def test_what_it_does_not_cover_waits_and_is_counted_once(
    reason: LandingRefusal, make: Callable[..., Engine], sender: Engine, tmp_path: Path
) -> None:
    if reason is LandingRefusal.NO_HOST_TIER:
        engine = make_engine(num_blocks=NUM_BLOCKS)
    else:
        usual = {"num_blocks": NUM_BLOCKS, "host_blocks": 40}
        engine = make(**(usual | _settings(reason, tmp_path)))
    if reason is LandingRefusal.CONNECTOR:
        engine.refuse_landings(reason)
    prompt = PROMPTS[0]
    before = {LandingRefusal.ON_DISK: 4, LandingRefusal.NOTHING_MISSING: 1}
    for n in range(before.get(reason, 0)):
        ask(engine, PROMPTS[n])
    c = Crowd(engine, sender)
    c.add("t", prompt, **_fields(reason, engine))
    # Some steps beside it.
    c.engine.add(make_request("beside", PROMPTS[1], priority=1))
    c.drain()
    assert not c.run.events["t"]
    assert engine.stats().refused_landings == {reason: 1}
    c.engine.release("held")
    while not c.run.events["t"]:
        for event in engine.step():
            c.run.events[event.request_id].append(event)
    assert c.run.admitted("t")
    engine.abort("t")
    c.drain()
    assert c.run.tokens("beside") == expected_tokens(PROMPTS[1], 8)
