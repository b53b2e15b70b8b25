"""A peer that computes a prompt and writes its blocks where an engine wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.engine.sequence.events import Landing
from tests.fakes.engine.engines import drain, generate, make_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.engine import Engine
    from shared.engine.sequence.events import Admitted


def fill(
    sender: Engine, engine: Engine, to: Admitted | Landing, prompt: Sequence[int], **fields: Any
) -> None:
    """Have `sender` compute `prompt`, and copy what the receiver lacks of it.

    `fields`: of the sender's request.
    """
    name = to.request_id
    run = generate(sender, make_request(name, prompt, hold_blocks=True, **fields))
    source, target = sender.kv_memory, engine.kv_memory
    if isinstance(to, Landing):
        target = to.memory
    assert source is not None
    assert target is not None
    first = to.num_cached_tokens // engine.layout.block_size
    moved = engine.layout.moved(first, len(prompt))
    tables = zip(run.admitted(name)[0].tables, to.tables, moved, strict=True)
    for sources, targets, places in tables:
        for place in places:
            target.blocks[targets[place]] = source.blocks[sources[place]]
    sender.release(name)
    drain(sender)
