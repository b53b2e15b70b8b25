"""The blocking client against a server in another process."""

from __future__ import annotations

import multiprocessing
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
    from multiprocessing.connection import Connection

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


def test_closing_ends_calls_that_wait_for_another_attempt() -> None:
    policy = RetryPolicy(max_attempts=1000, base_delay_s=60, max_delay_s=60)
    client = Baton("127.0.0.1:1", retry=policy)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(client.generate, "What?") for _ in range(2)]
        # Until both wait: their first attempt fails within milliseconds.
        threading.Event().wait(0.2)
        client.close()
        for call in calls:
            with pytest.raises(UnavailableError, match="closed"):
                call.result(20)


def test_threads_may_close_a_client_at_once() -> None:
    for _ in range(20):
        client = Baton("127.0.0.1:1")
        threads = [threading.Thread(target=client.close, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)


def test_a_stream_is_closed_behind_its_client(server: str) -> None:
    with Baton(server) as client:
        stream = client.stream_generate("What?")
        next(stream)
    stream.close()


def _use_and_close(client: Baton, said: Connection) -> None:
    try:
        client.generate("What?")
    except UnavailableError as error:
        said.send(str(error))
    client.close()
    said.send("closed")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_is_told_to_make_its_own_client() -> None:
    ours, theirs = multiprocessing.Pipe()
    with Baton("127.0.0.1:1") as client:
        fork = multiprocessing.get_context("fork").Process(
            target=_use_and_close, args=(client, theirs), daemon=True
        )
        fork.start()
        try:
            assert ours.poll(20)
            assert "another process" in ours.recv()
            assert ours.poll(20)
            assert ours.recv() == "closed"
        finally:
            fork.kill()
            fork.join()
