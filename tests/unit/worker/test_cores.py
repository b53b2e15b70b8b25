"""Which workers of a host share its cores."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from shared.engine.cores import NO_LEASE
from shared.engine.settings.model import ModelSettings
from shared.engine.settings.ranks import RankSettings
from shared.errors import ConfigError
from shared.model.native.model import NativeCausalLM
from shared.worker import cores
from shared.worker.config import WorkerConfig
from shared.worker.cores import cores_of, open_lease

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.model.native.core_lease import CoreLease

#: What is asked of it: its class.
NATIVE: Any = SimpleNamespace(model=NativeCausalLM.__new__(NativeCausalLM))
OTHER: Any = SimpleNamespace(model=object())


def config(core_lease: str, **settings: Any) -> WorkerConfig:
    settings.setdefault("directory", ("router:1", "router:2"))
    return WorkerConfig(
        model=ModelSettings(model=Path("m")),
        name="w",
        num_threads=1,
        core_lease=core_lease,
        **settings,
    )


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CoreLease]]:
    """Leases that the test has opened."""
    monkeypatch.setattr(cores, "_MEMORY", tmp_path)
    leases: list[CoreLease] = []
    yield leases
    for lease in leases:
        lease.close()


def opened(joined: list[CoreLease], settings: WorkerConfig) -> CoreLease:
    lease = open_lease(settings, NATIVE)
    assert lease is not None
    joined.append(lease)
    return lease


def test_workers_of_one_directory_share_cores(joined: list[CoreLease], tmp_path: Path) -> None:
    opened(joined, config("auto"))
    opened(joined, config("auto", directory=("router:2", "router:1")))
    assert len([*tmp_path.iterdir()]) == 1
    opened(joined, config("auto", directory=("router:1",)))
    opened(joined, config("auto", directory=(), redis_url="redis://a"))
    opened(joined, config(str(tmp_path / "mine")))
    assert len([*tmp_path.iterdir()]) == 4


def test_others_keep_their_cores(tmp_path: Path) -> None:
    file = str(tmp_path / "cores")
    with capture_logs() as logs:
        assert open_lease(config("off"), NATIVE) is None
        assert not logs
        assert open_lease(config(file), OTHER) is None
        ranks = RankSettings(tensor_parallel_size=2)
        assert open_lease(config(file, ranks=ranks), NATIVE) is None
    reasons = ["no native kernels compute it", "the model has ranks"]
    assert [(log["event"], log["reason"]) for log in logs] == [
        ("core_lease_unused", reason) for reason in reasons
    ]
    assert not any(tmp_path.iterdir())
    assert cores_of(None, NATIVE) is NO_LEASE


def test_a_file_that_was_named_must_be_good_and_another_need_not(
    joined: list[CoreLease], tmp_path: Path
) -> None:
    opened(joined, config("auto"))
    (file,) = tmp_path.iterdir()
    joined.pop().close()
    file.write_text("text")
    with pytest.raises(ConfigError, match="give another path"):
        open_lease(config(str(file)), NATIVE)
    with capture_logs() as logs:
        assert open_lease(config("auto"), NATIVE) is None
    assert "give another path" in logs[0]["reason"]


def test_an_empty_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="--core-lease must be off, auto or a path"):
        config("")
