"""Every test belongs to the tier that its folder names; what a tier needs is checked here."""

from __future__ import annotations

import functools
import gc
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import settings

from tests.accounting import forks
from tests.accounting.budget import BudgetKeeper
from tests.accounting.effort import examples
from tests.accounting.forks import ForkedWorkers
from tests.accounting.reports import PackedReports
from tests.accounting.shared_nurseries import SharedNurseries
from tests.accounting.skips import SkipSummary
from tests.accounting.tiers import TIERS
from tests.fakes.processes.warm_process import warm_grammars, warm_ranks

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from xdist.scheduler import LoadFileScheduling

# A busy machine makes examples slow, not wrong; pytest's own timeout ends what hangs.
# Other examples come in each run, so few of them do for one.
settings.register_profile("baton", deadline=None, max_examples=examples(20, 250))
settings.load_profile("baton")

HERE = Path(__file__).parent
#: Arguments of gc.set_threshold.
GC_THRESHOLDS = (20_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    """One thread per process: tests share few cores, and small tensors gain nothing from more."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Each HTTP client reads all authorities that a machine trusts: 18 ms, for plain HTTP, too. No
    # test asks the internet.
    os.environ["SSL_CERT_FILE"] = str(HERE / "fakes" / "security" / "no_server.pem")
    # Every service compiles its sources at each start where no bytecode is kept.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A normal user has 1,024 files unless more are asked for; a worker of the suite needs more.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # In the background SIGINT is ignored, under `nohup` SIGHUP: children would inherit that, but
    # not a handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    # As the services have it: the values of all variables of an engine take a tenth of a second.
    *others, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[*others, plain])
    warm_grammars()
    warm_ranks()
    config.pluginmanager.register(BudgetKeeper(config))
    config.pluginmanager.register(ForkedWorkers())
    config.pluginmanager.register(PackedReports())
    config.pluginmanager.register(SharedNurseries())
    config.pluginmanager.register(SkipSummary(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """With several workers (`-n 2 --dist loadfile`): see `accounting.order`."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.accounting.order import MeetingInTheMiddle

    return MeetingInTheMiddle(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is collected stays to the end: no search for garbage needs to look at it.

    Some tests search after each case, and thousands of tests make a heap of a million objects.
    Searches that nothing asks for come seldom: they took 4 % of all CPU.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(*GC_THRESHOLDS)
        _seen[0] = len(sys.modules)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """So does what a test imports: libraries of models are hundreds of thousands of objects."""
    result = yield
    if (nextitem is None or nextitem.path != item.path) and len(sys.modules) > _seen[0] + 100:
        gc.collect()
        gc.freeze()
        _seen[0] = len(sys.modules)
    return result


#: Modules when last all objects were frozen.
_seen = [0]


def pytest_unconfigure() -> None:
    """Libraries complain of objects that nothing frees before the interpreter ends.

    That of a fork ends at once, and pytest's last searches for garbage are spared what is kept.
    """
    if not forks.in_fork:
        gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder's tier."""
    for item in items:
        if tier := _tier_of(item.path):
            item.add_marker(tier)


@functools.cache
def _tier_of(path: Path) -> str:
    tier = path.relative_to(HERE).parts[0] if path.is_relative_to(HERE) else ""
    return tier if tier in TIERS else ""


@pytest.fixture(autouse=True)
def _no_tier_is_left_open() -> Iterator[None]:
    """An engine that a test forgets fails this test, not the later ones of the process."""
    before = _tier_threads()
    yield
    assert not _tier_threads() - before


def _tier_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("kv-offload")}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Without a GPU its tests are skipped, unless the caller says that one must be there."""
    if item.get_closest_marker("gpu") is None:
        return
    reason = _why_no_gpu()
    if reason and os.environ.get("REQUIRE_GPU") == "1":
        pytest.fail(f"REQUIRE_GPU=1, but {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)


def _why_no_gpu() -> str:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "there is no CUDA device"


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """OMP_NUM_THREADS is read once, and a plugin may have imported torch before us."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
