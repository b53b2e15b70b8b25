"""Whose words an error has: OpenAI's, or vLLM's where the path or the field is vLLM's own.

Clients read `type` and `code`, and those of vLLM's own API expect vLLM's: a class of error and the
status, where OpenAI has a word for each.
"""

from __future__ import annotations

from http import HTTPStatus

#: Paths of vLLM's own API, and all below each.
PATHS = (
    "/abort_requests",
    "/classify",
    "/detokenize",
    "/generative_scoring",
    "/inference",
    "/invocations",
    "/is_paused",
    "/is_sleeping",
    "/load",
    "/pause",
    "/pooling",
    "/rerank",
    "/reset_prefix_cache",
    "/resume",
    "/score",
    "/server_info",
    "/sleep",
    "/start_profile",
    "/stop_profile",
    "/tokenize",
    "/tokenizer_info",
    "/update_weights",
    "/v1/chat/completions/batch",
    "/v1/chat/completions/derender",
    "/v1/chat/completions/render",
    "/v1/classify",
    "/v1/completions/derender",
    "/v1/completions/render",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/rerank",
    "/v1/score",
    "/v2/rerank",
    "/wake_up",
    "/weight_info",
)
#: Fields that vLLM adds to OpenAI's bodies.
FIELDS = frozenset(
    {
        "add_generation_prompt",
        "add_special_tokens",
        "allowed_token_ids",
        "bad_words",
        "cache_salt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "early_stopping",
        "embed_dtype",
        "endianness",
        "ec_transfer_params",
        "enable_response_messages",
        "extra_args",
        "guided_choice",
        "guided_decoding_backend",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "guided_whitespace_pattern",
        "ignore_eos",
        "include_reasoning",
        "include_stop_str_in_output",
        "kv_transfer_params",
        "length_penalty",
        "logits_processors",
        "logprob_token_ids",
        "media_io_kwargs",
        "min_p",
        "min_tokens",
        "mm_processor_kwargs",
        "previous_input_messages",
        "priority",
        "prompt_embeds",
        "prompt_logprobs",
        "repetition_detection",
        "repetition_penalty",
        "request_id",
        "return_hidden_states",
        "return_prompt_text",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "skip_special_tokens",
        "stop_token_ids",
        "stream_interval",
        "structured_outputs",
        "thinking_token_budget",
        "top_k",
        "truncate_prompt_tokens",
        "truncation_side",
        "use_activation",
        "use_beam_search",
        "vllm_xargs",
        "watermarking",
    }
)
#: Where the phrase of the status is another, or not the same in all versions of Python.
_CLASSES = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "PayloadTooLargeError",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalServerError",
}


def is_vllms(path: str, param: str | None) -> bool:
    """Return whether an error at `path`, about the field `param`, has vLLM's words."""
    if any(path == own or path.startswith(f"{own}/") for own in PATHS):
        return True
    return param is not None and param.partition(".")[0].partition("[")[0] in FIELDS


def class_of(status: int) -> str:
    """Return vLLM's `type` of errors with this status: BadRequestError."""
    try:
        known = HTTPStatus(status)
    except ValueError:
        return "BadRequestError" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "ServerError"
    return _CLASSES.get(known) or f"{known.phrase.title().replace(' ', '')}Error"
