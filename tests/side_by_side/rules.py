"""Why answers may differ: each rule is a kind of difference and the reason for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scripts.api_table import APIS
from services.router.openai.dialect import is_vllms
from tests.side_by_side.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tests.side_by_side.difference import Difference


def rule_of(found: Difference, known: Mapping[str, Collection[str]]) -> Rule | None:
    """The first rule that a difference is of."""
    return next((rule for rule in RULES if rule.holds(found, known)), None)


def _unknown_there(found: Difference, known: Mapping[str, Collection[str]]) -> bool:
    return (
        found.path in known
        and found.field not in {*known[found.path], "-"}
        and (not found.field.startswith("sampling_params."))
    )


def _refused(found: Difference, known: Mapping[str, Collection[str]]) -> bool:
    del known
    return found.path in APIS and found.field in APIS[found.path].refused


def _ignored(found: Difference, known: Mapping[str, Collection[str]]) -> bool:
    del known
    return found.path in APIS and found.field in APIS[found.path].ignored


def _openais(found: Difference, known: Mapping[str, Collection[str]]) -> bool:
    """The words of errors are OpenAI's: the endpoint is, and no field of vLLM's is wrong."""
    del known
    field = None if found.field == "-" else found.field
    return not is_vllms(found.path.partition("?")[0], field)


def _begins_at_body(found: Difference, known: Mapping[str, Collection[str]]) -> bool:
    """The paths are the same but for `body.`, the kind of a union, and how places are written."""
    del known
    theirs = re.sub(r"\.(\d+)", r"[\1]", found.vllm).removeprefix("body.")
    return theirs in {found.baton, f"DerenderChatRequest.{found.baton}"} or (
        found.baton != "None" and theirs.startswith((f"{found.baton}.", f"{found.baton}["))
    )


_MESSAGES = "POST /v1/messages*"
_RESPONSES = "POST /v1/responses *"
_GENERATE = "POST /inference/v1/generate *"

STATUSES = (
    Rule(
        reason="A number written as a string is refused, as OpenAI does; vLLM converts it.",
        where="* text", aspect="status", vllm="200", baton="400",
    ),
    Rule(
        reason="A field that is null says nothing; vLLM refuses it where a default exists.",
        where="* null", aspect="status", vllm="400", baton="200",
    ),
    Rule(
        reason="vLLM fails inside; Baton names the wrong field.",
        where="* length_penalty * or * structured_outputs * or POST /abort_requests - wrong",
        aspect="status", vllm="500", baton="400",
    ),
    Rule(
        reason="The field asks for what is not offered here, so it is refused. [Why](fields.md)",
        aspect="status", vllm="200", baton="400", when=_refused, names_fields=True,
    ),
    Rule(
        reason="The field changes nothing here, so its value is not checked. [Why](fields.md)",
        aspect="status", vllm="400", baton="200", when=_ignored, names_fields=True,
    ),
    Rule(
        reason="vLLM passes the field over at this endpoint; Baton reads it there, and checks it.",
        aspect="status", vllm="200", baton="400", when=_unknown_there, names_fields=True,
    ),
    Rule(
        reason="A body that is no JSON, by its media type, is 415: no page of another site can "
        "have its reader's browser ask.",
        where="* -*", aspect="status", vllm="400", baton="415",
    ),
    Rule(
        reason="OpenAI answers 400 to an unknown previous response; without a store Baton says how "
        "to have one.",
        where="* previous_response_id *", aspect="status", vllm="404", baton="400",
    ),
    Rule(
        reason="Nothing is left out of a conversation, so `auto` is refused.",
        where="* truncation beyond", aspect="status", vllm="200", baton="400",
    ),
    Rule(
        reason="Anthropic's least budget of 1,024 tokens is no limit here.",
        where="POST /v1/messages thinking beyond", aspect="status", vllm="400", baton="200",
    ),
    Rule(
        reason="OpenAI's endpoint for one model; vLLM has none.",
        where="GET /v1/models/*", aspect="status or error type or error code or error param",
    ),
    Rule(
        reason="Workers publish their events themselves; the router has no list of them.",
        where="GET /kv_event_sources *", aspect="status",
    ),
    Rule(
        reason="Operators load adapters while it serves; vLLM needs a variable for that.",
        where="POST /v1/load_lora_adapter *", aspect="status",
    ),
    Rule(
        reason="A known endpoint that is not offered says why (400); vLLM has no such path (404).",
        aspect="status", vllm="404", baton="400",
    ),
    Rule(
        reason="A token outside the vocabulary is refused; vLLM returns a text without it.",
        where="POST /detokenize - beyond", aspect="status",
    ),
    Rule(
        reason="A stream is refused; vLLM answers with a whole object instead.",
        where="POST /v1/chat/completions/batch - stream", aspect="status",
    ),
    Rule(
        reason="Without the request the reply is plain text; vLLM refuses where a parser is set.",
        where="POST /v1/chat/completions/derender - plain", aspect="status",
    ),
)  # fmt: skip
ERRORS = (
    Rule(
        reason="An unknown path or method is an error object, as in OpenAI's API.",
        aspect="error *", vllm="None", when=lambda found, _: " - " in found.key,
    ),
    Rule(
        reason="Below /v1/messages errors are Anthropic's objects; vLLM's are so in part.",
        where=_MESSAGES, aspect="error *",
    ),
    Rule(
        reason="A field or an endpoint of OpenAI's API has OpenAI's `type`; vLLM's is the name of "
        "a class, or of a status.",
        aspect="error type", baton="invalid_request_error", when=_openais,
    ),
    Rule(
        reason="A field or an endpoint of OpenAI's API has OpenAI's `code`, a word or null; vLLM's "
        "is the status.",
        aspect="error code", vllm="40?", when=_openais,
    ),
    Rule(
        reason="vLLM's schema has a `type` of its own for the same error; Baton has one.",
        aspect="error type", vllm="Bad Request", baton="BadRequestError",
    ),
    Rule(
        reason="The field's path begins at the body; vLLM's schema puts `body.` before it.",
        aspect="error param", vllm="body.*", when=_begins_at_body,
    ),
    Rule(
        reason="A body that is no JSON object has no field that is wrong.",
        where="* - *", aspect="error param", vllm="body*", baton="None",
    ),
    Rule(
        reason="Baton names the wrong field; these checks of vLLM name none.",
        aspect="error param", vllm="None", names_fields=True,
    ),
    Rule(
        reason="The wrong one of `sampling_params` is named; vLLM's schema names the object, and "
        "its later checks the field without the object.",
        where=_GENERATE, aspect="error param", baton="sampling_params.* or structured_outputs",
    ),
    Rule(
        reason="The wrong place of the list is named.",
        where="* stop_token_ids *", aspect="error param", vllm="stop_token_ids",
    ),
    Rule(
        reason="The client's name of the field; vLLM has the one of the parameter that it became.",
        where="* max_output_tokens * or * max_completion_tokens * or * top_logprobs *",
        aspect="error param", vllm="max_tokens or logprobs",
    ),
    Rule(
        reason="The type is what is wrong; vLLM misses the function.",
        where="* tool_choice wrong", aspect="error param", baton="tool_choice.type",
    ),
    Rule(
        reason="A parameter of the URL has no path.",
        where="POST /pause?*", aspect="error param", vllm="query.*",
    ),
    Rule(
        reason="The weights' folder is a field of the body; vLLM's is what its workers understand.",
        where="POST /update_weights *", aspect="error param", vllm="body.update_info",
    ),
    Rule(
        reason="The id is a part of the path and no field.",
        where="* /v1/responses/*", aspect="error param", vllm="response_id", baton="None",
    ),
)  # fmt: skip
SHAPES = (
    Rule(
        reason="A probe's answer says what is missing; vLLM's is empty.",
        where="* /health *", aspect="media type",
        is_of_keys=True,
    ),
    Rule(
        reason="A probe's answer says what is missing; vLLM's is empty.",
        where="* /ping *", aspect="media type",
        is_of_keys=True,
    ),
    Rule(
        reason="Both paths say how many requests ended; vLLM's second one says nothing.",
        where="POST /inference/v1/abort_requests *", aspect="media type",
    ),
    Rule(
        reason="The server and its settings are Baton's own.",
        where="GET /server_info *",
    ),
    Rule(
        reason="It is the content of tokenizer_config.json; vLLM's has what it loaded besides.",
        where="GET /tokenizer_info *",
    ),
    Rule(
        reason="OpenAI's API has no permissions of models any more.",
        where="GET /v1/models *", aspect="data[].permission",
    ),
    Rule(
        reason="The version of each worker, beside the one of all.",
        where="GET /weight_info *", aspect="workers",
        is_of_keys=True,
    ),
    Rule(
        reason="What /inference/v1/generate does by default is left out of its body.",
        where="POST */render *", vllm="null or string or number or boolean or array", baton="-",
    ),
    Rule(
        reason="A field of Anthropic's beta for the management of contexts.",
        where="POST /v1/messages/count_tokens *", aspect="context_management",
    ),
    Rule(
        reason="As in Anthropic's API: `ping`, what was read from a cache, `stop_sequence`.",
        where="POST /v1/messages *", vllm="-",
        aspect="ping or *stop_sequence or *usage.cache_creation_input_tokens or "
        "*usage.cache_read_input_tokens",
        is_of_keys=True,
    ),
    Rule(
        reason="Where the prompt's KV came from, and how long each stage took.",
        aspect="*timings or *usage.prompt_tokens_details",
        is_of_keys=True,
    ),
    Rule(
        reason="The version of the weights, in every API.",
        aspect="*weight_version", vllm="-",
        is_of_keys=True,
    ),
    Rule(
        reason="What was not asked for is left out of a stream's chunk, where vLLM has null.",
        aspect="*: prompt_text or *: prompt_token_ids or *: choices[].token_ids or *: "
        "choices[].prompt_token_ids",
        vllm="null", baton="-", is_of_keys=True,
    ),
    Rule(
        reason="A client hands no KV and no encoder's output over: workers do that among "
        "themselves.",
        aspect="*kv_transfer_params or *ec_transfer_params",
        vllm="null", baton="-", is_of_keys=True,
    ),
    Rule(
        reason="Chosen experts and masks of sampling are not returned.",
        aspect="*choices[].routed_experts or *choices[].sampling_mask",
        vllm="null", baton="-", is_of_keys=True,
    ),
    Rule(
        reason="Models have no other media and search no web.",
        aspect="*message.audio or *message.annotations or *mm_placeholders",
        vllm="null", baton="-", is_of_keys=True,
    ),
    Rule(
        reason="OpenAI's older name of `tool_calls` is never used.",
        aspect="*message.function_call",
        vllm="null", baton="-", is_of_keys=True,
    ),
    Rule(
        reason="vLLM's times of one request are `timings` here.",
        aspect="*metrics",
        vllm="null", baton="-", is_of_keys=True,
    ),
    Rule(
        reason="There is one tier of service, and no details of an answer's tokens are counted.",
        aspect="*service_tier or *usage.completion_tokens_details",
        vllm="null", baton="-", is_of_keys=True,
    ),
    Rule(
        reason="Log probabilities of named tokens are among the others.",
        aspect="*prompt_token_id_logprobs",
        vllm="null", baton="-", is_of_keys=True,
    ),
    Rule(
        reason="vLLM shows the harmony messages of gpt-oss, and OpenAI's phases of an answer.",
        where=_RESPONSES,
        aspect="*input_messages or *output_messages or *phase",
        vllm="null", baton="-", is_of_keys=True,
    ),
    Rule(
        reason="There are no stored prompts.",
        where=_RESPONSES,
        aspect="*prompt",
        vllm="null", baton="-", is_of_keys=True,
    ),
    Rule(
        reason="The response repeats what the request has of its tools, its reasoning and its "
        "text.",
        where=_RESPONSES,
        aspect="*tools[].* or *reasoning.* or *text.*",
        vllm="null", baton="-", is_of_keys=True,
    ),
    Rule(
        reason="Each chunk of a stream has the model, the time and the prompt's keys.",
        where=_GENERATE, aspect="first: * or middle: * or last: * or usage: *",
        is_of_keys=True,
    ),
    Rule(
        reason="The role comes with the first text instead of before it.",
        where="POST /v1/chat/completions *",
        aspect="first or first: * or middle or last: choices[].delta.role", is_of_chance=True,
    ),
    Rule(
        reason="Tokens that arrive together are one chunk.",
        aspect="middle", baton="-", is_of_chance=True,
    ),
    Rule(
        reason="The last token's text comes with the end where there is one.",
        where="POST /v1/chat/completions *",
        aspect="last: choices[].delta.content", is_of_chance=True,
    ),
    Rule(
        reason="The prompt's tokens come with the first chunk alone, if they are asked for.",
        where="POST /v1/completions *", aspect="middle: choices[].prompt_token_ids",
    ),
    Rule(
        reason="An echo has log probabilities of the prompt if they are asked for.",
        where="POST /v1/chat/completions echo *", aspect="prompt_logprobs*",
    ),
    Rule(
        reason="An answer that is cut off ends with `response.incomplete`, as in OpenAI's API.",
        where=_RESPONSES, aspect="response.completed or response.incomplete",
    ),
    Rule(
        reason="The response repeats the request's fields, and does not say what the model's "
        "defaults made of them.",
        where=_RESPONSES,
        aspect="*temperature or *top_p or *max_output_tokens or *frequency_penalty or "
        "*presence_penalty or *top_logprobs or *max_tool_calls",
    ),
    Rule(
        reason="Objects and lists without content are as in OpenAI's API, where vLLM has null.",
        where=_RESPONSES,
        aspect="*metadata or *reasoning or *text or *logprobs or *tool_choice",
        vllm="null",
    ),
    Rule(
        reason="Fields of OpenAI's API that vLLM leaves out: `error`, `store`, `completed_at`, and "
        "the bytes of tokens.",
        where=_RESPONSES, vllm="-",
        aspect="*completed_at or *error or *store or *reasoning.* or *logprobs[] or *bytes",
    ),
    Rule(
        reason="Counts per turn are of vLLM's own tools, which Baton does not run.",
        where=_RESPONSES, aspect="*_per_turn or *tool_output_tokens", baton="-",
        is_of_keys=True,
    ),
    Rule(
        reason="A reply names the server that made it.",
        where="POST /v1/completions/derender *", aspect="system_fingerprint",
    ),
    Rule(
        reason="Without a seed, draws differ.",
        where="* temperature null", aspect="text or choices* or *content*", is_of_chance=True,
    ),
    Rule(
        reason="From one seed each has draws of its own.",
        where="* n *", aspect="text or choices* or middle* or last*",
    ),
    Rule(
        reason="From one seed each has draws of its own.",
        where="* sampling_params.n *", aspect="text or choices*",
    ),
    Rule(
        reason="vLLM does not read the field at this endpoint; here it decides on the text, and on "
        "how the answer ends.",
        aspect="text or *stop_reason or *incomplete_details",
        when=_unknown_there, names_fields=True,
    ),
)  # fmt: skip
RULES: tuple[Rule, ...] = (*STATUSES, *ERRORS, *SHAPES)
