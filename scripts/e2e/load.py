"""Asks a router again and again until /tmp/stop is there, then says how it went.

Runs in a pod with the router's image, where it is given as text. Whole answers and streams over
HTTP have a connection each, so that every router gets some, and nobody tries them again; the SDK
keeps its connection, and goes on by itself where a router leaves. Every answer's tokens must be
those of the oracle. The last line is JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baton_client import Baton, BatonError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Tokens of an answer. Streams take longer than a worker that drains waits for them.
NUM_TOKENS = {"whole": 64, "stream": 600, "sdk": 600}
#: Of each kind, and seconds from an answer to the next question.
NUM_CLIENTS = int(os.environ.get("NUM_CLIENTS", "2"))
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))
TIMEOUT_S = 300.0
STOP = Path("/tmp/stop")
#: There is an answer: the pod is ready.
ASKING = Path("/tmp/asking")

#: One answer: its tokens, and where its time went.
Reply = tuple[list[int], dict[str, Any]]


@dataclass(slots=True)
class Tally:
    """What came of all requests; threads share it."""

    num_ok: Counter[str] = field(default_factory=Counter)
    num_handed_off: int = 0
    num_moved: int = 0
    workers: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        """One line."""
        return json.dumps(
            {
                "num_ok": self.num_ok,
                "num_handed_off": self.num_handed_off,
                "num_moved": self.num_moved,
                "workers": sorted(self.workers),
                "failed": self.failed,
                "wrong": self.wrong,
            }
        )


class OverHttp:
    """The OpenAI API by the standard library alone: nothing is tried twice."""

    def __init__(self, url: str, api_key: str) -> None:
        self._url = url
        self._headers = {"content-type": "application/json", "authorization": f"Bearer {api_key}"}

    def whole(self, prompt: str, num_tokens: int) -> Reply:
        """One answer in one piece."""
        with self._post(prompt, num_tokens, stream=False) as response:
            content = json.load(response)
        return content["choices"][0]["token_ids"], content["timings"] or {}

    def stream(self, prompt: str, num_tokens: int) -> Reply:
        """One answer token by token.

        Raises:
            ValueError: it ended early.
        """
        tokens: list[int] = []
        timings: dict[str, Any] = {}
        with self._post(prompt, num_tokens, stream=True) as response:
            for line in response:
                if not line.startswith(b"data: "):
                    continue
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    return tokens, timings
                event = json.loads(data)
                if "error" in event:
                    message = f"after {len(tokens)} tokens: {event['error']}"
                    raise ValueError(message)
                for choice in event["choices"]:
                    tokens += choice.get("token_ids") or ()
                timings = event.get("timings") or timings
        message = f"the stream broke off after {len(tokens)} tokens"
        raise ValueError(message)

    def _post(self, prompt: str, num_tokens: int, *, stream: bool) -> Any:
        body: dict[str, Any] = {
            "model": "pydoc",
            "prompt": prompt,
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "return_token_ids": True,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), self._headers)
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)


def over_sdk(baton: Baton) -> Callable[[str, int], Reply]:
    """Streams over gRPC."""

    def ask(prompt: str, num_tokens: int) -> Reply:
        stream = baton.stream_generate(
            prompt, max_tokens=num_tokens, ignore_eos=True, temperature=0, timeout_s=TIMEOUT_S
        )
        with stream:
            generation = stream.collect()
        return list(generation.answers[0].token_ids), dataclasses.asdict(generation.timings)

    return ask


def ask_again_and_again(
    kind: str,
    number: int,
    ask: Callable[[str, int], Reply],
    oracle: list[dict[str, Any]],
    tally: Tally,
) -> None:
    """Until told to stop; clients with another `number` begin with another prompt."""
    for turn in count(number):
        if STOP.exists():
            return
        known = oracle[turn % len(oracle)]
        began_at = time.time()
        try:
            tokens, timings = ask(known["prompt"], NUM_TOKENS[kind])
        except (OSError, ValueError, KeyError, BatonError) as error:
            detail = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
            took_s = time.time() - began_at
            tally.failed.append(f"{kind}, {began_at:.1f}, {took_s:.1f} s: {error!r} {detail}")
            time.sleep(0.2)
            continue
        ASKING.touch()
        tally.num_ok[kind] += 1
        tally.num_handed_off += bool(timings.get("prefill_worker"))
        tally.num_moved += bool(timings.get("replay_ms"))
        tally.workers |= {timings.get("prefill_worker") or "", timings.get("decode_worker") or ""}
        if tokens != known["token_ids"][: NUM_TOKENS[kind]]:
            tally.wrong.append(f"{kind}, {known['prompt']!r}: {tokens}")
        time.sleep(PAUSE_S)


def main() -> None:
    """All clients at once."""
    oracle = json.loads(os.environ["ORACLE"])
    api_key = os.environ.get("BATON_API_KEY", "")
    http = OverHttp(os.environ["URL"], api_key)
    tally = Tally()
    with Baton(os.environ["GRPC"], api_key=api_key) as baton:
        kinds = {"whole": http.whole, "stream": http.stream, "sdk": over_sdk(baton)}
        threads = [
            threading.Thread(target=ask_again_and_again, args=(kind, number, ask, oracle, tally))
            for number, (kind, ask) in enumerate(list(kinds.items()) * NUM_CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    tally.workers.discard("")
    print(tally.as_json(), flush=True)


if __name__ == "__main__":
    main()
