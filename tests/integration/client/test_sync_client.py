"""The blocking client against a server in another process."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from baton_client import Baton, RetryPolicy, UnavailableError
from tests.fakes.scripted.router import MODEL, WORDS
from tests.fakes.scripted.router_process import router_process

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "".join(WORDS)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with router_process() as address:
        yield address


@pytest.fixture
def client(server: str) -> Iterator[Baton]:
    with Baton(server, timeout_s=20) as client:
        yield client


def test_a_whole_answer(client: Baton) -> None:
    assert client.generate("What?", max_tokens=4).text == TEXT
    assert client.chat([{"role": "user", "content": "What?"}]).text == TEXT


def test_an_answer_arrives_piece_by_piece(client: Baton) -> None:
    assert [piece.text for piece in client.stream_generate("What?")] == list(WORDS)
    with client.stream_chat("What?") as stream:
        assert next(stream).text == WORDS[0]
    assert list(stream) == []


def test_a_stream_can_be_collected(client: Baton) -> None:
    assert client.stream_generate("What?").collect().usage.completion_tokens == 4


def test_models(client: Baton) -> None:
    assert [model.id for model in client.models()] == [MODEL]


def test_threads_may_share_a_client(client: Baton) -> None:
    with ThreadPoolExecutor(8) as pool:
        wholes = list(pool.map(lambda i: client.generate(str(i)), range(32)))
    assert {whole.text for whole in wholes} == {TEXT}


def test_closing_ends_the_thread(server: str) -> None:
    client = Baton(server)
    client.close()
    client.close()
    assert "baton-client" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(UnavailableError, match="closed"):
        client.generate("What?")


def test_an_interrupt_gets_through_while_waiting() -> None:
    policy = RetryPolicy(max_attempts=1000, base_delay_s=5, max_delay_s=5)
    main = threading.main_thread().ident
    with Baton("127.0.0.1:1", retry=policy) as client:
        timer = threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            client.generate("What?")
        timer.join()
