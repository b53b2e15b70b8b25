"""One request of a test that reads many at a time."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import httpx

from baton_client import BatonError

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.v1 import common_pb2


@dataclass
class Stream:
    """One request, read in a thread."""

    name: str
    prompt: list[int]
    params: dict[str, Any]
    texts: dict[int, str] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: list[float] = field(default_factory=list)
    usage: common_pb2.Usage | None = None
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
