"""One sequence in the engine: its tokens, its blocks, and the progress of its KV."""

from __future__ import annotations

from array import array
from enum import Enum, auto
from typing import TYPE_CHECKING

from shared.engine.prompt_rows import GatheredRows
from shared.engine.sequence.draft import NO_DRAFT
from shared.engine.sequence.request import KVSource
from shared.engine.sequence.state_places import StatePlaces

if TYPE_CHECKING:
    from shared.engine.prompt_hidden import PlacedHidden
    from shared.engine.sequence.request import EngineRequest
    from shared.kv.identity import KVIdentity
    from shared.request.answer import PositionLogprobs


#: At a place of a table that has no block.
NO_BLOCK = -1


class Status(Enum):
    """The state of a sequence in the engine."""

    #: In the queue, without blocks.
    WAITING = auto()
    #: Has blocks that a lower tier fills; not scheduled.
    LOADING = auto()
    #: Has blocks that a peer fills; not scheduled.
    RECEIVING = auto()
    #: In no queue, without blocks: a peer fills slots of the host tier.
    LANDING = auto()
    #: Has blocks; every step may compute some of its tokens.
    RUNNING = auto()
    #: Ended, but its blocks are kept until `release`.
    HELD = auto()
    #: Ended, and its blocks are freed.
    ENDED = auto()


