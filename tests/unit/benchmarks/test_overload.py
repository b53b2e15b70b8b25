from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.overload.page import write_page
from benchmarks.overload.results import BombPart, BombResult, Phase, Request, Result, Sample
from benchmarks.overload.tables import goodput, load_rows, peak, tenant_rows
from benchmarks.overload.watch import growth

if TYPE_CHECKING:
    from pathlib import Path

BOUND_MS = 100.0


def request(ttft_ms: float = 50.0, *, status: int = 200, tenant: str = "") -> Request:
    return Request(
        tenant=tenant,
        start_s=0.0,
        ttft_ms=ttft_ms if status == 200 else 0.0,
        latency_ms=200.0,
        num_tokens=10 if status == 200 else 0,
        status=status,
        error="" if status == 200 else f"HTTP {status}",
    )


def phase(load: float, requests: list[Request], *, name: str = "load", mib: float = 0.5) -> Phase:
    samples = [
        Sample(
            at_s=float(second),
            rss_mib=dict.fromkeys(("router", "prefill", "decode"), 100 + mib * second),
            cpu_s=dict.fromkeys(("router", "prefill", "decode"), 0.1 * second),
            num_running=3,
            num_waiting=second,
            ttft_margin=1.0,
        )
        for second in range(61)
    ]
    return Phase(
        name=name,
        load=load,
        requests_per_s=load,
        duration_s=10.0,
        requests=requests,
        samples=samples,
    )


@pytest.fixture
def result() -> Result:
    late, refused, broken = request(150.0), request(status=429), request(status=0)
    gold = [request(tenant="gold")] * 2 + [request(status=429, tenant="gold")]
    iron = [request(tenant="iron")] + [request(status=429, tenant="iron")] * 2
    return Result(
        revision="abc",
        machine={"processor": "x", "cores": 2, "memory_gib": 1, "kernel": "6"},
        max_ttft_ms=BOUND_MS,
        capacity_rps=1.0,
        weights={"gold": 2.0, "iron": 1.0},
        phases=[
            phase(1.0, [request()] * 50, name="closed loop"),
            phase(1.0, [request()] * 20),
            phase(3.0, [*[request()] * 18, late, late, *[refused] * 39, broken]),
            phase(3.0, [*gold, *iron], name="tenants"),
        ],
        num_leaked_blocks=0,
    )


def test_only_tokens_of_requests_in_time_are_good(result: Result) -> None:
    assert goodput(result.phases[2], BOUND_MS) == 18
    # The closed loop, which waits for answers, is no measure of goodput under load.
    assert peak(result) == 20


def test_refused_late_and_failed_are_told_apart(result: Result) -> None:
    _, highest = load_rows(result)
    assert highest[3:6] == ["90%", "20", "90.0%"]
    assert (highest[7], highest[8], highest[9]) == ("39", "200 / 200", "1")


def test_shares_are_of_what_was_given(result: Result) -> None:
    rows = tenant_rows(result, result.phases[-1])
    assert [(row[0], row[3], row[5], row[6]) for row in rows] == [
        ("gold", "2", "66.7%", "66.7%"),
        ("iron", "1", "33.3%", "33.3%"),
    ]


def test_growth_is_a_slope_and_not_a_difference(result: Result) -> None:
    slope, share = growth(result.phases[1].samples, "router")
    assert slope == pytest.approx(30.0)
    assert share == pytest.approx(0.5 * 42 / 109)
    assert growth([], "router") == (0.0, 0.0)


def test_the_page_has_every_table_and_the_picture(result: Result, tmp_path: Path) -> None:
    part = {"plain": [10.0] * 99 + [20.0]}
    bombs = BombResult(
        parts=[
            BombPart(bombs=False, ttft_ms=part, itl_ms=part, errors=[]),
            BombPart(bombs=True, ttft_ms={"plain": [30.0]}, itl_ms=part, errors=["HTTP 500"]),
        ],
        statuses={"200": 2, "429": 7},
        num_bombers=6,
        num_properties=3000,
        output_len=8,
        revision="abc",
    )
    write_page(result, bombs, tmp_path)
    page = (tmp_path / "overload.md").read_text()
    assert "| 3 × | 3.0 | 18 | 90% |" in page
    assert page.count("| ---: |") >= 3
    assert "| plain | 100 / 1 | 10.0 / 10.1 | 30.0 / 30.0 | 2.97 |" in page
    assert "2 × 200, 7 × 429" in page
    assert "failed: 1." in page
    assert (tmp_path / "overload.svg").read_text().startswith("<?xml")
