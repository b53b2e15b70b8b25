"""vLLM's groups LoadConfig and OffloadConfig."""

from __future__ import annotations

from shared.arguments.base import Inert, Refused, Same, Spelled, json_object, switch, value, words
from shared.arguments.values import either

NO_OFFLOAD = (
    "Baton keeps all weights on the device; --quantization int4 takes a quarter of the memory"
)
_FORMATS = {"hf": "auto", "pt": "auto", "npcache": "auto", "gguf": "auto", "bitsandbytes": "auto"}

LOADING = (
    value(
        "--load-format",
        "auto",
        Spelled(
            "--load-format",
            either("--load-format", _FORMATS),
            "what a folder's or file's weights are is seen by reading it",
        ),
    ),
    value("--download-dir", None, Same()),
    value(
        "--safetensors-load-strategy",
        None,
        Inert("weights are copied from the mapped file to their place, tensor by tensor"),
    ),
    value("--safetensors-prefetch-num-threads", "8", Inert("files are mapped, not prefetched")),
    value("--safetensors-prefetch-block-size", "16777216", Inert("files are mapped")),
    json_object("--model-loader-extra-config", Refused("Baton's loader takes no settings")),
    words("--ignore-patterns", "original/**/*", Same("files that are not downloaded")),
    switch("--use-tqdm-on-load", Inert("a worker logs its progress"), default=True),
    value("--pt-load-map-location", "cpu", Inert("PyTorch's files are read as data")),
    value("--offload-backend", "auto", Refused(NO_OFFLOAD)),
    value("--cpu-offload-gb", "0", Refused(NO_OFFLOAD)),
    words("--cpu-offload-params", "set()", Refused(NO_OFFLOAD)),
    value("--offload-group-size", "0", Refused(NO_OFFLOAD)),
    value("--offload-num-in-group", "1", Inert("weights are not offloaded")),
    value("--offload-prefetch-step", "1", Inert("weights are not offloaded")),
    words("--offload-params", "set()", Refused(NO_OFFLOAD)),
)
