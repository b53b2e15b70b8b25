"""Whether prompts may give embeddings, and the memory for them in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import OverloadedError, PayloadTooLargeError, UnsupportedError
from shared.request.prompt_embeds import PARAM
from shared.rpc.server import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.request.generation import GenerationRequest

#: A message to a worker has room for the rows and for the rest of the request.
MAX_ROW_BYTES = MAX_MESSAGE_BYTES - 2**20


@dataclass(frozen=True, slots=True)
class EmbedsPolicy:
    """The same for all clients."""

    is_allowed: bool = False
    #: Of the rows of all requests that wait or run.
    max_bytes: int = 0

    def require(self) -> None:
        """Refuse embeddings before they are read, unless they are allowed.

        Raises:
            UnsupportedError: they are not.
        """
        if not self.is_allowed:
            message = f"{PARAM} is refused here: see --enable-prompt-embeds"
            raise UnsupportedError(message, param=PARAM)

    def check(self, request: GenerationRequest, others: Iterable[GenerationRequest]) -> None:
        """Check a request beside those that wait or run.

        Raises:
            PayloadTooLargeError: no message to a worker has room for its rows.
            OverloadedError: there is no memory for them now.
        """
        embeds = request.embeds
        if embeds is None:
            return
        self.require()
        if embeds.num_bytes > MAX_ROW_BYTES:
            message = f"{PARAM} has {embeds.num_bytes} bytes; a prompt may have {MAX_ROW_BYTES}"
            raise PayloadTooLargeError(message, param=PARAM)
        num_held = sum(other.embeds.num_bytes for other in others if other.embeds is not None)
        if num_held + embeds.num_bytes > self.max_bytes:
            raise OverloadedError(
                f"{num_held} of {self.max_bytes} bytes for {PARAM} are in use: try again later"
            )


#: For a router that does not allow them.
NO_EMBEDS = EmbedsPolicy()
