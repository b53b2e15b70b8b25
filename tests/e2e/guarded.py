"""A cluster with keys and a token, asked as its tenants and looked at as one of its own."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from baton.v1 import worker_pb2, worker_pb2_grpc
from tests.fakes.security.doors import token
from tests.fakes.security.keys import CLUSTER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.processes import Cluster
    from tests.fakes.security.keys import KeysOnDisk


@dataclass(frozen=True, slots=True)
class Guarded:
    """A cluster with keys and a token."""

    cluster: Cluster
    disk: KeysOnDisk

    def ask(self, tenant: str, prompt: Sequence[int], **fields: Any) -> tuple[int, float]:
        """Tokens of the prompt that were in a cache, and seconds to the first token."""
        body = {"model": "tiny", "prompt": list(prompt), "max_tokens": 2, "temperature": 0}
        # An answer that ends with its first token leaves the decode worker without the prompt.
        body |= {"ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}, **fields}
        connection = http.client.HTTPConnection("127.0.0.1", self.cluster.http_port, timeout=60)
        headers = {
            "authorization": f"Bearer {self.disk.keys[tenant]}",
            "content-type": "application/json",
        }
        try:
            started_s = time.perf_counter()
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            events = iter(lambda: response.readline(), b"")
            first = next(line for line in events if line.startswith(b"data: "))
            ttft_s = time.perf_counter() - started_s
            *_, last = (
                json.loads(line[6:]) for line in (first, *events) if line.startswith(b"data: {")
            )
        finally:
            connection.close()
        return int(last["usage"]["prompt_tokens_details"]["cached_tokens"]), ttft_s

    def held(self, tenant: str, prompt: Sequence[int]) -> int:
        """Blocks of the prompt that the router's index knows, asked as `tenant`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.cluster.http_port, timeout=60)
        headers = {
            "authorization": f"Bearer {self.disk.keys[tenant]}",
            "content-type": "application/json",
        }
        try:
            body = json.dumps({"model": "tiny", "prompt": list(prompt), "max_tokens": 1})
            connection.request("POST", "/v1/route", body, headers)
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200, text
            return max(
                worker["num_held_tokens"] for worker in json.loads(text)["decode"]["candidates"]
            )
        finally:
            connection.close()


def info_of(guarded: Guarded, name: str) -> worker_pb2.GetInfoResponse:
    with grpc.insecure_channel(guarded.cluster.addresses[name]) as channel:
        return worker_pb2_grpc.WorkerStub(channel).GetInfo(
            worker_pb2.GetInfoRequest(), timeout=10, metadata=token(CLUSTER_TOKEN)
        )
