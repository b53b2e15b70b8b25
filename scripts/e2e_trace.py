"""Asks a local cluster that exports its traces to a real backend, reads the traces back, and checks
that their stages add up to what the client waited. `make e2e-trace` runs it.

Starts `baton up` and Arize Phoenix on ports of their own, and stops both.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from scripts.e2e.asking import MODEL, free_ports
from scripts.e2e.phoenix import Phoenix, StoredSpan, install
from scripts.e2e.spans import STAGES, spans_under

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".run" / "phoenix"
NUM_REQUESTS = 20
NUM_TOKENS = 200
START_S = 120.0
#: The most that the stages may differ from what the client waited.
TOLERANCE = 0.05

NAME = f"chat {MODEL}"
PARENTS = spans_under(NAME)
#: Attributes of the semantic conventions for generative AI, on the root.
ATTRIBUTES = (
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model",
    "gen_ai.request.max_tokens", "gen_ai.response.model", "gen_ai.response.id",
    "gen_ai.response.finish_reasons", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as its client saw it; Unix seconds."""

    trace_id: str
    began_s: float
    waited_s: float


def ask(client: httpx.Client, number: int) -> Asked:
    """One streamed chat in a trace of the client's, with a prompt that no cache has."""
    trace_id = secrets.token_hex(16)
    question = f"{number}: {secrets.token_hex(100)} What does os.path.join do?"
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": question}], "stream": True,
        "max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 0,
    }  # fmt: skip
    headers = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
    began_s, started_s = time.time(), time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        response.raise_for_status()
        last = [line for line in response.iter_lines() if line][-1]
    waited_s = time.perf_counter() - started_s
    assert last == "data: [DONE]", last
    return Asked(trace_id, began_s, waited_s)


def check(spans: Sequence[StoredSpan]) -> None:
    """Every span is there once, under the right one, and the root says what was asked and done.

    Raises:
        AssertionError: it is not so.
    """
    names = {span.span_id: span.name for span in spans}
    found = {span.name: names.get(span.parent_id) for span in spans}
    assert found == PARENTS, f"the spans are {found}"
    assert len(spans) == len(PARENTS), f"some spans are there twice: {sorted(names.values())}"
    [root] = [span for span in spans if span.name == NAME]
    missing = [name for name in ATTRIBUTES if name not in root.attributes]
    assert not missing, f"the root lacks {missing}; it has {sorted(root.attributes)}"
    assert root.attributes["gen_ai.usage.output_tokens"] == NUM_TOKENS
    assert root.attributes["gen_ai.request.model"] == MODEL
    assert "first_token" in root.events, f"the root's events are {root.events}"


def explained(spans: Sequence[StoredSpan], asked: Asked) -> float:
    """The stages' durations added up, as a share of what the client waited."""
    return sum(span.duration_s for span in spans if span.name in STAGES) / asked.waited_s


def between(spans: Sequence[StoredSpan], asked: Asked) -> dict[str, float]:
    """The rest of what the client waited, by where it was, as shares of it."""
    stages = {span.name: span for span in spans if span.name in STAGES}
    first, last = stages[STAGES[0]], stages[STAGES[-1]]
    rest_s = {"client to router": first.began_s - asked.began_s}
    for one, next_one in pairwise(STAGES):
        rest_s[f"{one} to {next_one}"] = stages[next_one].began_s - stages[one].ended_s
    rest_s["last token to client"] = asked.began_s + asked.waited_s - last.ended_s
    return {name: seconds / asked.waited_s for name, seconds in rest_s.items()}


