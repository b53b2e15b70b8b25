"""Real starts with every argument: what is accepted together, and what is refused first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from baton import LLM, EngineArgs, SamplingParams
from shared.arguments.base import Argument, Inert, Kind, Refused, Same, Spelled
from shared.arguments.table import ARGUMENTS
from shared.errors import ConfigError
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.offline.records.metrics import Counter

if TYPE_CHECKING:
    from pathlib import Path

OTHERS: dict[Kind, Any] = {Kind.VALUE: "7", Kind.LIST: ["7", "8"], Kind.OBJECT: {"a": 7}}
#: Of arguments that have an effect. MODEL is the model's folder, TMP another one.
FIRST: dict[str, Any] = {
    "runner": "generate",
    "convert": "embed",
    "pooler_config": {"pooling_type": "MEAN"},
    "tokenizer": "MODEL",
    "tokenizer_revision": "main",
    "trust_remote_code": True,
    "dtype": "float",
    "seed": 3,
    "hf_config_path": "MODEL",
    "revision": "main",
    "max_model_len": "1k",
    "quantization": "int8",
    "enforce_eager": True,
    "max_logprobs": 5,
    "logprobs_mode": "processed_logprobs",
    "enable_prompt_embeds": True,
    "served_model_name": ["a", "b"],
    "hf_token": "hf_none",
    "hf_overrides": {"rms_norm_eps": 1e-3},
    "generation_config": "vllm",
    "override_generation_config": {"temperature": 0.5},
    "model_impl": "torch",
    "logits_processors": ["tests.fakes.engine.logits_processors:NoRepeat"],
    "load_format": "dummy",
    "download_dir": "TMP",
    "ignore_patterns": ["*.bin", "*.md"],
    "data_parallel_size": 1,
    "api_process_count": 1,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "enable_expert_parallel": False,
    "distributed_timeout_seconds": 20,
    "distributed_executor_backend": "mp",
    "nnodes": 1,
    "node_rank": 0,
    "master_addr": "127.0.0.2",
    "master_port": 29502,
    "cpu_distributed_timeout_seconds": 10,
    "block_size": 8,
    "gpu_memory_utilization": 0.5,
    "device_memory_utilization": 0.4,
    "kv_cache_memory_bytes": "4M",
    "kv_cache_dtype": "int8",
    "num_gpu_blocks_override": 160,
    "enable_prefix_caching": True,
    "kv_offloading_size": 0.01,
    "enable_lora": True,
    "max_loras": 2,
    "max_lora_rank": 8,
    "max_cpu_loras": 3,
    "lora_modules": ["a=/adapters/a"],
    "max_num_batched_tokens": 64,
    "max_num_scheduled_tokens": 32,
    "max_num_seqs": 8,
    "max_num_active_seqs": 4,
    "max_num_queued_reqs": 100,
    "max_num_queued_tokens": "100k",
    "long_prefill_token_threshold": 16,
    "scheduling_policy": "priority",
    "enable_chunked_prefill": True,
    "async_scheduling": True,
    "stream_interval": 2,
    "log_level": "DEBUG",
    "disable_log_stats": True,
    "enable_log_requests": True,
    "attention_backend": "TORCH_SDPA",
    "cudagraph_capture_sizes": [1, 2, 4],
    "max_cudagraph_capture_size": 4,
    "reasoning_parser": "think",
    "structured_outputs_config": {"backend": "guidance", "reasoning_parser": "think"},
    "speculative_config": {"method": "ngram", "prompt_lookup_min": 1, "adaptive": False},
    "spec_tokens": 2,
    "kv_events_config": {"enable_kv_cache_events": True, "topic": "t"},
    "profiler_config": {"profiler": "torch", "torch_profiler_dir": "TMP"},
    "shutdown_timeout": 20,
    "chat_template": "{{ messages }}",
    "default_chat_template_kwargs": {"enable_thinking": False},
    "response_role": "model",
    "return_tokens_as_token_ids": True,
    "enable_force_include_usage": True,
    "api_key": ["a" * 32],
    "ssl_keyfile": "TMP",
    "ssl_certfile": "TMP",
    "ssl_ca_certs": "TMP",
    "ssl_cert_reqs": 1,
    "disable_fastapi_docs": True,
    "reasoning_config": {"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"},
}
#: Of those that exclude one of the others.
SECOND: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "task": "generate",
    "attention_config": {"backend": "TORCH_SDPA"},
    "enable_chunked_prefill": False,
    "enable_prefix_caching": False,
    "max_model_len": 512,
    "num_gpu_blocks_override": 64,
    "speculative_config": {"adaptive": False},
    "spec_method": "draft_model",
    "spec_model": "MODEL",
    "spec_tokens": 2,
}
#: Tokens that repeat, so that drafts are found.
PROMPT = [7, 8, 9] * 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_random_checkpoint(path, CheckpointSpec(num_layers=1))
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.folder.changed.cache_dir", lambda: tmp_path / "cache")


#: Arguments of numbers of processes.
FIXED = {
    "--data-parallel-size",
    "--api-process-count",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--enable-expert-parallel",
    "--nnodes",
    "--node-rank",
}


def field(argument: Argument) -> str:
    return argument.name[2:].replace("-", "_")


def other(argument: Argument) -> Any:
    """A value that is not the default."""
    if argument.kind is Kind.SWITCH:
        return argument.default != "True"
    return OTHERS[argument.kind]


def harmless(argument: Argument) -> Any:
    """A value of a refused argument that changes nothing."""
    assert isinstance(argument.meaning, Refused)
    if argument.kind is Kind.SWITCH:
        return argument.default == "True"
    if argument.kind is Kind.OBJECT:
        return {}
    return (argument.default, *argument.meaning.harmless)[-1]


def with_paths(value: Any, **paths: str) -> Any:
    if isinstance(value, dict):
        return {key: with_paths(each, **paths) for key, each in value.items()}
    return paths.get(value, value) if isinstance(value, str) else value


WITHOUT_EFFECT = {
    field(each): other(each) if isinstance(each.meaning, Inert) else harmless(each)
    for each in ARGUMENTS.values()
    if isinstance(each.meaning, Inert | Refused)
}


def test_the_starts_have_all_arguments() -> None:
    given = {"model"} | FIRST.keys() | SECOND.keys() | WITHOUT_EFFECT.keys()
    assert given == {field(each) for each in ARGUMENTS.values()}


@pytest.mark.parametrize("own", [FIRST, SECOND | WITHOUT_EFFECT], ids=["effect", "no-effect"])
def test_a_start_takes_every_argument(own: dict[str, Any], model: Path, tmp_path: Path) -> None:
    own = {
        name: with_paths(value, MODEL=str(model), TMP=str(tmp_path)) for name, value in own.items()
    }
    llm = LLM.from_engine_args(EngineArgs(model, **own))
    try:
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        [output] = llm.generate({"prompt_token_ids": PROMPT}, params, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 24
        counted = {m.name: m.value for m in llm.get_metrics() if isinstance(m, Counter)}
        assert counted["vllm:spec_decode_num_draft_tokens"] > 0
    finally:
        llm.close()


@pytest.mark.parametrize(
    "argument",
    [each for each in ARGUMENTS.values() if isinstance(each.meaning, Refused)],
    ids=lambda each: each.name,
)
def test_a_refused_value_ends_a_start(argument: Argument) -> None:
    assert isinstance(argument.meaning, Refused)
    with pytest.raises(ConfigError, match=argument.name) as refused:
        # There is no such model, which would be said if anything were read.
        LLM.from_engine_args(EngineArgs("/no/such/model", **{field(argument): other(argument)}))
    assert argument.meaning.reason in str(refused.value)


def test_no_accepted_argument_is_left_at_its_default() -> None:
    for argument in ARGUMENTS.values():
        given = (FIRST | SECOND).get(field(argument))
        if isinstance(argument.meaning, Same | Spelled) and given is not None:
            is_fixed = argument.name in FIXED
            assert is_fixed or str(given) != argument.default
