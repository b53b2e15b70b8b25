"""vLLM's group ModelConfig."""

from __future__ import annotations

from shared.arguments.base import (
    Inert,
    Refused,
    Same,
    Spelled,
    json_object,
    renamed,
    switch,
    value,
    words,
)
from shared.arguments.values import either, length, task

NO_PLUGINS = "Baton has no plugins that read and write requests"
NO_MEDIA = "Baton takes text and token ids only"
SLEEP = "every worker can sleep, and gives all its memory back"

MODEL = (
    value("--model", "Qwen/Qwen3-0.6B", Same("a folder, a GGUF file or a name on the hub")),
    value("--runner", "auto", Same("auto, generate or pooling")),
    value("--convert", "auto", Same("with --runner generate, embed adds vectors to answers")),
    value(
        "--task",
        None,
        Spelled("--runner, --convert", task, "vLLM's older word for both"),
    ),
    value("--tokenizer", None, Same("a folder, a GGUF file or a name on the hub")),
    value(
        "--tokenizer-mode",
        "auto",
        Refused("Baton reads tokenizer.json, with Hugging Face's library", ("hf",)),
    ),
    switch("--trust-remote-code", Same()),
    value(
        "--dtype",
        "auto",
        Spelled("--dtype", either("--dtype", {"half": "float16", "float": "float32"})),
    ),
    value(
        "--seed",
        "0",
        renamed(
            "--model-seed",
            "seeds random weights; a request without a seed of its own draws a new one",
        ),
    ),
    value("--hf-config-path", None, Same()),
    value("--allowed-local-media-path", "", Refused(NO_MEDIA)),
    words("--allowed-media-domains", None, Refused(NO_MEDIA)),
    value("--revision", None, Same()),
    value("--code-revision", None, Refused("--revision holds for a model's code, too", ("main",))),
    value("--tokenizer-revision", None, Same()),
    value("--max-model-len", None, Spelled("--max-model-len", length("--max-model-len"))),
    value(
        "--quantization",
        None,
        Spelled(
            "--quantization",
            either("--quantization", {}),
            "none, int8, fp8, int4, or the format that the checkpoint has",
        ),
        short="-q",
    ),
    json_object(
        "--quantization-config",
        Refused("how weights are stored is read from the checkpoint; `baton quantize` makes some"),
    ),
    switch("--allow-deprecated-quantization", Inert("no format is deprecated here")),
    switch("--enforce-eager", Same()),
    switch("--enable-return-routed-experts", Refused("Baton does not return chosen experts")),
    switch("--return-sampling-mask", Refused("Baton does not return masks of sampling")),
    value("--max-logprobs", "20", Same()),
    value(
        "--logprobs-mode",
        "raw_logprobs",
        Same("of answers; beams, `best_of` and scores are raw log probabilities"),
    ),
    value("--logits-processor-pattern", None, Inert("only listed logits processors are used")),
    switch("--use-fp64-gumbel", Refused("Baton draws from float32 numbers")),
    switch("--enable-trace-replay", Refused("Baton does not record traces for replay")),
    switch(
        "--disable-sliding-window",
        Refused("Baton follows a model's windows; --max-model-len can end before they matter"),
    ),
    switch("--disable-cascade-attn", Inert("there is no cascade attention"), default=None),
    switch("--skip-tokenizer-init", Same("of routers; workers need none but for grammars")),
    switch("--enable-prompt-embeds", Same()),
    words("--served-model-name", None, Same()),
    value("--config-format", "auto", Refused("Baton reads config.json", ("hf",))),
    value("--hf-token", None, Same("better in the environment: HF_TOKEN")),
    json_object("--hf-overrides", Same("a JSON object; workers with other values share no KV")),
    json_object(
        "--model-class-overrides", Refused("--model-class names a family in code of your own")
    ),
    json_object(
        "--pooler-config", Same("pooling_type (LAST, MEAN, CLS), and normalize or use_activation")
    ),
    value("--generation-config", "auto", Same("auto, vllm or a folder")),
    json_object("--override-generation-config", Same()),
    switch("--enable-sleep-mode", Inert(SLEEP)),
    switch("--sleep-mode-offload-cudagraph", Inert(SLEEP)),
    words("--sleep-preserve-parameter-names", "[]", Inert(SLEEP)),
    switch("--enable-cumem-allocator", Inert("memory of weights is never given back in part")),
    switch("--enable-nccl-comm-suspend", Inert("workers do not use NCCL")),
    value("--model-impl", "auto", Same()),
    value("--model-weights", "", Refused("weights are read from --model")),
    value("--override-attention-dtype", None, Refused("attention has the model's dtype")),
    words("--logits-processors", None, Same("classes with our interface")),
    value("--io-processor-plugin", None, Refused(NO_PLUGINS)),
    value("--renderer-num-workers", "1", Inert("the router's threads are its own; see --routers")),
)
