"""Settings of the engine, named like vLLM's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 read at run time by the settings loader

from shared.config import setting
from shared.engine.settings.choices import BackendName, SchedulingPolicy
from shared.engine.settings.kv_cache_names import check_name
from shared.engine.settings.speculation import SpeculationConfig, parse_speculation
from shared.errors import ConfigError
from shared.kv.offload.manager import OffloadPolicy
from shared.request.hidden_states import HiddenStatesPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits on the engine's work at a time, and the memory for it."""

    device: str = setting("cpu", help="cpu, or a CUDA device such as cuda:0")
    block_size: int = setting(16, help="tokens per KV block")
    kv_cache_dtype: str = setting(
        "auto",
        help="what keys and values are kept as: fp8 (fp8_e4m3) or int8 with a scale for each "
        "token; checkpoint: as the checkpoint says, with its scales; the model's dtype by name; "
        "auto: checkpoint where it has scales, else the model's dtype",
    )
    num_blocks: int | None = setting(None, help="size of the KV pool in blocks")
    kv_cache_memory_bytes: int | None = setting(
        None, help="size of the KV pool in bytes, unless --num-blocks is given"
    )
    gpu_memory_utilization: float = setting(
        0.9,
        help="share of the free GPU memory for KV and what steps take, when no size is given",
    )
    cpu_memory_utilization: float = setting(
        0.25,
        help="share of the available host memory for KV and what steps take, when no size is given",
    )
    max_model_len: int | None = setting(
        None, help="longest prompt and output together; by default what model and KV pool allow"
    )
    max_num_seqs: int = setting(64, help="sequences that run at a time")
    max_num_batched_tokens: int = setting(2048, help="tokens computed per step")
    enable_chunked_prefill: bool = setting(True, help="split long prompts over several steps")
    long_prefill_token_threshold: int = setting(
        0, help="most tokens of one prompt per step while others wait; 0 sets no limit"
    )
    enable_prefix_caching: bool = setting(True, help="reuse the KV of equal prefixes")
    scheduling_policy: SchedulingPolicy | None = setting(
        None,
        help="fcfs, priority: lower values first, or urgency: as priority, and of equal values "
        "short prompts before long ones, which gain with their wait; by default urgency in a "
        "worker, and fcfs in a program of one's own",
    )
    enable_prompt_embeds: bool = setting(
        default=False, help="take prompts that give embeddings in place of tokens"
    )
    prompt_embeds_bytes: int = setting(
        1 << 30, help="memory for the embeddings of all prompts that wait or run"
    )
    enable_return_hidden_states: bool = setting(
        default=False, help="return the hidden states of an answer's tokens to requests that ask"
    )
    hidden_states_bytes: int = setting(
        64 << 20, help="most bytes of hidden states that the answers to a request may have"
    )

    kv_offload_host_gib: float = setting(
        0.0, help="host memory for KV blocks that leave the pool, in GiB; 0 turns offload off"
    )
    kv_offload_disk_dir: Path | None = setting(
        None, help="folder for KV blocks that leave host memory; no other worker may use it"
    )
    kv_offload_disk_gib: float = setting(0.0, help="most that is kept in that folder, in GiB")
    kv_offload_disk_packing: bool = setting(
        False, help="pack bfloat16 blocks without loss, to three quarters, when they are written"
    )
    kv_offload_policy: OffloadPolicy = setting(
        OffloadPolicy.LRU, help="lru, or arc: who leaves a full tier"
    )
    kv_offload_always_load: bool = setting(
        False, help="load offloaded blocks even where computing them seems to be faster"
    )
    kv_offload_landing: bool = setting(
        default=True,
        help="receive prompts that a prefill worker computes in host memory while the pool is full",
    )

    structured_outputs_backend: BackendName = setting(
        BackendName.AUTO, help="what follows grammars: auto, xgrammar or guidance"
    )
    structured_outputs_cache_bytes: int = setting(
        256 << 20, help="memory for compiled grammars that are kept"
    )
    structured_outputs_timeout_s: float = setting(
        30.0, help="longest that a grammar may take to compile, and a mask of allowed tokens"
    )
    structured_outputs_cpu_s: float = setting(
        30.0, help="processor seconds that one tenant's grammars may take to compile at a stretch"
    )
    structured_outputs_cpu_share: float = setting(
        0.5, help="processor seconds of these that a tenant gets back per second"
    )
    structured_outputs_memory_bytes: int = setting(
        1 << 30, help="memory that one tenant's grammars may take, compiled and followed"
    )
    speculative_config: str | None = setting(
        None,
        help="speculative decoding, as a JSON object such as "
        '{"method": "ngram", "num_speculative_tokens": 5}',
    )

    enable_lora: bool = setting(default=False, help="serve LoRA adapters")
    max_loras: int = setting(4, help="adapters in one step")
    max_lora_rank: int = setting(16, help="largest rank of an adapter's matrices")
    max_cpu_loras: int | None = setting(
        None, help="adapters in host memory; by default as many as --max-loras"
    )

    logits_processors: tuple[str, ...] = setting(
        (),
        help="custom logits processors: names of installed ones, or module:Class; the same, in the "
        "same order, for all workers of a model",
    )
    async_scheduling: bool | None = setting(
        None,
        help="prepare a step while the one before it still runs; by default on a GPU only",
    )
    enforce_eager: bool = setting(False, help="never run decode steps as CUDA graphs")
    cuda_graph_sizes: tuple[int, ...] = setting(
        (), help="batch sizes to record as CUDA graphs; by default 1, 2, 4, 8, then by 16"
    )

    @property
    def overlaps_steps(self) -> bool:
        """`async_scheduling` for this device."""
        if self.async_scheduling is None:
            return not self.device.startswith("cpu")
        return self.async_scheduling

    @property
    def policy(self) -> SchedulingPolicy:
        """`scheduling_policy`, or its default outside of workers."""
        return self.scheduling_policy or SchedulingPolicy.FCFS

    def hidden_states_policy(self, hidden_size: int) -> HiddenStatesPolicy:
        """Return what a model of this hidden size may return of its hidden states."""
        allowed = self.enable_return_hidden_states
        return HiddenStatesPolicy(allowed, self.hidden_states_bytes, hidden_size)

    @property
    def speculation(self) -> SpeculationConfig | None:
        """The value of `speculative_config`, parsed.

        Raises:
            ConfigError: it is invalid.
        """
        if self.speculative_config is None:
            return None
        return parse_speculation(self.speculative_config)

    @property
    def num_host_adapters(self) -> int:
        """`max_cpu_loras`, or its default."""
        return self.max_loras if self.max_cpu_loras is None else self.max_cpu_loras

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            _require(getattr(self, name) >= 1, name, "must be at least 1")
        for name in ("num_blocks", "kv_cache_memory_bytes", "max_model_len"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, "must be at least 1")
        for name in ("gpu_memory_utilization", "cpu_memory_utilization"):
            _require(0 < getattr(self, name) <= 1, name, "must be over 0 and at most 1")
        check_name(self.kv_cache_dtype)
        for name in ("prompt_embeds_bytes", "hidden_states_bytes"):
            _require(getattr(self, name) >= 0, name, "is < 0")
        _require(self.long_prefill_token_threshold >= 0, "long_prefill_token_threshold", "is < 0")
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            "max_num_batched_tokens",
            f"must be at least max_num_seqs ({self.max_num_seqs}), so that every running "
            "sequence gets a token in every step",
        )
        self._check_graph_sizes()
        self._check_adapters()
        if self.max_model_len is not None:
            self._check_threshold(self.max_model_len)
            self.check_unchunked(self.max_model_len)

        for name in ("cache_bytes", "timeout_s", "cpu_s", "cpu_share", "memory_bytes"):
            name = f"structured_outputs_{name}"
            _require(getattr(self, name) > 0, name, "must be over 0")
        self._check_offload()
        _ = self.speculation

    def _check_adapters(self) -> None:
        for name in ("max_loras", "max_lora_rank"):
            _require(getattr(self, name) >= 1, name, "must be at least 1")
        _require(
            self.num_host_adapters >= self.max_loras,
            "max_cpu_loras",
            f"must be at least max_loras ({self.max_loras}): what a step uses stays in host memory",
        )

    def _check_offload(self) -> None:
        for name in ("kv_offload_host_gib", "kv_offload_disk_gib"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, name, "must be at least 0")
        has_disk = self.kv_offload_disk_dir is not None
        _require(
            has_disk == (self.kv_offload_disk_gib > 0),
            "kv_offload_disk_dir",
            "and kv_offload_disk_gib need each other",
        )
        _require(
            not has_disk or self.kv_offload_host_gib > 0,
            "kv_offload_disk_dir",
            "needs kv_offload_host_gib too: blocks reach the disk through host memory",
        )
        _require(
            self.enable_prefix_caching or not self.kv_offload_host_gib,
            "kv_offload_host_gib",
            "needs enable_prefix_caching",
        )

    def _check_graph_sizes(self) -> None:
        _require(
            all(1 <= size <= self.max_num_seqs for size in self.cuda_graph_sizes),
            "cuda_graph_sizes",
            f"must be between 1 and max_num_seqs ({self.max_num_seqs}), "
            f"not {sorted(self.cuda_graph_sizes)}",
        )

    def _check_threshold(self, longest: int) -> None:
        _require(
            self.long_prefill_token_threshold <= longest,
            "long_prefill_token_threshold",
            f"is {self.long_prefill_token_threshold}, but no sequence is longer than {longest}",
        )

    def check_model_limit(self, model_limit: int) -> None:
        """Refuse configured lengths beyond the model's positions."""
        _require(
            self.max_model_len is None or self.max_model_len <= model_limit,
            "max_model_len",
            f"is {self.max_model_len}, but the model ends at {model_limit}",
        )
        self._check_threshold(model_limit)

    def check_unchunked(self, max_model_len: int) -> None:
        """Refuse a step that is too small without chunking.

        Without chunking, a step must fit the longest prompt and a token per sequence.

        Raises:
            ConfigError: it does not.
        """
        if self.enable_chunked_prefill:
            return
        needed = max_model_len + self.max_num_seqs
        _require(
            self.max_num_batched_tokens >= needed,
            "max_num_batched_tokens",
            f"must be at least max_model_len + max_num_seqs ({needed}) without chunked prefill",
        )


def _require(condition: bool, name: str, rule: str) -> None:
    if not condition:
        raise ConfigError(f"{name} {rule}")