class Sequence:
    """Mutable state; changed by the scheduler and by the step that computed its tokens."""

    __slots__ = (
        "arrival",
        "arrived_ms",
        "awaits_end",
        "awaits_transfer",
        "block_hashes",
        "changes_logits",
        "draft",
        "due_ms",
        "embeds",
        "final_token_ids",
        "grammar",
        "has_landed",
        "hidden",
        "identity",
        "is_greedy",
        "may_load",
        "needs_host_tokens",
        "new_places",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_emptied",
        "num_filled",
        "num_final_tokens",
        "num_in_flight_tokens",
        "num_prompt_tokens",
        "num_published_blocks",
        "num_told_tokens",
        "num_unknown_tokens",
        "prompt_logprobs",
        "request",
        "row",
        "rows",
        "state_places",
        "status",
        "tables",
        "token_ids",
        "was_admitted",
    )

    def __init__(
        self, request: EngineRequest, *, arrival: int, identity: KVIdentity, num_groups: int = 1
    ) -> None:
        """Make a sequence. `num_groups`: groups of the model's layers that share block tables."""
        self.request = request.without_embeds()
        #: Embeddings in place of some of its tokens, which are NO_TOKEN; dropped at its end.
        self.embeds = request.embeds
        self.arrival, self.identity, self.status = arrival, identity, Status.WAITING
        #: Prompt and output. An array: slices of it become tensors without a loop.
        self.token_ids = array("q", (*request.prompt_token_ids, *request.resumed_token_ids))
        self.num_prompt_tokens = len(request.prompt_token_ids)
        #: Grammar of the next output token; None: any token is allowed.
        self.grammar = request.grammar
        #: Whether any step other than temperature and filters changes its logits.
        self.changes_logits = request.sampling.changes_logits or self.grammar is not None
        self.is_greedy = request.sampling.is_greedy
        self.final_token_ids = request.sampling.final_token_ids
        #: KV of this many leading tokens is final.
        self.num_computed_tokens = 0
        #: KV of this many more is being computed by steps that were launched and not collected.
        self.num_in_flight_tokens = 0
        #: Tokens that those steps sample; they exist on the device only, until they are collected.
        self.num_unknown_tokens = 0
        #: Whether the last unknown token ends it in any case: there is nothing more to compute.
        self.awaits_end = False
        #: Whether sampling its next token requires the last one on the host, or returns more than
        #: its id: steps with this sequence are collected before the next is scheduled.
        self.needs_host_tokens = self.changes_logits or request.sampling.logprobs is not None
        #: Drafts that the scheduled or running step checks. Not tokens yet.
        self.draft = NO_DRAFT
        self.row: int | None = None  # of the runner
        self.new_places: list[tuple[int, int]] = []  # groups and places filled since then
        self.num_cached_tokens = 0  # found in the prefix cache at the last admission
        #: Those of them that were final at the admission: its own step computes the others.
        self.num_final_tokens = 0
        #: By group of layers: its blocks; see `BlockTables`. All tables are equally long.
        self.tables = tuple(array("i") for _ in range(num_groups))
        #: By group: leading places that are filled or not needed any more, and those emptied.
        self.num_filled, self.num_emptied = [0] * num_groups, [0] * num_groups
        self.state_places = StatePlaces()
        self.hidden: PlacedHidden | None = None  # blocks for hidden states, if there was room
        self.block_hashes: list[bytes] = []
        self.num_published_blocks = self.num_told_tokens = 0  # to lookups; to the runner
        self.awaits_transfer, self.was_admitted = request.kv_source is KVSource.TRANSFER, False
        self.arrived_ms = self.due_ms = 0.0  # of a clock; set by `Urgency` alone
        self.may_load = True  # False after a load of which too little arrived
        self.has_landed = False  # whether its blocks are pinned in the host tier
        #: None: not requested, or passed on already. One entry per computed prompt token.
        self.prompt_logprobs = _prompt_logprobs(request)
        self.rows = GatheredRows.of(request.rows)  # None: it generates

    @property
    def request_id(self) -> str:
        """The caller's id of the request."""
        return self.request.request_id

    @property
    def has_embeds(self) -> bool:
        """Whether some of its tokens were given as embeddings."""
        return bool(self.identity.embeds)

    @property
    def is_computed_whole(self) -> bool:
        """Whether it asks for results of all tokens of its prompt: it uses no cached blocks."""
        wants_rows = self.rows is not None and self.rows.which.is_of_all
        return self.prompt_logprobs is not None or wants_rows

    @property
    def num_blocks(self) -> int:
        """Number of blocks in each table."""
        return len(self.tables[0])

    @property
    def num_tokens(self) -> int:
        """Number of tokens of prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Number of output tokens, including resumed ones."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_launched_tokens(self) -> int:
        """Leading tokens whose KV is final or being computed."""
        return self.num_computed_tokens + self.num_in_flight_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Number of tokens whose KV must be computed before the next one can be sampled."""
        num_tokens = len(self.token_ids) + self.num_unknown_tokens
        return num_tokens - self.num_computed_tokens - self.num_in_flight_tokens

    @property
    def may_be_preempted(self) -> bool:
        """Whether it may be preempted: blocks that a peer writes or reads must stay."""
        return self.status is Status.RUNNING and not self.request.hold_blocks

    def full_block_hashes(self, num_tokens: int, block_size: int) -> list[bytes]:
        """Return the hashes of the full blocks of the first `num_tokens` tokens; each is computed
        once.
        """
        num_blocks = num_tokens // block_size
        num_known = len(self.block_hashes)
        if num_known < num_blocks:
            tokens = self.token_ids[num_known * block_size : num_blocks * block_size]
            known = self.block_hashes
            known.extend(self.identity.hash_blocks(tokens, block_size, behind=known))
        return self.block_hashes[:num_blocks]

    def append_token(self, token_id: int) -> bool:
        """Append an output token; return False without any change if its grammar forbids it."""
        if self.grammar is not None and not self.grammar.accept(token_id):
            return False
        self.token_ids.append(token_id)
        return True

    def forget_progress(self) -> None:
        """Reset to the queue: the blocks are gone, the tokens stay."""
        self.status = Status.WAITING
        self.row = None
        self.draft = NO_DRAFT
        self.num_computed_tokens = 0
        self.num_published_blocks = 0
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        if self.rows is not None:
            self.rows.take()


def _prompt_logprobs(request: EngineRequest) -> list[PositionLogprobs | None] | None:
    if request.sampling.prompt_logprobs is None or request.resumed_token_ids:
        return None
    return [None]  # of the first token, which has none
