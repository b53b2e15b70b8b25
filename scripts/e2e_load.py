"""Asks a router again and again until /tmp/stop is there, then says how it went.

Runs inside a cluster, where it is given as text: with the standard library only. Each request has a
connection of its own, so that every router gets some; the last line is JSON.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

NUM_CLIENTS = 6
NUM_TOKENS = 150
STOP = Path("/tmp/stop")


def ask(number: int) -> str:
    """One greedy answer of a fixed length."""
    body = {
        "model": "pydoc",
        "prompt": f"Number {number}:",
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
    }
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {os.environ.get('BATON_API_KEY', '')}",
    }
    request = urllib.request.Request(os.environ["URL"], json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        return str(json.load(response)["choices"][0]["text"])


def ask_again_and_again(number: int, texts: list[tuple[int, str]], failed: list[str]) -> None:
    """Until told to stop."""
    while not STOP.exists():
        began_at = time.time()
        try:
            texts.append((number, ask(number)))
        except (OSError, ValueError, KeyError) as error:
            detail = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
            failed.append(f"{began_at:.1f}, {time.time() - began_at:.1f} s: {error!r} {detail}")
            time.sleep(0.2)


def main() -> None:
    """All clients at once."""
    texts: list[tuple[int, str]] = []
    failed: list[str] = []
    threads = [
        threading.Thread(target=ask_again_and_again, args=(number, texts, failed))
        for number in range(NUM_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = {
        "num_ok": len(texts),
        "failed": failed,
        "num_questions": len({number for number, _ in texts}),
        "num_texts": len(set(texts)),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
