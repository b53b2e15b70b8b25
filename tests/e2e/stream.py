"""One request of a test that reads many at a time, and what one engine would answer."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest

from baton.v1 import common_pb2, router_pb2
from baton_client import BatonError
from shared.request.grammar.wire import grammar_from_wire
from shared.request.sampling_params import SamplingParams
from tests.e2e.oracle import answer_of
from tests.fakes.model.embeds import as_message, rows_of
from tests.fakes.model.hidden_states import check_rows, rows_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.llm import LLM
    from shared.engine.offline.request_output import CompletionOutput
    from shared.request.adapter_ref import AdapterRef
    from tests.e2e.processes import Cluster

#: Of an answer, unless its request says otherwise.
NUM_TOKENS = 160
#: By how much log probabilities may differ.
LOGPROB_BOUND = 1e-3
WAIT_S = 120.0


@dataclass
class Stream:
    """One request, read in a thread."""

    name: str
    prompt: list[int]
    params: dict[str, Any]
    #: What it is asked of; None: the base.
    adapter: AdapterRef | None = None
    #: Whether the prompt is sent as the embeddings of its tokens.
    gives_embeds: bool = False
    texts: dict[int, str] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: list[float] = field(default_factory=list)
    hidden_states: dict[int, list[bytes]] = field(default_factory=dict)
    prompt_details: list[router_pb2.TokenDetail] = field(default_factory=list)
    usage: common_pb2.Usage | None = None
    timings: common_pb2.Timings | None = None
    num_seen: int = 0
    error: Exception | None = None
    thread: threading.Thread | None = None

    def start(self, read: Callable[[Stream], None]) -> None:
        def run() -> None:
            try:
                read(self)
            except (BatonError, grpc.RpcError, httpx.HTTPError, OSError) as error:
                self.error = error

        self.thread = threading.Thread(target=run)
        self.thread.start()


def expected(oracle: LLM, stream: Stream) -> list[CompletionOutput]:
    """What one engine that does it all answers."""
    n, stop = stream.params.get("n", 1), stream.params.get("stop", ())
    sampling, adapter = sampling_of(stream), stream.adapter
    answer = answer_of(oracle, stream.prompt, sampling, n=n, stop=stop, adapter=adapter)
    return list(answer.outputs)


def sampling_of(stream: Stream) -> SamplingParams:
    """What an engine is asked for."""
    params = {"ignore_eos": True, "max_tokens": NUM_TOKENS, **stream.params}
    for name in ("n", "stop"):
        params.pop(name, None)
    if "grammar" in params:
        params["grammar"] = grammar_from_wire(common_pb2.Grammar(**params["grammar"]))
    return SamplingParams(**params)


def late_stop(oracle: LLM, stream: Stream) -> str:
    """A string that comes for the first time when two thirds of the answer are over."""
    params = {name: value for name, value in stream.params.items() if name != "stop"}
    whole = Stream(stream.name, stream.prompt, params, adapter=stream.adapter)
    text = expected(oracle, whole)[0].text
    for start in range(2 * len(text) // 3, len(text) - 4):
        piece = text[start : start + 3]
        if text.find(piece) == start and "\ufffd" not in piece:
            return piece
    raise AssertionError("the answer says nothing new at its end")


def read_grpc(cluster: Cluster) -> Callable[[Stream], None]:
    """Reads a stream to its end, over gRPC."""
    stub = cluster.router_stub()

    def read(stream: Stream) -> None:
        params = {"ignore_eos": True, "max_tokens": NUM_TOKENS, **stream.params}
        params |= {"stop": [params["stop"]]} if "stop" in params else {}
        prompt = router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=stream.prompt))
        if stream.gives_embeds:
            prompt = router_pb2.Prompt(embeds=as_message(rows_of(cluster.model, stream.prompt)))
        request = router_pb2.GenerateRequest(
            model=stream.adapter.name if stream.adapter else "",
            prompt=prompt,
            params=router_pb2.GenerationParams(**params),
        )
        for piece in stub.Generate(request, timeout=WAIT_S):
            index = piece.index
            stream.texts[index] = stream.texts.get(index, "") + piece.text
            stream.token_ids.setdefault(index, []).extend(piece.token_ids)
            stream.logprobs += [detail.logprobs.chosen.logprob for detail in piece.details]
            stream.prompt_details += piece.prompt_details
            stream.hidden_states.setdefault(index, []).extend(piece.hidden_states)
            stream.num_seen = min(map(len, stream.token_ids.values()))
            if piece.HasField("usage"):
                stream.usage, stream.timings = piece.usage, piece.timings

    return read


def check(oracle: LLM, stream: Stream, *, logprob_bound: float = LOGPROB_BOUND) -> None:
    """Fail unless the answers are the oracle's, whatever happened to them."""
    assert stream.error is None, (stream.name, stream.error)
    answers = expected(oracle, stream)
    for answer in answers:
        assert stream.texts[answer.index] == answer.text, stream.name
        if stream.token_ids:
            assert tuple(stream.token_ids[answer.index]) == answer.token_ids, stream.name
    if "logprobs" in stream.params:
        wanted = [position.chosen.logprob for position in answers[0].logprobs]
        assert stream.logprobs == pytest.approx(wanted, abs=logprob_bound)
    if "return_hidden_states" in stream.params:
        for answer in answers:
            check_rows(stream.hidden_states[answer.index], rows_in(answer.hidden_states))
    if stream.usage is not None:
        sources = stream.usage.sources
        total = sources.computed + sources.local_hit + sources.transferred
        assert total == stream.usage.prompt_tokens == len(stream.prompt)
        num_tokens = sum(len(answer.token_ids) for answer in answers)
        assert stream.usage.completion_tokens == num_tokens
