"""What a model is run for: vLLM's arguments, and what a checkpoint says by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import normalize

from services.worker.config import WorkerProgramConfig
from shared.arguments.translate import translate
from shared.config import load_config
from shared.errors import ConfigError
from shared.identity import Role
from shared.pooling.base import PoolRequest
from shared.pooling.choice import makes_vectors, runner_of
from shared.pooling.loading import load_encoder_pooler
from shared.pooling.runner import Convert, Runner, RunnerSettings
from shared.worker.checks import check_worker
from tests.unit.pooling.checkpoints import states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Made = Callable[[str], tuple[Path, Any]]

TEXT = (5, 9, 33, 7)


@pytest.mark.parametrize(
    ("name", "runner", "convert", "found", "has_vectors"),
    [
        ("qwen3_head", Runner.AUTO, Convert.AUTO, Runner.GENERATE, False),
        ("qwen3_head", Runner.GENERATE, Convert.AUTO, Runner.GENERATE, False),
        ("qwen3_head", Runner.GENERATE, Convert.EMBED, Runner.GENERATE, True),
        ("qwen3_head", Runner.AUTO, Convert.EMBED, Runner.POOLING, True),
        ("qwen3_head", Runner.POOLING, Convert.AUTO, Runner.POOLING, True),
        ("qwen3_labels", Runner.AUTO, Convert.AUTO, Runner.POOLING, True),
        ("bert", Runner.AUTO, Convert.AUTO, Runner.POOLING, True),
    ],
)
def test_the_runner_follows_from_settings_and_checkpoint(
    made: Made, name: str, runner: Runner, convert: Convert, found: Runner, has_vectors: bool
) -> None:
    folder, _ = made(name)
    settings = RunnerSettings(runner=runner, convert=convert)
    assert runner_of(settings, folder) is found
    assert makes_vectors(settings, folder) is has_vectors


def test_a_task_is_a_runner_and_a_conversion() -> None:
    words = translate(["--model", "m", "--task", "embed"]).words
    config = load_config(
        WorkerProgramConfig, [*words, "--directory", "127.0.0.1:1"], prog="baton serve prefill"
    )
    assert config.worker.pooling == RunnerSettings(runner=Runner.POOLING, convert=Convert.EMBED)
    with pytest.raises(ConfigError, match="--task must be one of"):
        translate(["--task", "sing"])


async def test_the_operator_decides_how_states_are_pooled(made: Made) -> None:
    folder, model = made("bert")
    rows = states(model, TEXT)
    for text, wanted in (
        ("", normalize(rows.mean(0), dim=0)),
        ('{"pooling_type": "CLS"}', normalize(rows[0], dim=0)),
        ('{"seq_pooling_type": "LAST", "normalize": false}', rows[-1]),
        ('{"pooling_type": "MEAN", "use_activation": false}', rows.mean(0)),
    ):
        settings = RunnerSettings(pooler_config=text, convert=Convert.EMBED).head
        pooler = load_encoder_pooler(folder, dtype="float32", num_threads=1, settings=settings)
        pooler.start()
        try:
            request = PoolRequest(request_id="r", token_ids=TEXT)
            assert torch.allclose((await pooler.pool(request)).data, wanted, atol=2e-5), text
        finally:
            pooler.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[]", "must be a JSON object"),
        ('{"pooling_type": "STEP"}', "pooling_type must be LAST, MEAN, CLS"),
        ('{"normalize": 1}', "normalize must be true or false"),
        ('{"normalize": true, "use_activation": false}', "differ"),
        ('{"step_tag_id": 1}', "step_tag_id is not known"),
    ],
)
def test_a_wrong_pooler_config_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RunnerSettings(pooler_config=text)


def test_contradictions_are_refused(made: Made) -> None:
    with pytest.raises(ConfigError, match="--convert none makes no vectors"):
        RunnerSettings(runner=Runner.POOLING, convert=Convert.NONE)
    folder, _ = made("qwen3_head")
    words = ["--model", str(folder), "--directory", "127.0.0.1:1", "--runner", "pooling"]
    config = load_config(WorkerProgramConfig, words, prog="baton serve decode")
    with pytest.raises(ConfigError, match="a decode worker writes answers"):
        check_worker(config.worker, Role.DECODE)
