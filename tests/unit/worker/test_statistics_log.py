"""The line of statistics: vLLM's words, rates of the time since the line before."""

from __future__ import annotations

from dataclasses import replace

import structlog

from cli.places import SHIPPED_MODEL
from shared.engine.engine_stats import EngineStats
from shared.engine.llm import LLM
from shared.request.sampling_params import SamplingParams
from shared.worker.statistics_log import StatisticsLog, begin_statistics


class Watched:
    """Statistics that a test sets, and a clock that it moves."""

    def __init__(self) -> None:
        self.stats = EngineStats(num_blocks=100, num_free_blocks=75)
        self.now_s = 50.0
        self.log = StatisticsLog(lambda: self.stats, clock=lambda: self.now_s)

    def lines(self, passed_s: float, **counters: int) -> list[str]:
        """The lines of a look after a time with these counters."""
        self.now_s += passed_s
        self.stats = replace(self.stats, counters=counters)
        with structlog.testing.capture_logs() as found:
            self.log.look()
        return [line["event"] for line in found]


def test_a_line_has_the_rates_since_the_line_before() -> None:
    watched = Watched()
    watched.stats = replace(watched.stats, num_running=2, num_waiting=1)
    counts = {"prefix_cache_queries": 100, "prefix_cache_hits": 25}
    [line] = watched.lines(
        10, engine_steps=5, computed_prompt_tokens=300, generation_tokens=50, **counts
    )
    assert line == (
        "Avg prompt throughput: 30.0 tokens/s, Avg generation throughput: 5.0 tokens/s, "
        "Running: 2 reqs, Waiting: 1 reqs, KV cache usage: 25.0%, Prefix cache hit rate: 25.0%"
    )
    [line] = watched.lines(
        5, engine_steps=9, computed_prompt_tokens=300, generation_tokens=100, **counts
    )
    assert "prompt throughput: 0.0 tokens/s" in line
    assert "generation throughput: 10.0 tokens/s" in line
    assert "hit rate: 0.0%" in line


async def test_there_may_be_no_line() -> None:
    assert begin_statistics(EngineStats, is_disabled=True) == set()
    [task] = begin_statistics(EngineStats, is_disabled=False)
    task.cancel()


def test_accepted_drafts_are_said() -> None:
    drafts = {"spec_decode_num_drafts": 4, "spec_decode_num_accepted_tokens": 6}
    [line] = Watched().lines(1, engine_steps=1, **drafts)
    assert line.endswith("Mean acceptance length: 2.50")


def test_an_idle_engine_says_so_once() -> None:
    watched = Watched()
    assert watched.lines(10) == []
    assert len(watched.lines(10, engine_steps=1)) == 1
    assert len(watched.lines(10, engine_steps=1)) == 1
    assert watched.lines(10, engine_steps=1) == []


def test_tokens_of_prompts_are_counted_once_each() -> None:
    llm = LLM(SHIPPED_MODEL, num_blocks=64, max_num_batched_tokens=64, max_num_seqs=4)
    try:
        greedy = SamplingParams(temperature=0, max_tokens=5)
        prompts = [list(range(5, 105)), list(range(200, 230))]
        llm.generate(prompts, greedy)
        assert llm.engine.stats().counters["computed_prompt_tokens"] == 130
        llm.generate(prompts[:1], greedy)
        # 96 tokens are blocks that the cache has.
        assert llm.engine.stats().counters["computed_prompt_tokens"] == 134
    finally:
        llm.close()
