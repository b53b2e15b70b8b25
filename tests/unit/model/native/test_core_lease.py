"""Cores of one host, lent between models: their users, and that answers do not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernels.native.cores import CoresJoin
from kernels.native.structures import SpunTask
from shared.errors import ConfigError
from shared.model.loader import load_model
from shared.model.native import core_lease
from shared.model.native.core_lease import CoreCounts, CoreLease
from shared.model.native.model import NativeCausalLM
from shared.model.native.threads import LibraryThreads, ThreadPlan
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, random_prompt, save

if TYPE_CHECKING:
    from pathlib import Path


def shared_threads(file: Path, own: int, spare: int) -> tuple[LibraryThreads, CoreLease]:
    threads = LibraryThreads(ThreadPlan(own, num_spare=spare))
    lease = CoreLease(file, own, own + spare)
    threads.share(lease)
    return threads, lease


def width(threads: LibraryThreads) -> int:
    """Return how many cores a job of them has."""
    tasks = (SpunTask * 64)()
    return int(threads.library.baton_pool_spin(threads.pool, 64, 1000, tasks))


def test_tokens_have_the_same_bits_with_any_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other worker takes and lends between steps, so that each has other cores."""
    settings = {"num_attention_heads": 6, "num_key_value_heads": 2}
    checkpoint = save(random_model("mistral", seed=2, **settings), tmp_path / "model")
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 30, 150)]
    # Of a machine with more cores than this one may have.
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))
    file = tmp_path / "cores"

    def generate(*, borrows: bool) -> tuple[list[torch.Tensor], int]:
        loaded = load_model(
            checkpoint, attention_backend="native", num_threads=1, borrows_cores=borrows
        )
        model = loaded.model
        assert isinstance(model, NativeCausalLM)
        driver = PagedDriver(model, block_size=16, chunk=37, seed=3)
        if not borrows:
            return driver.generate(prompts, 6)[1], 0
        lease = CoreLease(file, 1, 4)
        model.threads.share(lease)
        others, _ = shared_threads(file, 3, 0)
        forward, steps, most = model.forward, 0, 0

        def step(*args: object) -> torch.Tensor:
            nonlocal steps, most
            turn = others.take_cores if steps % 3 == 2 else others.lend_cores
            turn()
            model.threads.take_cores()
            hidden = forward(*args)  # type: ignore[arg-type]
            most = max(most, lease.counts().borrowed)
            steps += 1
            if steps % 4 == 0:
                model.threads.lend_cores()
                assert lease.counts().borrowed == 0
            return hidden

        monkeypatch.setattr(model, "forward", step)
        return driver.generate(prompts, 6)[1], most

    alone, _ = generate(borrows=False)
    lent, most = generate(borrows=True)
    assert most == 3
    for ours, theirs in zip(lent, alone, strict=True):
        assert torch.equal(ours, theirs)


def test_an_idle_worker_s_cores_are_used_until_it_takes_them(tmp_path: Path) -> None:
    file = tmp_path / "cores"
    (one, first), (two, second) = shared_threads(file, 1, 4), shared_threads(file, 3, 1)
    assert width(one) == 1, "idle: nothing is borrowed"
    one.take_cores()
    assert width(one) == 4
    counts = first.counts()
    assert counts == CoreCounts(own=1, lent=0, borrowed=3, borrowed_s=counts.borrowed_s, recalled=0)
    assert (second.counts().own, second.counts().lent) == (3, 3)
    two.take_cores()
    assert width(two) == 3
    assert width(one) == 1
    assert first.counts().recalled == 3
    two.lend_cores()
    assert width(one) == 4
    one.lend_cores()
    two.take_cores()
    assert width(two) == 4
    assert second.counts().borrowed_s > 0
    one.take_cores()
    second.close()
    second.close()
    assert width(one) == 4, "it left: its cores are free"
    third = CoreLease(file, 2, 2)
    assert third.counts().own == 2
    third.close()
    first.close()
    assert width(one) == 1
    assert not file.exists(), "the last one removes it"


def test_a_worker_that_is_replaced_while_it_lives_leaves_no_core_too_many(tmp_path: Path) -> None:
    """Three cores: one worker has one, and two are of a worker that is upgraded."""
    file = tmp_path / "cores"
    (one, first), (_, old) = shared_threads(file, 1, 2), shared_threads(file, 2, 1)
    one.take_cores()
    assert width(one) == 3
    new, successor = shared_threads(file, 2, 1)
    new.take_cores()
    assert width(one) == 3, "the old worker is idle, and still has its cores"
    old.close()
    assert width(one) == 1, "the host has no cores but theirs"
    assert (first.counts().own, successor.counts().own) == (1, 2)
    new.lend_cores()
    assert width(one) == 3
    successor.close()
    assert width(one) == 3, "nothing took its place"
    last, third = shared_threads(file, 2, 1)
    last.take_cores()
    assert (width(one), width(last)) == (1, 2), "it took them over"
    third.close()
    first.close()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda file: file.write_text("text"), "another version of Baton"),
        (lambda file: (file.touch(), file.chmod(0o622)), "no other may write"),
        (lambda file: file.symlink_to("elsewhere"), "symbolic links"),
        (lambda file: file.mkdir(), "directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(make: object, text: str, tmp_path: Path) -> None:
    file = tmp_path / "cores"
    make(file)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=f"--core-lease {file}: .*{text}"):
        CoreLease(file, 1, 1)


def test_there_are_so_many_places(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no place for one more worker, or for its cores"):
        CoreLease(tmp_path / "cores", 513, 513)
    assert not (tmp_path / "cores").exists()
    leases = [CoreLease(tmp_path / "cores", 1, 1) for _ in range(64)]
    with pytest.raises(ConfigError, match="no place"):
        CoreLease(tmp_path / "cores", 1, 1)
    leases.pop().close()
    assert CoreLease(tmp_path / "cores", 1, 1).counts().own == 1


def test_every_reason_has_a_text() -> None:
    assert {*core_lease._REASONS} == {*CoresJoin} - {CoresJoin.DONE, CoresJoin.SYSTEM}
