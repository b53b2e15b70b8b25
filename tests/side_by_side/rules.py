"""Why answers may differ: each rule is a kind of difference and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from scripts.api_table import APIS
from services.router.openai.dialect import is_vllms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tests.side_by_side.difference import Difference

#: Of each generating endpoint, the fields that vLLM reads there.
Known = dict[str, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A kind of difference. Patterns are those of file names; `[` stands for itself."""

    reason: str
    where: str = "*"
    aspect: str = "*"
    vllm: str = "*"
    baton: str = "*"
    #: It depends on draws or on how fast tokens come: there may be no difference.
    is_of_chance: bool = False
    #: A client that knows the other server finds all that it reads: keys beside vLLM's, and nulls.
    is_of_keys: bool = False
    when: Callable[[Difference, Mapping[str, Collection[str]]], bool] | None = None

    def holds(self, found: Difference, known: Mapping[str, Collection[str]]) -> bool:
        """Return whether a difference is of this kind."""
        return (
            _matches(found.key, self.where)
            and any(_matches(found.aspect, each) for each in self.aspect.split(" or "))
            and _matches(found.vllm, self.vllm)
            and _matches(found.baton, self.baton)
            and (self.when is None or self.when(found, known))
        )


def rule_of(found: Difference, known: Mapping[str, Collection[str]]) -> Rule | None:
    """The first rule that a difference is of."""
    return next((rule for rule in RULES if rule.holds(found, known)), None)


def _matches(text: str, pattern: str) -> bool:
    return fnmatchcase(text, pattern.replace("[", "[[]"))


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


_WORDS = "error type or error code"
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
        aspect="status", vllm="500", baton="400",
    ),
    Rule(
        reason="The field asks for what is not offered here, so it is refused (docs/fields.md).",
        aspect="status", vllm="200", baton="400", when=_refused,
    ),
    Rule(
        reason="The field changes nothing here, so its value is not checked.",
        aspect="status", vllm="400", baton="200", when=_ignored,
    ),
    Rule(
        reason="vLLM passes the field over at this endpoint; Baton reads it there, and checks it.",
        aspect="status", vllm="200", baton="400", when=_unknown_there,
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
        reason="Without ids nothing is aborted: a misspelled field must not end all requests.",
        where="POST /abort_requests - empty", aspect="status",
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
        reason="A field or an endpoint of OpenAI's API has OpenAI's words.",
        aspect=_WORDS, when=_openais,
    ),
    Rule(
        reason="vLLM's schema has a `type` of its own for the same error; Baton has one.",
        aspect="error type", vllm="Bad Request", baton="BadRequestError",
    ),
    Rule(
        reason="The field's path begins at the body; vLLM's schema puts `body.` and its own types "
        "before it, and other checks of vLLM name no field.",
        aspect="error param",
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
        where="POST */render *", baton="-",
    ),
    Rule(
        reason="A field of Anthropic's beta for the management of contexts.",
        where="POST /v1/messages/count_tokens *", aspect="context_management",
    ),
    Rule(
        reason="As in Anthropic's API: `ping`, what was read from a cache, `stop_sequence`.",
        where="POST /v1/messages *", vllm="-",
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
        reason="Null is left out where Baton would never have a value: hand-over by the client, "
        "experts, masks, images, metrics, tiers, other media.",
        vllm="null", baton="-",
        is_of_keys=True,
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
        reason="As in OpenAI's API.",
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
        reason="vLLM does not read the field at this endpoint.",
        when=_unknown_there,
    ),
)  # fmt: skip
RULES: tuple[Rule, ...] = (*STATUSES, *ERRORS, *SHAPES)
