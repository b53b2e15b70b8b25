"""Random use of an engine: whatever is done in whatever order, nothing is lost or leaked.

A test file runs it over a model and a way of stepping: `EngineMachine.TestCase`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.engine.prompt_hidden import HiddenWish
from shared.engine.sequence.events import Admitted, Failed, Landing, NewTokens
from shared.engine.sequence.request import KVSource
from shared.engine.settings.choices import SchedulingPolicy
from shared.engine.step.hidden import HiddenNeeds
from shared.engine.thread.request_stream import is_last
from shared.identity import Role
from shared.kv.identity import group_of
from shared.kv.tier import BlockTier
from shared.request.prompt_embeds import EmbeddingRows, EmbedsDtype, PromptEmbeds
from tests.fakes.engine.engines import (
    StepMode,
    cached_hashes,
    expected_tokens,
    make_engine,
    make_request,
)
from tests.fakes.engine.landing import fill
from tests.fakes.engine.model import FakeLoadedModel
from tests.fakes.engine.neighbours import NEIGHBOURS, Neighbour
from tests.fakes.engine.timed_model import Ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.engine import Engine

#: A few prompts with common beginnings, so that there are hits.
PROMPTS = [[i] * 4 + list(range(n)) for i in (1, 2) for n in (0, 3, 4, 9, 20)]
PROCESSOR = "tests.fakes.engine.logits_processors:NoRepeat"
#: What a request may be beside plain. There is no tokenizer, so there are no grammars.
KINDS = [row for row in NEIGHBOURS if row.sampling is not None and "grammar" not in row.sampling]


class EngineMachine(RuleBasedStateMachine):
    """A worker's life: prompts computed, received, held, given up; prefixes pinned."""

    mode = StepMode.SYNCHRONOUS
    num_blocks = 16
    prompts_to_choose = PROMPTS
    policy = SchedulingPolicy.FCFS

    def __init__(self) -> None:
        super().__init__()
        self.loaded: Any = self.make_loaded()
        self.engine = self.make_engine(
            num_blocks=self.num_blocks,
            max_num_seqs=4,
            max_num_batched_tokens=10,
            scheduling_policy=self.policy,
            logits_processors=(PROCESSOR,),
            enable_prompt_embeds=True,
            enable_return_hidden_states=True,
        )
        self.sender = self.make_sender()
        self.next_id = 0
        self.prompts: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}
        #: Those whose tokens are not the plain ones.
        self.others: set[str] = set()
        self.receiving: dict[str, Admitted | Landing] = {}
        self.held: set[str] = set()
        self.unfinished: set[str] = set()
        self.pins: list[int] = []
        self.followed: set[bytes] = set()

    def make_loaded(self) -> Any:
        """The model that the engines run."""
        return FakeLoadedModel()

    def expected(self, prompt: Sequence[int], num: int) -> list[int]:
        """The plain answer."""
        return expected_tokens(prompt, num)

    def num_tokens_per_step(self) -> list[int]:
        """As far as the model counts them."""
        return list(self.loaded.model.num_tokens_per_step)

    def make_engine(self, **settings: Any) -> Engine:
        """The engine under test."""
        # What is decided by measured times is decided likewise in every run.
        return make_engine(self.loaded, self.mode, clock=Ticks(), **settings)

    def make_sender(self) -> Engine:
        """The engine of a peer that computes prompts."""
        return make_engine(self.make_loaded())

    def settle(self) -> None:
        """Wait for what the engine does beside its steps."""

    def take(self, events: list) -> None:
        for event in events:
            name = event.request_id
            assert name in self.unfinished, "an event after the last"
            assert not isinstance(event, Failed), event
            is_place = isinstance(event, Admitted | Landing)
            if is_place and name.startswith("t") and name not in self.tokens:
                self.receiving[name] = event
            if isinstance(event, NewTokens):
                self.tokens.setdefault(name, []).extend(event.token_ids)
                if name not in self.others:
                    expected = self.expected(self.prompts[name], len(self.tokens[name]))
                    assert self.tokens[name] == expected
            if is_last(event):
                self.unfinished.discard(name)
                self.receiving.pop(name, None)

    @rule(
        which=st.integers(0, 99),
        max_tokens=st.integers(1, 8),
        kind=st.sampled_from("ccth"),
        states_from=st.none() | st.integers(0, 3),
        neighbour=st.none() | st.sampled_from(KINDS),
        as_rows=st.booleans(),
        max_itl_ms=st.sampled_from([0.0, 0.0, 1e-3, 9.0, 1e3]),
    )
    def add(
        self,
        which: int,
        max_tokens: int,
        kind: str,
        states_from: int | None = None,
        neighbour: Neighbour | None = None,
        as_rows: bool = False,
        max_itl_ms: float = 0.0,
    ) -> None:
        prompt = self.prompts_to_choose[which % len(self.prompts_to_choose)]
        name = f"{kind}{self.next_id}"
        self.next_id += 1
        source = KVSource.TRANSFER if kind == "t" else KVSource.COMPUTE
        sampling = {"ignore_eos": True} | self.sampling(name, kind, max_tokens, neighbour)
        embeds = None
        if as_rows and "prompt_logprobs" not in sampling:  # those are of tokens
            embeds = self.rows_of(prompt)
        self.engine.add(
            make_request(
                name,
                prompt if embeds is None else embeds.whole_ids,
                embeds=embeds,
                max_tokens=max_tokens,
                max_itl_ms=max_itl_ms,
                kv_source=source,
                hold_blocks=kind == "h",
                hidden=self.wish(kind, states_from),
                **sampling,
                **self.request_fields(prompt),
            )
        )
        self.prompts[name] = prompt
        self.unfinished.add(name)
        if kind == "h":
            self.held.add(name)

    def request_fields(self, prompt: Sequence[int]) -> dict[str, Any]:
        """What else a request for this prompt has."""
        return {}

    def rows_of(self, prompt: Sequence[int]) -> PromptEmbeds:
        """The embeddings of a prompt's tokens, to which the answer is the same."""
        rows = self.loaded.model.embed(torch.tensor(prompt)).float().numpy()
        data = rows.tobytes()
        return PromptEmbeds.whole(EmbeddingRows(EmbedsDtype.FLOAT32, rows.shape[1], data))

    def sampling(
        self, name: str, kind: str, max_tokens: int, neighbour: Neighbour | None
    ) -> dict[str, Any]:
        """What one that is not plain asks for beside its tokens."""
        if neighbour is None or neighbour.sampling is None:
            return {}
        sampling = dict(neighbour.sampling)
        if kind == "t":  # prompts are scored where they are computed
            sampling.pop("prompt_logprobs", None)
        if "min_tokens" in sampling:
            sampling["min_tokens"] = min(sampling["min_tokens"], max_tokens)
        if not neighbour.answers_plainly and sampling:
            self.others.add(name)
        return sampling

    def wish(self, kind: str, states_from: int | None) -> HiddenWish | None:
        """Some that are sent or received have hidden states, too."""
        form = self.engine.hidden.format(HiddenNeeds(final=True))
        if kind == "c" or states_from is None or form is None:
            return None
        return HiddenWish(format=form, first_position=None if kind == "t" else states_from)

    @rule(role=st.sampled_from([None, Role.PREFILL, Role.DECODE]))
    def prefer(self, role: Role | None) -> None:
        self.engine.prefer(role)

    @rule()
    def step(self) -> None:
        self.take(self.engine.step())

    @precondition(lambda self: self.receiving)
    @rule(data=st.data(), arrives=st.booleans(), with_token=st.booleans())
    def end_transfer(self, data: st.DataObject, arrives: bool, with_token: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.receiving)))
        to = self.receiving.pop(name)
        (token,) = self.expected(self.prompts[name], 1)
        self.tokens[name] = [token] if with_token else []
        if arrives:
            self.send(name, to)
            self.engine.complete_transfer(name, token if with_token else None, states_from=0)
        else:
            self.engine.fail_transfer(name, token if with_token else None)

    def send(self, name: str, to: Admitted | Landing) -> None:
        prompt = self.prompts[name]
        fill(self.sender, self.engine, to, prompt, **self.request_fields(prompt))

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.prompts)))
        self.receiving.pop(name, None)
        self.engine.abort(name)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.held.discard(name)
        self.engine.release(name)

    @rule()
    def pin(self) -> None:
        hashes = [key for key in cached_hashes(self.engine) if not group_of(key)]
        pin, _ = self.engine.pin_cached(hashes[:2])
        self.pins.append(pin)

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        self.engine.unpin(self.pins.pop())

    @rule()
    def follow(self) -> None:
        for change in self.engine.take_cache_changes():
            if change.tier is not BlockTier.DEVICE:
                continue
            self.followed = (self.followed - set(change.removed)) | set(change.stored)
        snapshot = cached_hashes(self.engine)
        assert self.followed == set(snapshot)
        assert len(snapshot) == len(set(snapshot))

    @invariant()
    def consistent(self) -> None:
        self.engine.check_integrity()
        assert self.engine.broken is None
        assert max(self.num_tokens_per_step(), default=0) <= 10

    def teardown(self) -> None:
        """Everybody lets go: whoever can finish does, and all blocks come back."""
        while self.pins:
            self.unpin()
        for name in sorted(self.receiving):
            self.receiving.pop(name)
            self.tokens[name] = []
            self.engine.fail_transfer(name)
        for _ in range(1000):
            self.take(self.engine.step())
            self.engine.wait_for_news()
            for name in sorted(self.receiving):
                self.receiving.pop(name)
                self.tokens[name] = []
                self.engine.fail_transfer(name)
            for name in sorted(self.held - self.unfinished):
                self.held.discard(name)
                self.engine.release(name)
            if not (self.unfinished or self.engine.has_work()):
                break
        self.settle()
        self.engine.check_integrity()
        assert not self.unfinished, "somebody starves"
        assert self.engine.stats().num_free_blocks == self.engine.stats().num_blocks
