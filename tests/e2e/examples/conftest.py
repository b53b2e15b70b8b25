"""What the reader of an example has: the shipped model, as `make up` serves it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.processes import ROOT, Cluster
from tests.e2e.session_clusters import stop_behind
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, Any, Any]:
    """See `session_clusters`."""
    result = yield
    stop_behind(("served",), item, nextitem)
    return result


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A router, a prefill and a decode worker."""
    folder = tmp_path_factory.mktemp("examples")
    model = folder / "pydoc"
    model.symlink_to(ROOT / "models" / "pydoc" / "checkpoint")
    cluster = Cluster(model, folder, router_flags=("--served-model-name", model.name))
    try:
        cluster.add_worker("prefill", "prefill-0", "--num-blocks", "512")
        # Short prompts as well take the way over both.
        all_remote = ("--local-prefill-threshold", "0")
        cluster.add_worker("decode", "decode-0", "--num-blocks", "512", *all_remote)
        cluster.wait_ready()
        yield cluster
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


@pytest.fixture
def addresses(served: Cluster) -> Iterator[Mapping[str, str]]:
    """What examples say, and where that is here. Whatever they do, no worker keeps anything."""
    yield {
        "127.0.0.1:8000": f"127.0.0.1:{served.http_port}",
        "127.0.0.1:50051": f"127.0.0.1:{served.grpc_port}",
        "127.0.0.1:50052": f"127.0.0.1:{free_port()}",
    }
    served.wait_idle()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like the repository's root, to which examples may write; it is where we are."""
    (tmp_path / "baton").symlink_to(ROOT / "baton")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    # Readers see what went wrong; curl's exit code shall tell it as well.
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATON_VENV", str(Path(sys.executable).parents[1]))
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    return tmp_path
