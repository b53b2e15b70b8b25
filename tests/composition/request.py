"""The request of a row, asked of a cluster and of one engine, and a plain one beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest

from baton.v1 import common_pb2, router_pb2
from shared.request.beam_search import BeamOptions
from shared.request.sampling_params import SamplingParams
from tests.composition.axes import ADAPTERS, GRAMMARS, REQUESTS
from tests.composition.near_ties import distance_to_itself
from tests.composition.rules import is_exact, rounds_kv
from tests.composition.vectors import AskedVectors
from tests.e2e.asking import prompt_of, until
from tests.e2e.stream import LOGPROB_BOUND, WAIT_S, Stream, check, expected, late_stop, read_grpc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.engine.llm import LLM
    from shared.request.adapter_ref import AdapterRef
    from tests.composition.adapters import PeftModels
    from tests.composition.axes import Row
    from tests.e2e.processes import Cluster

NUM_BEAM_TOKENS = 24
#: By executor: what PyTorch computes is several times slower, and as long under way.
NUM_LONG_TOKENS = {"native": 480, "torch": 240, "transformers": 240}
NUM_OTHER_TOKENS = 48
#: Tokens whose log probabilities differ by less may change places by rounding to bfloat16: four of
#: its steps between 8 and 16. PyTorch sums a batch in another order on each kind of processor.
NEAR = 0.25
NUM_SHARED = 70
PROMPT = prompt_of(NUM_SHARED, seed=11)
LETTERS = "([a-z]{7} ){30}"
LIST = {
    "type": "array",
    "items": {"type": "string", "minLength": 6, "maxLength": 9},
    "minItems": 60,
}
JSON = {"kind": common_pb2.GRAMMAR_KIND_JSON_SCHEMA, "text": json.dumps(LIST)}
#: Any tokens will do as marks; a bias makes random weights close the thought.
THINKING = {"begin_token_id": 40, "end_token_id": 41, "is_open": True}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "regex": {"grammar": {"kind": common_pb2.GRAMMAR_KIND_REGEX, "text": LETTERS}},
    "json": {"grammar": JSON},
    "thought": {"grammar": JSON | {"thinking": THINKING}, "logit_bias": {41: 2.0}},
}


@dataclass
class Beams:
    """A search of beams, which has no stream."""

    prompt: list[int]
    adapter: AdapterRef | None = None
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    num_replays: int = 0
    error: str = ""
    thread: Thread | None = None

    def start(self, cluster: Cluster) -> None:
        """Ask over HTTP, the only door that has it."""

        def run() -> None:
            body = {
                "model": self.adapter.name if self.adapter else cluster.model.name,
                "prompt": self.prompt, "max_tokens": NUM_BEAM_TOKENS, "ignore_eos": True,
                "use_beam_search": True, "n": 2, "best_of": 3, "return_token_ids": True,
            }  # fmt: skip
            reply = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=WAIT_S)
            if reply.status_code != 200:
                self.error = reply.text
                return
            answer = reply.json()
            self.tokens = [tuple(choice["token_ids"]) for choice in answer["choices"]]
            self.num_replays = answer["usage"].get("num_replays", 0)

        self.thread = Thread(target=run)
        self.thread.start()

    def check(self, engine: LLM) -> None:
        """Fail unless the answers are the engine's."""
        assert not self.error
        sampling = SamplingParams(max_tokens=NUM_BEAM_TOKENS, ignore_eos=True, logprobs=0)
        beams = BeamOptions(width=3)
        (want,) = engine.beam_search([self.prompt], beams, sampling, n=2, adapter=self.adapter)
        assert self.tokens == [answer.token_ids for answer in want.outputs]


