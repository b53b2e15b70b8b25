"""vLLM's groups MultiModalConfig and LoRAConfig."""

from __future__ import annotations

from shared.arguments.base import Inert, Refused, Same, json_object, switch, value, words
from shared.arguments.groups.model import NO_MEDIA

WITHOUT = "Baton takes text only, so that there is nothing to set"

MULTIMODAL = (
    switch("--language-model-only", Inert("only a model's decoder of text is loaded")),
    json_object("--limit-mm-per-prompt", Inert("a prompt has no images: the limit is 0")),
    switch("--enable-mm-embeds", Refused(NO_MEDIA)),
    json_object("--media-io-kwargs", Inert(WITHOUT)),
    json_object("--mm-processor-kwargs", Inert(WITHOUT)),
    value("--mm-processor-cache-gb", "4", Inert(WITHOUT)),
    value("--mm-processor-cache-type", "lru", Inert(WITHOUT)),
    value("--mm-hasher-algorithm", "blake3", Inert(WITHOUT)),
    value("--mm-shm-cache-max-object-size-mb", "128", Inert(WITHOUT)),
    switch("--mm-encoder-only", Refused(NO_MEDIA)),
    value("--mm-encoder-tp-mode", "weights", Inert(WITHOUT)),
    value("--mm-encoder-attn-backend", None, Inert(WITHOUT)),
    value("--mm-encoder-attn-dtype", None, Inert(WITHOUT)),
    value("--mm-encoder-fp8-scale-path", None, Inert(WITHOUT)),
    value("--mm-encoder-fp8-scale-save-path", None, Refused(NO_MEDIA)),
    value("--mm-encoder-fp8-scale-save-margin", "1.5", Inert(WITHOUT)),
    switch("--interleave-mm-strings", Inert(WITHOUT)),
    switch("--skip-mm-profiling", Inert(WITHOUT)),
    value("--video-pruning-rate", None, Inert(WITHOUT)),
    value("--video-pruning-method", "evs", Inert(WITHOUT)),
    value("--mm-tensor-ipc", "direct_rpc", Inert(WITHOUT)),
    value("--mm-processor-device", "auto", Inert(WITHOUT)),
    value("--mm-ipc-gpu-memory-gb", "0", Inert(WITHOUT)),
    switch("--mm-device-do-normalize", Inert(WITHOUT), default=None),
)
LORA = (
    switch("--enable-lora", Same(), default=None),
    value("--max-loras", "1", Same("adapters in one step; 4 by default")),
    value("--max-lora-rank", "16", Same()),
    value("--lora-dtype", "auto", Inert("an adapter has the model's dtype; sums are in float32")),
    switch("--enable-tower-connector-lora", Refused(NO_MEDIA)),
    value("--max-cpu-loras", None, Same()),
    switch("--fully-sharded-loras", Inert("a worker computes on one device: nothing is sharded")),
    words(
        "--lora-target-modules",
        None,
        Refused(
            "an adapter changes all that its folder names: without a part of it answers differ"
        ),
    ),
    json_object("--default-mm-loras", Refused(NO_MEDIA)),
    switch("--specialize-active-lora", Inert("a step's work is that of its own adapters")),
    switch("--enable-mixed-moe-lora-format", Inert("adapters of experts are refused")),
    switch("--enable-moe-shared-loras", Inert("adapters of experts are refused")),
    value("--max-lora-cls-labels", None, Inert("adapters with a classifier are refused")),
)
