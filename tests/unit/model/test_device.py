"""A device that is not there is named in a sentence; tensors are made where they belong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from shared.engine.llm import LLM
from shared.errors import ConfigError
from shared.model.device import made_on
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.processes.warm_process import WarmProcess


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_random_checkpoint(path, CheckpointSpec())
    return path


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        pytest.param(
            "cuda",
            "device is cuda, but",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
        ("cuda:99", "device is cuda:99, but"),
        ("meta", "device must be cpu or a CUDA device"),
        ("gpu", "device must be cpu or a CUDA device"),
    ],
)
def test_llm(checkpoint: Path, device: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LLM(checkpoint, device=device)


def test_a_worker(checkpoint: Path, tmp_path: Path) -> None:
    argv = [
        "services.prefill", "--model", str(checkpoint), "--name", "p", "--device", "cuda:99",
        "--directory", "127.0.0.1:1", "--port", "0",
    ]  # fmt: skip
    log = tmp_path / "log"
    with log.open("wb") as file:
        worker = WarmProcess(argv, cwd=Path.cwd(), env=os.environ, log=file)
    assert worker.wait(60) == 2
    said = log.read_text()
    assert "Traceback" not in said
    assert "prefill worker cannot start: device is cuda:99, but" in said


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("around", ["cpu", "meta"])
def test_tensors_are_made_on_the_device_whatever_the_usual_one_is(device: str, around: str) -> None:
    with torch.device(around):
        with made_on(torch.device(device)):
            assert torch.empty(1).device.type == device
        assert torch.empty(1).device.type == around


def test_where_a_device_is_the_usual_one_no_call_is_looked_at() -> None:
    with made_on(torch.device("cpu")):
        assert torch.overrides._len_torch_function_stack() == 0