class Asked:
    """The row's request and others beside it, under way."""

    def __init__(
        self, row: Row, engine: LLM, prompt: list[int], adapters: Mapping[str, AdapterRef]
    ) -> None:
        """`prompt`: of the row's request; `adapters`: by name, as the engine has them."""
        self._engine = engine
        own, plain, other = ADAPTERS[row["adapter"]]
        self._is_exact = is_exact(row)
        self._rounds_kv = rounds_kv(row)
        self._in_order = row["prefix from"] == "prefill's cache" and row["event"] == "none"
        self.plain = Stream(
            "plain", prompt_of(45, seed=12), {"temperature": 0.0}, adapter=adapters.get(plain)
        )
        #: The own's prompt, with another adapter: no block is that of both.
        self.other: Stream | None = None
        if other is not None:
            params = {"temperature": 0.0, "max_tokens": NUM_OTHER_TOKENS}
            self.other = Stream("other", prompt, params, adapter=adapters[other])
        if row["event"].startswith("decode") or row["event"] == "paused":
            # It is not over before the event.
            self.plain.params["max_tokens"] = NUM_LONG_TOKENS[row["executor"]]
        is_beams = row["request"] == "beams"
        self.beams = Beams(prompt, adapters.get(own)) if is_beams else None
        params = dict(REQUESTS[row["request"]])
        if constraint := GRAMMARS[row["grammar"]]:
            params |= CONSTRAINTS[constraint[1]]
        self.own = Stream("own", prompt, params, adapter=adapters.get(own))
        if "stop" in params:
            self.own.params["stop"] = late_stop(engine, self.own)
        self.vectors: AskedVectors | None = None
        if row["task"] == "embed":
            models = {self.own.adapter, self.plain.adapter}
            self.vectors = AskedVectors(prompt, engine, sorted(models, key=str))

    @property
    def streams(self) -> list[Stream]:
        """Those that are read as they are written."""
        others = [self.plain] if self.other is None else [self.plain, self.other]
        return others if self.beams else [self.own, *others]

    def start(self, cluster: Cluster) -> None:
        """Ask all at once; or the row's own first, if its way depends on the order."""
        if self.beams is not None:
            self.beams.start(cluster)
        for stream in self.streams:
            stream.start(read_grpc(cluster))
            if self._in_order:
                until(lambda stream=stream: stream.num_seen > 0 or stream.error is not None)
        if self.vectors is not None:
            self.vectors.start(cluster)

    def finish(self) -> None:
        """Wait for all; fail unless every token, and every number of a vector, is the engine's."""
        threads = [stream.thread for stream in self.streams]
        for thread in (*threads, self.beams.thread if self.beams else None):
            if thread is not None:
                thread.join(WAIT_S)
        for stream in self.streams:
            assert stream.error is None, (stream.name, stream.error)
        if self.vectors is not None:
            self.vectors.join()
            self.vectors.check(is_exact=self._is_exact and not self._rounds_kv)
        if not self._is_exact:
            for stream in filter(None, (self.plain, self.other)):
                check_until_tie(self._engine, stream)
            return
        for stream in self.streams:
            check(self._engine, stream, logprob_bound=self._bound(stream))
        if self.beams is not None:
            self.beams.check(self._engine)
        if "prompt_logprobs" in self.own.params:
            self._check_scores()

    def check_by_peft(self, models: PeftModels) -> None:
        """Fail unless greedy answers, and vectors, are those of PEFT and transformers."""
        for stream in self.streams:
            if stream.params.keys() <= {"temperature", "max_tokens"}:
                name = stream.adapter.name if stream.adapter else ""
                models.check_greedy(name, stream.prompt, stream.token_ids[0])
        if self.vectors is not None:
            self.vectors.check_by_peft(models)

    @property
    def num_replays(self) -> int:
        """How often an answer went on at another worker."""
        replays = sum(s.usage.num_replays for s in self.streams if s.usage is not None)
        return replays + (self.beams.num_replays if self.beams else 0)

    def _bound(self, stream: Stream) -> float:
        """By how much a log probability may differ."""
        if not self._rounds_kv or "logprobs" not in stream.params:
            return LOGPROB_BOUND
        return max(LOGPROB_BOUND, distance_to_itself(self._engine, stream))

    def _check_scores(self) -> None:
        wanted = self._engine.generate(
            [self.own.prompt],
            SamplingParams(max_tokens=1, prompt_logprobs=2, ignore_eos=True),
            adapter=self.own.adapter,
        )[0].prompt_logprobs
        assert wanted is not None
        scores = [detail.logprobs.chosen.logprob for detail in self.own.prompt_details[1:]]
        assert scores == pytest.approx(
            [position.chosen.logprob for position in wanted[1:] if position], abs=LOGPROB_BOUND
        )


def check_until_tie(engine: LLM, stream: Stream) -> None:
    """Fail unless a greedy answer is the engine's, up to a token that was about as likely."""
    got, wanted = stream.token_ids[0], expected(engine, stream)[0].token_ids
    assert len(got) == len(wanted)
    pairs = enumerate(zip(got, wanted, strict=True))
    first = next((index for index, (one, other) in pairs if one != other), None)
    if first is None:
        return
    sampling = SamplingParams(max_tokens=1, temperature=0.0, logprobs=5, ignore_eos=True)
    prompt = [*stream.prompt, *wanted[:first]]
    (request,) = engine.generate([prompt], sampling, adapter=stream.adapter)
    (position,) = request.outputs[0].logprobs
    likely = {candidate.token_id: candidate.logprob for candidate in position.top}
    gap = likely[wanted[first]] - likely.get(got[first], -99.0)
    assert gap < NEAR, f"token {first} of {stream.name}: {gap} less likely"


def refusal_of_beams(cluster: Cluster) -> str:
    """What the router says to a search of beams in a grammar."""
    body = {
        "model": cluster.model.name, "prompt": PROMPT, "use_beam_search": True, "n": 2,
        "structured_outputs": {"regex": LETTERS},
    }  # fmt: skip
    reply = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=WAIT_S)
    assert reply.status_code == 400
    return str(reply.json()["error"]["message"])


class Leaver:
    """A request whose client goes in the midst of it."""

    def __init__(self, cluster: Cluster, model: str) -> None:
        request = router_pb2.GenerateRequest(
            model=model,
            prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt_of(90, seed=13))),
            params=router_pb2.GenerationParams(
                max_tokens=400, temperature=1.0, seed=3, ignore_eos=True
            ),
        )
        self._call = cluster.router_stub().Generate(request, timeout=WAIT_S)

    def leave(self) -> None:
        """Go once it has been given something."""
        next(self._call)
        self._call.cancel()
        assert self._call.code() is grpc.StatusCode.CANCELLED
