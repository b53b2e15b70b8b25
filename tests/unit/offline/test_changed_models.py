"""Models of which a part is read from elsewhere: config.json, the tokenizer."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import transformers

from baton import LLM, SamplingParams
from cli.places import SHIPPED_MODEL
from services.router.config import RouterConfig
from services.router.model_text import load_text
from services.worker.config import WorkerProgramConfig
from shared.config import load_config
from shared.errors import ConfigError, ModelLoadError
from shared.folder.changed import changed_folder
from shared.worker.lifecycle.weights import WeightSource, first_source, load_weights
from tests.fakes.model.transformers_models import greedy, random_model, random_prompt, save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES: dict[str, Any] = {"dtype": "float32", "num_blocks": 32, "block_size": 16, "num_threads": 1}
PROMPT = random_prompt(37, vocab_size=321, seed=3)
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
#: Each changes what the random model answers.
OVERRIDES: tuple[dict[str, Any], ...] = (
    {"rope_parameters": {"rope_type": "default", "rope_theta": 30.0}},
    {"rms_norm_eps": 3.0},
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Kernels stay where they are.
    monkeypatch.setattr("shared.folder.changed.cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model without a tokenizer."""
    return save(random_model("qwen3", seed=5, std=0.2), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[LLM]:
    llm = LLM(folder, tokenizer=SHIPPED_MODEL, **SIZES)
    yield llm
    llm.close()


def answer(llm: LLM) -> list[int]:
    [output] = llm.generate({"prompt_token_ids": PROMPT}, PARAMS, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def oracle(folder: Path, overrides: dict[str, Any]) -> list[int]:
    """What transformers answers with the same config."""
    config = transformers.AutoConfig.from_pretrained(folder)
    for name, value in overrides.items():
        setattr(config, name, value)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config)
    return greedy(model.float().eval(), PROMPT, PARAMS.max_tokens or 0)


@pytest.mark.parametrize("overrides", OVERRIDES, ids=lambda each: next(iter(each)))
def test_other_values_of_the_config_compute_another_model(
    plain: LLM, folder: Path, overrides: dict[str, Any]
) -> None:
    llm = LLM(folder, hf_overrides=overrides, tokenizer=SHIPPED_MODEL, **SIZES)
    try:
        assert answer(llm) == oracle(folder, overrides) != answer(plain)
        # Workers of the two would share no block, and no request.
        own, other = llm.llm_engine.model.core.engine, plain.llm_engine.model.core.engine
        assert own.namespace != other.namespace
        assert own.model_fingerprint != other.model_fingerprint
        assert all(
            getattr(llm.model_config.hf_config, name) == value for name, value in overrides.items()
        )
    finally:
        llm.close()


def test_other_weights_are_read_with_the_same_changes(folder: Path, tmp_path: Path) -> None:
    [overrides, _] = OVERRIDES
    later = save(random_model("qwen3", seed=6, std=0.2), tmp_path / "later")
    llm = LLM(folder, hf_overrides=overrides, tokenizer=SHIPPED_MODEL, **SIZES)
    try:
        llm.update_weights(later)
        assert answer(llm) == oracle(later, overrides)
        llm.sleep(level=1)
        assert llm.wake_up()
        assert answer(llm) == oracle(later, overrides)
    finally:
        llm.close()


def test_a_worker_reads_other_weights_with_the_same_changes(folder: Path, tmp_path: Path) -> None:
    later = save(random_model("qwen3", seed=6, std=0.2), tmp_path / "later")
    overrides = json.dumps(OVERRIDES[1])
    words = ["--model", str(folder), "--hf-overrides", overrides, "--directory", "h:1"]
    config = load_config(WorkerProgramConfig, words, prog="test", environ={}).worker
    first = load_weights(config, first_source(config), None)
    second = load_weights(config, WeightSource(later, "later", 1), None)
    assert first.source.folder == folder
    assert first.loaded.spec.norm.eps == second.loaded.spec.norm.eps == 3.0
    second.check_replaces(first.loaded)


def test_a_tokenizer_comes_from_another_folder(plain: LLM, folder: Path) -> None:
    assert not (folder / "tokenizer.json").exists()
    texts = plain.get_tokenizer()
    assert (
        texts.get_vocab() == transformers.AutoTokenizer.from_pretrained(SHIPPED_MODEL).get_vocab()
    )
    config = load_config(
        RouterConfig,
        [
            "--model",
            str(folder),
            "--tokenizer",
            str(SHIPPED_MODEL),
            "--hf-overrides.vocab_size",
            "9000",
        ],
        prog="test",
        environ={},
    )
    text = load_text(config)
    assert text.vocab_size == 9000
    assert text.tokenizer.encode("os.path") == texts.encode("os.path")
    [message] = [{"role": "user", "content": "What does os.getcwd do?"}]
    assert "os.getcwd" in text.chat_template.render([message])


def test_the_config_comes_from_another_folder(plain: LLM, folder: Path, tmp_path: Path) -> None:
    [overrides, _] = OVERRIDES
    config = json.loads((folder / "config.json").read_text()) | overrides
    (tmp_path / "config.json").write_text(json.dumps(config))
    llm = LLM(folder, hf_config_path=tmp_path, tokenizer=SHIPPED_MODEL, **SIZES)
    try:
        assert answer(llm) == oracle(folder, overrides) != answer(plain)
    finally:
        llm.close()


def test_a_config_inside_the_config_is_merged(folder: Path, cache: Path, tmp_path: Path) -> None:
    whole = {
        "model_type": "outer",
        "text_config": {"a": 1, "b": 2},
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
    }
    shutil.copytree(folder, tmp_path / "outer")
    (tmp_path / "outer" / "config.json").write_text(json.dumps(whole))
    overrides = {"text_config": {"b": 3}, "rope_scaling": {"rope_type": "linear"}, "c": None}
    made = changed_folder(tmp_path / "outer", overrides=overrides)
    assert json.loads((made / "config.json").read_text()) == {
        "model_type": "outer",
        "text_config": {"a": 1, "b": 3},
        "rope_scaling": {"rope_type": "linear"},
        "c": None,
    }
    assert made.parent == cache / "changed"
    assert (made / "model.safetensors").samefile(tmp_path / "outer" / "model.safetensors")
    assert changed_folder(tmp_path / "outer", overrides=overrides) == made
    assert changed_folder(tmp_path / "outer", overrides={}) == tmp_path / "outer"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"hf_overrides": "[1]"}, ConfigError, "--hf-overrides must be a JSON object"),
        ({"hf_overrides": "{"}, ConfigError, "--hf-overrides is not valid JSON"),
        ({"hf_overrides": lambda config: config}, ConfigError, "hf_overrides cannot be a function"),
        ({"hf_overrides": {"hidden_size": 97}}, ModelLoadError, "97"),
        ({"hf_overrides": {"num_hidden_layers": 1}}, ModelLoadError, "with 1 layers as configured"),
        ({"tokenizer": "/no/such/folder"}, ConfigError, "/no/such/folder"),
        ({"hf_config_path": "/no/such/folder"}, ConfigError, "/no/such/folder has no config"),
    ],
)
def test_a_change_that_cannot_be_made_is_named(
    folder: Path, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LLM(folder, **given, **SIZES)