def show(spans: Sequence[StoredSpan], asked: Asked) -> None:
    """One trace as a table."""
    print(f"\ntrace {asked.trace_id}\n  {'span':34} {'began ms':>9} {'took ms':>9}  of the latency")
    for span in sorted(spans, key=lambda span: (span.began_s, depth(span, spans), span.ended_s)):
        label = f"{'  ' * depth(span, spans)}{span.name}"
        share = f"{span.duration_s / asked.waited_s:8.2%}" if span.name in STAGES else ""
        began_ms = (span.began_s - asked.began_s) * 1e3
        print(f"  {label:34} {began_ms:9.2f} {span.duration_s * 1e3:9.2f}  {share}")
    total_s = sum(span.duration_s for span in spans if span.name in STAGES)
    print(f"  {'sum of the stages':34} {'':9} {total_s * 1e3:9.2f}  {explained(spans, asked):8.2%}")
    print(f"  {'what the client waited':34} {'':9} {asked.waited_s * 1e3:9.2f}")


def depth(span: StoredSpan, spans: Sequence[StoredSpan]) -> int:
    """Spans of this trace above it."""
    above = [other for other in spans if other.span_id == span.parent_id]
    return 1 + depth(above[0], spans) if above else 0


def run(phoenix: Phoenix, url: str, num_requests: int) -> None:
    """Ask, read back, check, print.

    Raises:
        AssertionError: a trace is not as it should be.
    """
    with httpx.Client(base_url=url, timeout=120) as client:
        ask(client, 0)  # what happens once only
        requests = [ask(client, number) for number in range(1, num_requests + 1)]
    traces = [phoenix.trace(asked.trace_id, *PARENTS) for asked in requests]
    for spans in traces:
        check(spans)
    show(traces[0], requests[0])
    shares = [explained(*both) for both in zip(traces, requests, strict=True)]
    num_within = sum(abs(1 - share) <= TOLERANCE for share in shares)
    print(
        f"\n{len(traces)} traces, each with all {len(PARENTS)} spans and the attributes.\n"
        f"Sum of the stages / what the client waited: median {statistics.median(shares):.2%}, "
        f"lowest {min(shares):.2%}, highest {max(shares):.2%}; "
        f"{num_within} of {len(shares)} within {TOLERANCE:.0%}.\nThe rest, median:"
    )
    rests = [between(*both) for both in zip(traces, requests, strict=True)]
    for name in rests[0]:
        print(f"  {name:34} {statistics.median(rest[name] for rest in rests):7.2%}")
    # What else runs on this machine may come between the client and the router, now and then.
    assert num_within * 10 >= len(shares) * 9, "the stages do not add up to the latency"


def main() -> int:
    """Exit code 0 if all went well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help="Phoenix's own")
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    options = parser.parse_args()
    command = install(options.environment)
    with (
        tempfile.TemporaryDirectory() as folder,
        Phoenix(command, Path(folder)) as phoenix,
    ):
        phoenix.wait_ready()
        port, grpc_port = free_ports(2)
        environ = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{phoenix.otlp_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "BATON_LOCAL_PREFILL_THRESHOLD": "0",
        }
        up = [sys.executable, "-P", "-m", "cli", "up"]
        up += ["--port", str(port), "--grpc-port", str(grpc_port)]
        cluster = subprocess.Popen(up, cwd=ROOT, env=environ)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_ready(url, cluster)
            run(phoenix, url, options.requests)
        except AssertionError as error:
            print(f"FAILED: {error}", flush=True)
            return 1
        finally:
            cluster.send_signal(signal.SIGTERM)
            cluster.wait(60)
    return 0


def wait_ready(url: str, cluster: subprocess.Popen[bytes]) -> None:
    """Wait until the cluster serves, with a prefill worker that the router has checked.

    Raises:
        AssertionError: it ended, or took too long.
    """
    deadline_s = time.monotonic() + START_S
    while not _has_both(url):
        assert cluster.poll() is None, f"baton up ended with {cluster.returncode}"
        assert time.monotonic() < deadline_s, f"not ready after {START_S:g} s"
        time.sleep(0.2)


def _has_both(url: str) -> bool:
    try:
        text = httpx.get(f"{url}/metrics", timeout=5).text
    except httpx.HTTPError:
        return False
    return all(
        re.search(rf'^baton_workers_ready{{.*role="{role}"}} 1\.0$', text, re.MULTILINE)
        for role in ("prefill", "decode")
    )


if __name__ == "__main__":
    sys.exit(main())
