"""Speculative decoding as the engine's settings have it, and sequences to guess for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shared.engine.sequence.sequence import Sequence, Status
from shared.kv.identity import KVIdentity
from tests.fakes.engine.engines import make_request

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq


def speculate(method: str, num: int = 4, **fields: Any) -> str:
    """Always on, unless `fields` say otherwise: a test must not depend on what a step takes."""
    return json.dumps({"method": method, "num_speculative_tokens": num, "adaptive": False} | fields)


def sequence(prompt: Seq[int], answer: Seq[int] = ()) -> Sequence:
    """One that runs, with so much of an answer."""
    seq = Sequence(make_request("a", prompt, max_tokens=100), arrival=0, identity=KVIdentity(b""))
    seq.token_ids.extend(answer)
    seq.status = Status.RUNNING
    return seq
