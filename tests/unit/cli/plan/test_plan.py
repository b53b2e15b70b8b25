"""`baton plan`: simulated clusters, and the advice that is made of them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.errors import CommandError
from cli.plan.advice import advise
from cli.plan.simulation import ClusterSimulation
from cli.plan.workload import Request, wave
from services.router.planning.base import Bounds, Counts, Demand, Limits
from services.router.planning.counts import Pace
from services.router.planning.planner import Planner
from services.router.planning.speed import Speed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPEED = Speed(prefill=(0.0, 100.0, 0.0), decode=(10.0, 1.0, 0.0), kv_tokens=10_000)
BOUNDS = Bounds(max_ttft_ms=1000.0, max_itl_ms=20.0)
#: A prompt takes 100 ms, an answer 11 ms per token while it is alone.
LONG_PROMPTS = wave(low_per_s=12, high_per_s=12, period_s=30, duration_s=30,
                    num_tokens=1000, num_output_tokens=5)  # fmt: skip


def run(requests: list[Request], counts: Counts, **more: Any) -> Any:
    return ClusterSimulation(SPEED, BOUNDS, counts, **more).run(requests)


def test_times_of_one_and_of_two_requests() -> None:
    alone = run([Request(0.0, 1000, 11)], Counts(1, 1))
    assert alone.ttft_ms == [pytest.approx(100)]
    assert alone.itl_ms == [pytest.approx(11)]
    # The second prompt waits; half of the first answer's steps have two sequences.
    both = run([Request(0.0, 1000, 21), Request(0.0, 1000, 21)], Counts(1, 1))
    assert sorted(both.ttft_ms) == [pytest.approx(100), pytest.approx(200)]
    assert all(11 < ms < 12 for ms in both.itl_ms)
    apart = run([Request(0.0, 1000, 21), Request(0.0, 1000, 21)], Counts(2, 2))
    assert apart.ttft_ms == [pytest.approx(100)] * 2
    assert apart.itl_ms == [pytest.approx(11)] * 2
    # One worker for both halves each of its speeds while it has both.
    one = ClusterSimulation(SPEED, BOUNDS, Counts(0, 1)).run(
        [Request(0.0, 1000, 11), Request(0.1, 1000, 11)]
    )
    assert one.ttft_ms[1] == pytest.approx(200)


def test_a_full_pool_holds_answers_back() -> None:
    few = [Request(0.0, 4000, 100) for _ in range(4)]
    outcome = run(few, Counts(4, 1))
    assert len(outcome.ttft_ms) == 4
    assert max(outcome.itl_ms) > 1.8 * min(outcome.itl_ms)


def test_workers_count_from_their_order_and_serve_after_their_start() -> None:
    requests = wave(low_per_s=12, high_per_s=12, period_s=200, duration_s=200,
                    num_tokens=1000, num_output_tokens=5)  # fmt: skip
    planner = Planner(BOUNDS, Limits(max_workers=8), pace=Pace(startup_s=20, cooldown_s=20))
    outcome = run(requests, Counts(1, 1), planner=planner, startup_s=20)
    first = next(d for d in outcome.decisions if d.wanted.prefill > 1)
    later = [d.now_s for d in outcome.decisions if d.present.prefill > 1]
    assert later[0] - first.now_s == pytest.approx(20, abs=5.1)
    assert 2 * outcome.duration_s < outcome.worker_s < 8 * outcome.duration_s
    assert outcome.attainment > 0.5
    assert run(requests, Counts(1, 1)).attainment < 0.2


def test_moves_follow_a_shift_of_the_load() -> None:
    answers = wave(low_per_s=6, high_per_s=6, period_s=90, duration_s=90,
                   num_tokens=20, num_output_tokens=80, seed=3)  # fmt: skip
    prompts = [Request(90 + turn * 30 + r.at_s, 1000, 5) for turn in (0, 1) for r in LONG_PROMPTS]
    requests = [*answers, *prompts]
    planner = Planner(BOUNDS, Limits())
    moved = run(requests, Counts(1, 3), planner=planner, scales=False)
    fixed = run(requests, Counts(1, 3))
    assert moved.num_moves >= 1
    assert moved.worker_s == fixed.worker_s
    assert moved.attainment > fixed.attainment + 0.1


def test_advice_names_the_division_and_what_one_more_buys() -> None:
    advice = advise(LONG_PROMPTS, SPEED, BOUNDS, 3)
    assert (advice.best.prefill, advice.best.decode) == (2, 1)
    assert [(each.prefill, each.decode) for each in advice.divisions] == [(1, 2), (2, 1)]
    assert advice.divisions[0].attainment < 0.5 < advice.best.attainment
    assert advice.more_prefill.ttft_p95_ms < advice.best.ttft_p95_ms
    assert advice.enough is not None
    assert advice.enough.attainment >= 0.95
    hopeless = advise(LONG_PROMPTS, SPEED, Bounds(max_ttft_ms=50.0), 2)
    assert hopeless.enough is None
    assert "more workers do not help" in hopeless.warnings[0]


PLANNER = {
    "acts": False,
    "leader": "here",
    "bounds": {"max_ttft_ms": 1000.0, "max_itl_ms": 20.0},
    "speed": msgspec.to_builtins(SPEED),
    "demand": msgspec.to_builtins(
        Demand(requests_per_s=12.0, prompt_tokens=1000, output_tokens=5, prompt_ms=100.0)
    ),
    "decision": None,
}
WORKERS = [{"role": "prefill"}, {"role": "prefill"}, {"role": "decode"}]


class _Router(BaseHTTPRequestHandler):
    said: ClassVar[dict[str, Any]] = {}
    status = 200

    def do_GET(self) -> None:
        body = json.dumps(self.said).encode()
        self.send_response(self.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture(scope="module")
def router() -> Iterator[str]:
    """The URL of a router whose answer a test sets."""
    server = HTTPServer(("127.0.0.1", 0), _Router)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def plan(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", *arguments])


def test_a_live_cluster_is_planned_by_what_its_router_measured(
    router: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = [{"model": "m", "names": ["m"], "loaded": True, "planner": PLANNER}]
    monkeypatch.setattr(_Router, "said", {"pools": pools, "workers": WORKERS})
    monkeypatch.setattr("cli.plan.command.LIVE_S", 30.0)
    done = plan("--router", router, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert (said["best"]["prefill"], said["best"]["decode"]) == (2, 1)
    assert said["demand"]["requests_per_s"] == pytest.approx(12, rel=0.15)
    text = plan("--router", router, "--workers", "4").output
    assert "with these 4 workers use" in text
    assert "one more prefill worker buys" in text


@pytest.mark.parametrize(
    ("pools", "status", "named"),
    [
        ([{"model": "m", "names": ["m"], "planner": None}], 200, "does not count"),
        ([{"model": "m", "names": ["m"], "planner": {**PLANNER, "demand": None}}], 200, "started"),
        ([{"model": m, "names": [m], "planner": PLANNER} for m in "ab"], 200, "several models"),
        ([], 401, "operator's key"),
        ([], 500, "status 500"),
    ],
)
def test_a_router_that_cannot_say_is_named(
    router: str, monkeypatch: pytest.MonkeyPatch, pools: list[Any], status: int, named: str
) -> None:
    monkeypatch.setattr(_Router, "said", {"pools": pools, "workers": WORKERS})
    monkeypatch.setattr(_Router, "status", status)
    with pytest.raises(CommandError, match=named):
        raise plan("--router", router).exception


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("at_s,input_length,output_length\n0,10,3\n")
    for arguments, named in (
        ((), "--workers is needed"),
        (("--workers", "3"), "name a trace, or a router"),
        ((str(trace), "--workers", "1"), "at least 2"),
        (("--router", "ftp://x"), "must be a URL"),
    ):
        error = plan(*arguments).exception
        assert isinstance(error, CommandError)
        assert named in str(error)
    good = plan(str(trace), "--workers", "2", "--prompt-tokens-per-s", "1000", "--step-ms", "5")
    assert good.exit_code == 0, good.output
    assert "use 1:1" in good.output
