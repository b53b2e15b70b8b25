"""What a measured process tells its parent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.peers.engines.process import EngineProcess, PeerError, PeerUnavailableError
from benchmarks.peers.engines.systems import plain_environ
from benchmarks.peers.workers.wire import Timeline
from cli.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = """
import sys
from benchmarks.peers.workers.wire import (
    Many, Single, Timeline, UnavailableHereError, Vectors, serve
)

class Engine:
    def __init__(self, options):
        print("a library that prints")
        if options.quantization == "int3":
            raise UnavailableHereError("no such thing")
        if options.quantization == "broken":
            raise RuntimeError("out of luck")

    def one(self, prompt, num_tokens):
        return Single(times_s=[0.5] * num_tokens, token_ids=[len(prompt)] * num_tokens)

    def many(self, prompts, num_tokens, adapters=()):
        timeline = Timeline(len(prompts))
        if adapters:
            timeline.add({str(i): place * num_tokens for i, place in enumerate(adapters)})
            return timeline.end()
        timeline.add({str(i): num_tokens for i in range(len(prompts) - 1)})
        return timeline.end()

    def embed(self, texts):
        return Vectors(elapsed_s=len(texts), beginning=texts[0])

    def describe(self):
        return {"version": "7"}

serve(Engine)
"""


def start(folder: Path, *flags: str) -> EngineProcess:
    command = [sys.executable, "-P", "-c", ENGINE, "--model", "m", "--threads", "1", *flags]
    environ = plain_environ() | {"PYTHONPATH": str(ROOT)}
    return EngineProcess(command, env=environ, log=folder / "engine.log")


def test_an_engine_answers_over_the_pipe_whatever_its_libraries_print(tmp_path: Path) -> None:
    process = start(tmp_path)
    try:
        assert process.wait_ready(60.0) == {"version": "7"}
        single = process.one([1, 2, 3], 2, timeout_s=60.0)
        assert (single.times_s, single.token_ids) == ([0.5, 0.5], [3, 3])
        assert process.many([[1], [2], [3]], 5, (0, 1, 2), timeout_s=60.0).num_tokens == 15
        vectors = process.embed([[4, 5], [6]], timeout_s=60.0)
        assert (vectors.elapsed_s, vectors.beginning) == (2, [4, 5])
        process.tree.pause()
        process.tree.resume()
        assert process.one([1], 1, timeout_s=60.0).token_ids == [1]
        with pytest.raises(PeerError, match="4 tokens instead of 6"):
            process.many([[1], [2], [3]], 2, timeout_s=60.0)
    finally:
        process.close()
    assert process.tree.processes() == [] or not process.tree.processes()[0].is_running()


def test_an_engine_that_cannot_says_why(tmp_path: Path) -> None:
    process = start(tmp_path, "--quantization", "int3")
    try:
        with pytest.raises(PeerUnavailableError, match="no such thing"):
            process.wait_ready(60.0)
    finally:
        process.close()


def test_an_engine_that_breaks_shows_the_end_of_its_log(tmp_path: Path) -> None:
    process = start(tmp_path, "--quantization", "broken")
    try:
        with pytest.raises(PeerError, match="out of luck"):
            process.wait_ready(60.0)
    finally:
        process.close()


def test_decoding_begins_when_every_prompt_has_its_first_token() -> None:
    timeline = Timeline(2)
    timeline.add({"a": 1})
    timeline.add({"a": 1, "b": 1})
    timeline.add({})
    timeline.add({"a": 1, "b": 1})
    many = timeline.end()
    assert (many.num_by_then, many.num_tokens) == (3, 5)
    assert 0 < many.prefilled_s <= many.elapsed_s
