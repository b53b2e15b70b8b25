"""How every system is started, and what is said of one that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.peers.engines.systems import (
    Baton,
    Launch,
    LlamaCpp,
    System,
    Transformers,
    Vllm,
    plain_environ,
)
from benchmarks.peers.places import import_folder, peer_python
from benchmarks.peers.serving.vllm import VllmAggregated, VllmDisaggregated, nixl_environ
from benchmarks.peers.serving.vllm import serve_command as vllm_serve_command
from cli.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which both peers seem to be installed."""
    monkeypatch.setenv("BATON_BENCH_HOME", str(tmp_path))
    monkeypatch.delenv("BATON_BENCH_VLLM", raising=False)
    for name in ("vllm", "llamacpp"):
        folder = tmp_path / name / "bin"
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(sys.executable)
    return tmp_path


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """On two cores."""
    return Launch(model=tmp_path / "small", cores=(0, 3), folder=tmp_path / "scratch")


def flags(command: list[str]) -> dict[str, str]:
    names = [word for word in command if word.startswith("--")]
    return {name: command[command.index(name) + 1] for name in names}


@pytest.mark.parametrize("system", [Baton(), Vllm(), LlamaCpp(), Transformers()])
def test_every_engine_gets_the_same_model_threads_cores_and_memory(
    system: System, home: Path, launch: Launch
) -> None:
    assert home.is_dir()
    assert system.missing() is None
    given = flags(system.command(launch))
    assert given == {
        "--model": str(launch.model),
        "--threads": "2",
        "--cores": "0,3",
        "--max-model-len": "4096",
        "--kv-cache-bytes": str(2 << 30),
        "--max-num-seqs": "64",
        "--dtype": "bfloat16",
    }


def test_peers_run_in_their_own_environment(home: Path, launch: Launch) -> None:
    assert Vllm().command(launch)[0] == str(home / "vllm" / "bin" / "python")
    assert LlamaCpp().command(launch)[0] == str(home / "llamacpp" / "bin" / "python")
    assert Baton(quantization="int8").command(launch)[-2:] == ["--quantization", "int8"]


def test_a_peer_can_be_named_by_a_variable(
    home: Path, monkeypatch: pytest.MonkeyPatch, launch: Launch
) -> None:
    monkeypatch.setenv("BATON_BENCH_VLLM", sys.executable)
    assert home.is_dir()
    assert Vllm().command(launch)[0] == sys.executable


def test_a_peer_that_is_not_installed_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_BENCH_HOME", str(tmp_path))
    monkeypatch.delenv("BATON_BENCH_VLLM", raising=False)
    assert peer_python("vllm") is None
    for system in (Vllm(), VllmAggregated(), VllmDisaggregated()):
        assert system.missing() == "not installed: benchmarks/peers/install.sh vllm"
    assert LlamaCpp().missing() == "not installed: benchmarks/peers/install.sh llamacpp"
    assert (ROOT / "benchmarks/peers/install.sh").is_file()


def test_vllm_is_bound_to_its_cores_and_kept_on_this_machine(home: Path, launch: Launch) -> None:
    assert home.is_dir()
    environ = Vllm().environ(launch)
    assert environ["VLLM_CPU_OMP_THREADS_BIND"] == "0,3"
    assert environ["VLLM_HOST_IP"] == "127.0.0.1"
    assert environ["HF_HUB_OFFLINE"] == "1"


def test_nothing_of_our_environment_changes_how_a_peer_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", "KMP_BLOCKTIME", "PYTHONPATH", "BATON_DTYPE"):
        monkeypatch.setenv(name, "1")
    environ = plain_environ()
    assert not {"OMP_NUM_THREADS", "KMP_BLOCKTIME", "PYTHONPATH", "BATON_DTYPE"} & set(environ)
    assert environ["PATH"] == os.environ["PATH"]


def test_disaggregated_vllm_moves_blocks_through_host_memory(
    tmp_path: Path, launch: Launch
) -> None:
    python = tmp_path / "python"
    given = flags(vllm_serve_command(python, launch, 1234, nixl=True))
    assert json.loads(given["--kv-transfer-config"]) == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
    }
    assert given["--host"] == "127.0.0.1"
    plain = flags(vllm_serve_command(python, launch, 1234, nixl=False))
    assert "--kv-transfer-config" not in plain
    assert nixl_environ(5600)["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"


def test_a_peer_can_import_benchmarks_and_nothing_else_of_ours(tmp_path: Path) -> None:
    script = (
        "import importlib.util as u, benchmarks.peers.workers.wire\n"
        "print([bool(u.find_spec(name)) for name in ('kernels', 'shared', 'cli')])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=plain_environ() | {"PYTHONPATH": str(import_folder(tmp_path))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[False, False, False]"
