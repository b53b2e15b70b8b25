"""What the ranks of a group speak through, whether they share memory or a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.ranks.orders import Answer
    from shared.model.sharding.split import Split
    from shared.ranks.base import Collective, Pipe, PlanReceiver, PlanSender


class Channels(Protocol):
    """A rank's ends. Of one thread, but `close`, which no call may be beside.

    The ends that its methods return belong to their caller, who closes them.
    """

    @property
    def split(self) -> Split:
        """The rank's place in the group."""
        ...

    @property
    def collective(self) -> Collective:
        """The operations of the ranks of its stage, on the host: between and beside steps."""
        ...

    @property
    def device(self) -> str:
        """What the rank computes on."""
        ...

    @property
    def sums(self) -> Collective:
        """The operations inside the model, of tensors on its device; on a CPU `collective`."""
        ...

    @property
    def pipe(self) -> Pipe | None:
        """The connections to the stages before and behind its own; None: there is one stage."""
        ...

    def send_plans(self) -> PlanSender:
        """Return rank 0's end of the plans."""
        ...

    def receive_plans(self) -> PlanReceiver:
        """Return another rank's end of the plans."""
        ...

    def send_results(self) -> PlanSender | None:
        """Return the end of the rank that has the results; None: it is not this one."""
        ...

    def receive_results(self) -> PlanReceiver | None:
        """Return rank 0's end of the results; None: there is one stage."""
        ...

    def close(self) -> None:
        """Leave the stage and its neighbours. Idempotent."""
        ...


class Group(Protocol):
    """What a process needs to know to be a rank of a group; a structure that JSON can hold."""

    @property
    def fds(self) -> Sequence[int]:
        """The descriptors that a rank's process must have, by the same numbers."""
        ...

    def join(self, rank: int, *, expert_parallel: bool = False) -> Channels:
        """Return a rank's ends.

        Raises:
            ConfigError: the group cannot be joined as this rank.
            RankError: another rank did not come.
        """
        ...


class AnswerSender(Protocol):
    """A follower's end of its line to rank 0."""

    def send(self, answer: Answer, fd: int | None = None) -> None:
        """Answer an order; `fd`: a descriptor that rank 0 may need, which stays the caller's.

        Raises:
            RankError: rank 0 is gone.
        """
        ...


class AnswerReceiver(Protocol):
    """Rank 0's end of the line to a follower. All calls but `close` come from one thread."""

    def receive(self, limit_s: float | None) -> tuple[Answer, int | None]:
        """Return the answer to an order, and the caller's copy of the descriptor with it.

        None: none came. limit_s: how long the answer may take; None: any time.

        Raises:
            TimeoutError: it has not come by then.
            OSError: the follower is gone.
        """
        ...

    def close(self) -> None:
        """Close the line. Idempotent."""
        ...
