"""What cannot start is refused before anything is loaded, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.worker.config import WorkerProgramConfig
from shared.config import load_config
from shared.errors import ConfigError, ModelLoadError
from shared.identity import Role
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.worker.checks import check_worker
from tests.unit.model.checkpoints import edit_json, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


def check(model: Path, *flags: str, role: Role = Role.DECODE) -> None:
    argv = ["--model", str(model), "--directory", "127.0.0.1:1", *flags]
    check_worker(load_config(WorkerProgramConfig, argv, prog="worker", environ={}).worker, role)


def test_a_good_model_passes(model: Path) -> None:
    check(model)
    check(model, role=Role.PREFILL)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--dtype", "float8"), "dtype 'float8' is unknown"),
        (("--load-format", "tensorizer"), "load format 'tensorizer' is unknown"),
        (("--quantization", "float5"), "quantization 'float5' is unknown"),
        (("--quantization", "awq"), "is not quantised; leave it out"),
        (("--attention-backend", "flash"), "attention backend 'flash' is unknown"),
        (("--quantization", "int8", "--dtype", "float32"), "int8 weights go with --dtype bfloat16"),
        (("--max-model-len", "99999999"), "max_model_len is 99999999, but the model ends at"),
        (("--connectors", "shm,tcp"), "unknown connector 'tcp'"),
        (("--host", "0.0.0.0"), "would be open to every process"),
        (("--tensor-parallel-size", "2", "--device", "cuda"), "parts of blocks leave host memory"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    model: Path, flags: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        check(model, *flags)


def test_a_draft_model_is_checked_where_it_is_used(model: Path) -> None:
    config = '{"method": "draft_model", "model": "/none", "num_speculative_tokens": 2}'
    with pytest.raises(ConfigError, match=r"speculative_config: model: cannot read /none"):
        check(model, "--speculative-config", config)
    check(model, "--speculative-config", config, role=Role.PREFILL)


def test_a_head_in_the_model_s_own_files_is_looked_for(model: Path, tmp_path: Path) -> None:
    config = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}')
    with pytest.raises(ModelLoadError, match=r"method mtp: no layer .* of LlamaForCausalLM"):
        check(model, *config)
    check(model, *config, role=Role.PREFILL)
    for has_further in (False, True):
        path = tmp_path / str(has_further)
        spec = CheckpointSpec(architecture="qwen3_5_text", num_layers=4, has_further=has_further)
        write_random_checkpoint(path, spec)
    check(path, *config)
    with pytest.raises(ModelLoadError, match=r"method mtp: .*'mtp.fc.weight' is missing"):
        check(tmp_path / "False", *config)
    check(tmp_path / "False", *config, "--load-format", "dummy")


def test_a_checkpoint_that_cannot_be_loaded_is_refused(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelLoadError, match="damaged or truncated"):
        check(model)
    check(model, "--load-format", "dummy")
    edit_json(model / "config.json", architectures=["BloomForCausalLM"], model_type="bloom")
    with pytest.raises(ModelLoadError, match="BloomForCausalLM does not let others compute"):
        check(model)
