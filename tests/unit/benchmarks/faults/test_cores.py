"""The fault matrix reads the user of each core, as the workers' own library writes it."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from benchmarks.faults.system.cores import Claim, CoresFile, path_of, place_of
from kernels.native.library import SpunTask
from shared.model.native.core_lease import CoreLease
from shared.model.native.threads import LibraryThreads, ThreadPlan

if TYPE_CHECKING:
    from pathlib import Path


def test_claims_are_read_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "baton-cores-1"
    assert path_of(os.getpid()) != path
    assert place_of(os.getpid(), path) == 0
    one, tasks = LibraryThreads(ThreadPlan(1, num_spare=2)), (SpunTask * 16)()
    with closing(CoreLease(path, 1, 1)) as lease:
        assert path_of(os.getpid()) == path
        assert place_of(os.getpid(), path) == 1
        with closing(CoreLease(path, 2, 2)), closing(CoresFile(path)) as file:
            assert file.claims() == [Claim(1, 0, 0), Claim(2, 0, 0), Claim(2, 0, 0)]
            one.share(lease)
            one.take_cores()
            one.library.baton_pool_spin(one.pool, 16, 1000, tasks)
            assert file.claims() == [Claim(1, 1, 1), Claim(2, 1, 1), Claim(2, 1, 1)]
            assert [claim.is_borrowed for claim in file.claims()] == [False, True, True]
            one.lend_cores()
            assert not any(claim.is_borrowed for claim in file.claims())


def test_another_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cores"
    path.write_bytes(bytes(4096))
    with pytest.raises(ValueError, match="has the format 0x0"):
        CoresFile(path)
