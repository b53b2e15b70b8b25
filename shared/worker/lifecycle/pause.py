"""A pause of one life: new requests wait at the gate, running ones end, finish or stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shared.errors import DeadlineError, DrainingError
from shared.worker.lifecycle.stage import PauseMode

if TYPE_CHECKING:
    from shared.worker.health.gate import RequestGate

#: Time in which requests that were ended free what they hold.
END_S = 5.0


class Pausable(Protocol):
    """Computes requests, and can stop."""

    async def pause(self) -> None:
        """Return when nothing is computed; requests stay. Safe to repeat."""
        ...

    async def resume(self) -> None:
        """Go on. Safe to repeat."""
        ...


class Pause:
    """Pauses what computes, and the gate before it."""

    def __init__(self, engine: Pausable, gate: RequestGate, name: str) -> None:
        self._engine = engine
        self._gate = gate
        self._name = name

    async def begin(self, mode: PauseMode, timeout_s: float) -> None:
        """Hold new requests; return when no running one computes.

        Raises:
            DeadlineError: requests did not finish or end in time; nothing is paused.
        """
        self._gate.hold()
        try:
            match mode:
                case PauseMode.KEEP:
                    await self._engine.pause()
                case PauseMode.WAIT:
                    # What an earlier pause has stopped finishes, too.
                    await self._engine.resume()
                    await self._empty(timeout_s)
                case PauseMode.ABORT:
                    message = f"{self._name} was paused: the request is to be sent again"
                    self._gate.expel(lambda: DrainingError(message))
                    await self._empty(max(timeout_s, END_S))
        except BaseException:
            self._gate.release()
            raise

    async def end(self) -> None:
        """Let all requests go on. Safe to repeat."""
        await self._engine.resume()
        self._gate.release()

    async def _empty(self, timeout_s: float) -> None:
        if not await self._gate.wait_empty(timeout_s):
            raise DeadlineError(
                f"{self._name}: {self._gate.num_inside} requests did not finish in {timeout_s:g} s"
            )
