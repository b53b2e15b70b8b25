"""What a grammar cannot do to others: hold up the engine, fill memory, take a worker with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from shared.engine.settings.choices import BackendName
from shared.errors import InvalidRequestError, UnavailableError
from shared.request.grammar.spec import GrammarKind, GrammarSpec
from tests.unit.engine.grammar.hosting import make_hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.engine.grammar.host.hosts import GrammarHosts
    from shared.engine.sequence.grammar import Grammar
    from shared.text.token_table import TokenTable

ROOT = Path(__file__).parents[4]
DEADLINE_S = 60.0
#: What xgrammar takes for a token grows with the answer: minutes behind a hundred.
ENDLESS = "((a{1,50}){1,50}){1,50}"
MINE, OTHER = b"mine", b"other"


def regex(text: str, owner: bytes = MINE) -> GrammarSpec:
    return GrammarSpec(kind=GrammarKind.REGEX, text=text, param="guided_regex", owner=owner)


def wide(num_properties: int, owner: bytes = MINE) -> GrammarSpec:
    names = {f"p{place}": {"type": "string"} for place in range(num_properties)}
    text = json.dumps({"type": "object", "properties": names})
    return GrammarSpec(kind=GrammarKind.JSON_SCHEMA, text=text, param="guided_json", owner=owner)


@pytest.fixture
def hosts(table: TokenTable) -> Iterator[GrammarHosts]:
    made = make_hosts(BackendName.XGRAMMAR, table)
    yield made
    made.close()


def opened(hosts: GrammarHosts, spec: GrammarSpec, table: TokenTable) -> Grammar:
    compiled = hosts.compile(spec).result(DEADLINE_S)
    return compiled.open(table.eos_token_ids, ()).result(DEADLINE_S)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def token(table: TokenTable, text: bytes) -> int:
    return table.token_bytes.index(text)


def test_compiling_and_slow_masks_have_the_lowest_priority_and_a_process_per_owner(
    hosts: GrammarHosts, table: TokenTable
) -> None:
    opened(hosts, regex("a+"), table)
    opened(hosts, regex("a+", OTHER), table)
    pids = hosts.pids
    assert len(set(pids)) == 2
    assert os.getpid() not in pids
    for pid in pids:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        niceness = [
            int((task / "stat").read_text().rsplit(")", 1)[1].split()[16]) for task in tasks
        ]
        here = os.getpriority(os.PRIO_PROCESS, 0)
        assert sorted(niceness) == [here, here, 19, 19]


def test_a_killed_process_ends_what_it_follows_and_nothing_else(
    hosts: GrammarHosts, table: TokenTable
) -> None:
    mine, other = opened(hosts, regex("a+"), table), opened(hosts, regex("a+", OTHER), table)
    os.kill(hosts.pids[0], signal.SIGKILL)
    assert mine.accept(token(table, b"a"))
    wait_until(lambda: mine.error is not None)
    assert isinstance(mine.error, UnavailableError)
    assert "guided_regex" in str(mine.error)
    assert other.accept(token(table, b"a"))
    assert other.wait_mask(DEADLINE_S, patiently=True)
    assert opened(hosts, regex("a+"), table).accept(token(table, b"a"))


def test_a_mask_without_end_ends_its_process_and_nothing_else(table: TokenTable) -> None:
    hosts = make_hosts(BackendName.XGRAMMAR, table, limit_s=2.0)
    other = opened(hosts, regex("a+", OTHER), table)
    compiled = hosts.compile(regex(ENDLESS)).result(DEADLINE_S)
    # Of the same grammar: a slow one, as any may be on a busy machine, has a thread of its own.
    mine = compiled.open(table.eos_token_ids, ()).result(DEADLINE_S)
    bomb = compiled.open(table.eos_token_ids, [token(table, b"a")] * 400)
    assert mine.accept(token(table, b"a"))
    # The engine's thread is not kept, and the other tenant's masks come.
    assert not mine.wait_mask(0.001)
    assert other.accept(token(table, b"a"))
    assert other.wait_mask(DEADLINE_S, patiently=True)
    with pytest.raises(UnavailableError, match="a mask took over 2 s"):
        bomb.result(DEADLINE_S)
    assert isinstance(mine.error, UnavailableError)
    assert opened(hosts, regex("b+"), table).accept(token(table, b"b"))
    hosts.close()


def test_a_grammar_that_takes_too_long_is_given_up_and_the_next_one_compiles(
    table: TokenTable,
) -> None:
    hosts = make_hosts(BackendName.XGRAMMAR, table, limit_s=0.8)
    kept = opened(hosts, regex("a+"), table)
    with pytest.raises(InvalidRequestError, match=r"took over 0\.8 s"):
        hosts.compile(wide(4000)).result(DEADLINE_S)
    # What was followed before is followed on.
    assert kept.accept(token(table, b"a"))
    assert kept.wait_mask(DEADLINE_S, patiently=True)
    assert hosts.compile(regex("b+")).result(DEADLINE_S).size_bytes > 0
    hosts.close()


def test_a_grammar_that_needs_too_much_memory_is_refused(table: TokenTable) -> None:
    hosts = make_hosts(BackendName.XGRAMMAR, table, memory_bytes=34 << 20)
    with pytest.raises(InvalidRequestError, match=r"simpler|cannot be compiled"):
        hosts.compile(wide(4000)).result(DEADLINE_S)
    assert opened(hosts, regex("b+"), table).accept(token(table, b"b"))
    hosts.close()


def test_processes_end_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    code = """
import sys, time
from shared.engine.settings.choices import BackendName
from tests.unit.engine.grammar.hosting import make_hosts
from tests.unit.engine.grammar.test_host_faults import ENDLESS, regex
from shared.text.token_table import TokenTable
table = TokenTable(tuple(bytes([i]) for i in range(256)) + (b"",), frozenset({256}), (256,))
hosts = make_hosts(BackendName.XGRAMMAR, table)
compiled = hosts.compile(regex(ENDLESS)).result(60)
compiled.open((256,), [ord("a")] * 400)
assert "xgrammar" not in sys.modules
print(*hosts.pids, flush=True)
time.sleep(600)
"""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
    worker = subprocess.Popen(
        [sys.executable, "-c", code], env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    [host] = map(int, worker.stdout.readline().split())
    family = [psutil.Process(host), *psutil.Process(worker.pid).children(recursive=True)]
    worker.kill()
    worker.wait()
    wait_until(lambda: not any(is_alive(process) for process in family))
    worker.stdout.close()


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
