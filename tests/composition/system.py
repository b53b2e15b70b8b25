"""The processes of a row, and what is asked of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import httpx

from baton.v1 import router_pb2
from tests.composition.axes import ADAPTERS, RANKS, SHAPES
from tests.composition.request import NUM_SHARED, PROMPT, Asked, Leaver, refusal_of_beams
from tests.composition.rules import rule_of
from tests.composition.settings import BLOCK_SIZE, has_windows_only, worker_flags
from tests.e2e.asking import GREEDY, ask, prompt_of, until
from tests.e2e.processes import Cluster
from tests.e2e.stream import WAIT_S
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.composition.axes import Row
    from tests.composition.settings import Models
    from tests.e2e.processes import Process

#: Tokens that both streams have before something breaks.
NUM_BEFORE = 8
#: How long nothing may come of answers that are paused.
STILL_S = 0.3
#: Tokens of a prompt whose answer begins in the midst of a block that both share with the next one.
NUM_FIRST_TURN = 60
#: Prompts that push every block of an earlier one out of a pool; with windows only, a decode worker
#: keeps one or two blocks of each, however long it is: these are as short as the window lets them.
NUM_FILLERS, NUM_WINDOW_FILLERS = 16, 32
FILLER_TOKENS, WINDOW_FILLER_TOKENS = 300, 40
ALWAYS_GUESS = ("draft model", "eagle", "eagle3", "medusa", "mtp")


class System:
    """One router, and the workers of a row; `stop` ends them."""

    def __init__(self, row: Row, models: Models, folder: Path) -> None:
        self.row = row
        self._models = models
        self._engine, self._adapters = models.engine(row), models.adapters(row)
        #: Of its request.
        self._prompt = PROMPT
        #: Name of its request's adapter; empty: it has none.
        self._adapter = ADAPTERS[row["adapter"]][0]
        self._loads_before = 0.0
        self._num_prefill, self._num_decode = SHAPES[row["prefill : decode"]]
        # Only so does a second request go to the worker that has nothing of it.
        policy = "round-robin" if row["prefix from"] == "prefill's cache" else "cost"
        self.cluster = Cluster(
            models.checkpoint(row["family"], row["weights"], row["KV format"]),
            folder,
            router_flags=("--routing-policy", policy),
        )
        numbers = self._num_prefill, self._num_decode
        ranks = RANKS[row["ranks, prefill : decode"]]
        for role, num, sizes in zip(("prefill", "decode"), numbers, ranks, strict=True):
            for index in range(num):
                name = f"{role}-{index}"
                own = ["--metrics-port", str(free_port())]
                if role == "decode":
                    own += ["--local-prefill-threshold", "0", "--transfer-stall-s", "1.5"]
                    own += ["--drain-mode", "move"]
                flags = worker_flags(row, models, folder / name)
                self.cluster.add_worker(role, name, *flags, *own, *sizes)

    def run(self) -> None:
        """Ask the row's request beside a plain one, through its event.

        Fails unless every token and vector is the engine's, and PEFT's where it computes the same,
        the prefix came from where the row says, and every block is back afterwards.
        """
        self.cluster.wait_ready(num_prefill=self._num_prefill, num_decode=self._num_decode)
        self._wait_for_adapters()
        self._prepare()
        loads = self._num_loads()
        asked = self._asked(self.row)
        asked.start(self.cluster)
        EVENTS[self.row["event"]](self, asked)
        asked.finish()
        if self.row["event"] == "none":
            self._check_ways(asked)
        if self.row["prefix from"] == "offload" and not self.row["event"].startswith("decode"):
            assert self._num_loads() > loads
        self._check_refusals()
        again = self._asked({**self.row, "request": "greedy", "grammar": "none"})
        again.start(self.cluster)
        again.finish()
        if self._is_as_peft():
            again.check_by_peft(self._models.peft(self.row["family"]))
        self.cluster.wait_idle(timeout_s=20)

    def stop(self) -> set[int]:
        """End all processes; returns the exit codes of those that were not killed."""
        return set(self.cluster.stop().values())

    def _asked(self, row: Row) -> Asked:
        return Asked(row, self._engine, self._prompt, self._adapters)

    def _is_as_peft(self) -> bool:
        """Whether PEFT, or transformers, computes the same as the engine."""
        is_new = self.row["adapter"] != "none" or self.row["task"] != "generate"
        return is_new and (self.row["weights"], self.row["KV format"]) == ("float32", "auto")

    def _wait_for_adapters(self) -> None:
        names = set(filter(None, ADAPTERS[self.row["adapter"]]))
        stub, request = self.cluster.router_stub(), router_pb2.ListModelsRequest()
        until(lambda: names <= {model.id for model in stub.ListModels(request).models})

    def _check_refusals(self) -> None:
        """What the router must refuse, and no worker: beams in a grammar."""
        if rule := rule_of(("grammar", self.row["grammar"]), ("request", "beams")):
            assert rule.refused in refusal_of_beams(self.cluster)

    def _prepare(self) -> None:
        if self.row["prefix from"] == "computed":
            return
        if self.row["prefix from"] == "decode's cache":
            # A second turn: of a prompt that is handed over, states are kept at its end, where no
            # other prompt goes on, and then where the first block ends in the answer.
            turn = PROMPT[:NUM_FIRST_TURN]
            answer = self._ask(turn, max_tokens=NUM_SHARED - NUM_FIRST_TURN)
            self._prompt = [*turn, *answer]
            return
        self._ask(PROMPT)
        if self.row["prefix from"] == "offload":
            # A worker that computes prompts keeps all of their blocks until others need them.
            lengths = [FILLER_TOKENS] * NUM_FILLERS
            if has_windows_only(self.row) and self._num_prefill:
                lengths += [WINDOW_FILLER_TOKENS] * NUM_WINDOW_FILLERS
            for seed, length in enumerate(lengths, 100):
                self._ask(prompt_of(length, seed=seed))

    def _ask(self, prompt: list[int], max_tokens: int = 2) -> Sequence[int]:
        options = {"model": self._adapter, "max_tokens": max_tokens, **GREEDY}
        return ask(self.cluster, prompt, **options).token_ids

    def _num_loads(self) -> float:
        """Blocks loaded so far, also by workers that are gone and in earlier lives of others."""
        return self._loads_before + sum(map(self._loads_of, self.cluster.workers))

    def _loads_of(self, worker: str) -> float:
        return self.cluster.metric(worker, "baton_kv_offload_loads_total")

    def _check_ways(self, asked: Asked) -> None:
        """What nothing has broken went the row's way."""
        usage, timings = asked.plain.usage, asked.plain.timings
        assert usage is not None
        assert timings is not None
        assert timings.connector == (self.row["connector"] if self._num_prefill else "")
        if self.row["speculation"] in ALWAYS_GUESS:
            assert usage.num_draft_tokens > 0
        if asked.own.usage is None:
            return
        sources, shared = asked.own.usage.sources, NUM_SHARED // BLOCK_SIZE * BLOCK_SIZE
        if self.row["prefix from"] == "decode's cache":
            assert sources.local_hit == shared
        if self.row["prefix from"] == "prefill's cache":
            assert sources.transferred_hit == shared
        if asked.other is not None and asked.other.usage is not None:
            others = asked.other.usage.sources
            assert (others.local_hit, others.transferred_hit) == (0, 0)

    # Events: each comes while both streams are being written.

    def nothing(self, asked: Asked) -> None:
        """Break nothing."""

    def client_gone(self, asked: Asked) -> None:
        """A third client goes."""
        Leaver(self.cluster, self._adapter).leave()

    def prefill_killed(self, asked: Asked) -> None:
        """A prefill worker ends without warning."""
        self._wait_for_tokens(asked)
        self._loads_before += self._loads_of("prefill-0")
        self.cluster.workers.pop("prefill-0").kill()

    def decode_killed(self, asked: Asked) -> None:
        """The decode worker with the most to do ends without warning."""
        self._lose_busiest(asked, lambda process: process.kill())

    def decode_drained(self, asked: Asked) -> None:
        """The decode worker with the most to do is asked to end."""
        self._lose_busiest(asked, lambda process: process.terminate())

    def paused(self, asked: Asked) -> None:
        """Answers stop where they are, and go on."""
        self._wait_for_tokens(asked)
        self._change("/pause?mode=keep")
        time.sleep(STILL_S)  # what was under way has come
        numbers = [stream.num_seen for stream in asked.streams]
        time.sleep(STILL_S)
        assert [stream.num_seen for stream in asked.streams] == numbers
        self._change("/resume")

    def asleep(self, asked: Asked) -> None:
        """Workers give their weights and KV back when they have answered, and wake up."""
        self._wait_for_tokens(asked)
        self._loads_before = self._num_loads()
        self._change("/sleep?level=1&mode=wait")
        self._change("/wake_up")

    def new_weights(self, asked: Asked) -> None:
        """Workers read the same checkpoint as new weights, when they have answered."""
        self._wait_for_tokens(asked)
        self._loads_before = self._num_loads()
        self._change("/update_weights", path=str(self.cluster.model), mode="wait")

    def _change(self, change: str, **body: Any) -> None:
        reply = httpx.post(f"{self.cluster.url}{change}", json=body or None, timeout=WAIT_S)
        assert reply.status_code == 200, reply.text

    def _lose_busiest(self, asked: Asked, lose: Callable[[Process], None]) -> None:
        self._wait_for_tokens(asked)
        decode = [name for name in self.cluster.workers if name.startswith("decode")]
        busiest = max(decode, key=lambda name: self.cluster.load(name).num_running)
        process = self.cluster.workers.pop(busiest)
        lose(process)
        asked.finish()
        assert asked.num_replays >= 1
        process.popen.wait(30)

    def _wait_for_tokens(self, asked: Asked) -> None:
        until(lambda: all(stream.num_seen >= NUM_BEFORE for stream in asked.streams))


EVENTS: dict[str, Callable[[System, Asked], None]] = {
    "none": System.nothing,
    "client gone": System.client_gone,
    "prefill killed": System.prefill_killed,
    "decode killed": System.decode_killed,
    "decode drained": System.decode_drained,
    "paused": System.paused,
    "asleep": System.asleep,
    "new weights": System.new_weights,
}
