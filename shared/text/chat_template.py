"""Rendering of messages by the checkpoint's Jinja template, in a sandbox, as Hugging Face does."""

from __future__ import annotations

import copy
import json
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols

from shared.errors import ConfigError, InvalidRequestError
from shared.text.harmony.conversation import SIGN, render_harmony
from shared.text.model_files import read_json, read_text
from shared.text.template_sandbox import BoundedEnvironment, render

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from jinja2.parser import Parser

    Message = Mapping[str, Any]
    Renderer = Callable[[Mapping[str, Any]], str]

#: All exceptions of templates on messages that they were not written for.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
MAX_INDENT = 64
_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
#: Mark at the end of the last message. Its space shows whether the template trims messages.
_END_MARK = "\ue000END-OF-FINAL-MESSAGE "


class ChatTemplate:
    """Renders conversations. A checkpoint may have several templates, chosen by name."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Take `templates` by name; "default" is used unless there are tools and a "tool_use".

        `variables`: those of every conversation; a conversation's own have precedence.

        Raises:
            ConfigError: a template is not valid Jinja, or a variable is one of a conversation.
        """
        self._variables = dict(variables or {})
        if clash := _OWN_VARIABLES.intersection(self._variables):
            raise ConfigError(f"variables of every chat must not set {min(clash)}")
        environment = _environment()
        self._renderers: dict[str, Renderer] = {}
        for name, source in templates.items():
            try:
                self._renderers[name] = partial(render, environment.from_string(source))
            except jinja2.TemplateSyntaxError as error:
                message = f"chat template {name!r}, line {error.lineno}: {error}"
                raise ConfigError(message) from error
        self._special_tokens = dict(special_tokens)
        #: The text of every template: it shows the format that the model was trained to write.
        self.sources = tuple(templates.values())

    @classmethod
    def load(
        cls,
        model_dir: Path,
        special_tokens: Mapping[str, str],
        variables: Mapping[str, Any] | None = None,
    ) -> ChatTemplate:
        """Read chat_template.jinja, otherwise the field of tokenizer_config.json.

        A model without a template loads; rendering with it is refused. gpt-oss needs none: its
        published format is rendered here (shared/text/harmony).

        Raises:
            ConfigError: a file cannot be read, or a template is not valid Jinja.
        """
        templates = _read_templates(model_dir)
        try:
            loaded = cls(templates, special_tokens, variables)
        except ConfigError as error:
            raise ConfigError(f"{model_dir}: {error}") from error
        if read_json(model_dir / "config.json").get("model_type") == "gpt_oss":
            loaded._renderers = {"default": render_harmony}
            loaded.sources = (*loaded.sources, SIGN)
        return loaded

    def replaced_by(self, source: str) -> ChatTemplate:
        """Return the template of a request, with this model's special tokens.

        Raises:
            InvalidRequestError: it is not valid Jinja.
        """
        try:
            return ChatTemplate({"default": source}, self._special_tokens, self._variables)
        except (ConfigError, jinja2.TemplateError, RecursionError) as error:
            raise InvalidRequestError(f"chat_template: {error}", param="chat_template") from error

    @property
    def exists(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._renderers)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt's text. It contains its special tokens: encode it without adding any.

        Raises:
            InvalidRequestError: the template refuses the messages, or the model has none.
        """
        if clash := _OWN_VARIABLES.intersection(extra or ()):
            message = f"chat_template_kwargs must not set {min(clash)}"
            raise InvalidRequestError(message, param="chat_template_kwargs")
        if continue_final_message:
            if add_generation_prompt:
                message = "continue_final_message and add_generation_prompt exclude each other"
                raise InvalidRequestError(message, param="continue_final_message")
            messages = _with_end_mark(messages)
        variables = {
            **self._special_tokens,
            **self._variables,
            **(extra or {}),
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = _rendered(self._choose(has_tools=bool(tools)), variables)
        except _RENDER_ERRORS as error:
            message = f"the model's chat template refused the messages: {error}"
            raise InvalidRequestError(message, param="messages") from error
        return _cut_at_end_mark(text) if continue_final_message else text

    def _choose(self, *, has_tools: bool) -> Renderer:
        if has_tools and "tool_use" in self._renderers:
            return self._renderers["tool_use"]
        if "default" not in self._renderers:
            message = "the model has no chat template; use the completions endpoint"
            raise InvalidRequestError(message, param="messages")
        return self._renderers["default"]


def _rendered(renderer: Renderer, variables: Mapping[str, Any]) -> str:
    """Render. Arguments of calls are objects, or JSON if the template joins them to text.

    The templates of DeepSeek V3, R1 and V3.1 do so.
    """
    try:
        return renderer(variables)
    except TypeError:
        written = [_with_written_arguments(message) for message in variables["messages"]]
        if written == list(variables["messages"]):
            raise
        return renderer({**variables, "messages": written})


def _with_written_arguments(message: Message) -> Message:
    calls = [dict(call) for call in message.get("tool_calls") or ()]
    for call in calls:
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
            written = json.dumps(function["arguments"], ensure_ascii=False)
            call["function"] = {**function, "arguments": written}
    return {**message, "tool_calls": calls} if calls else message


class _GenerationBlocks(Extension):
    """`{% generation %}` marks the assistant's part for training; here only its text is used."""

    tags = {"generation"}  # noqa: RUF012 jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON. Jinja's own filter escapes HTML, which models have not been trained on."""
    if isinstance(indent, int) and indent > MAX_INDENT:
        raise jinja2.TemplateError(f"tojson indents by at most {MAX_INDENT}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)


def _with_end_mark(messages: Sequence[Message]) -> list[Message]:
    """Return a copy whose last text ends with the mark."""
    copied = [dict(copy.deepcopy(message)) for message in messages]
    content = copied[-1].get("content") if copied else None
    if isinstance(content, str):
        copied[-1]["content"] = content + _END_MARK
        return list(copied)
    if isinstance(content, list):
        for part in reversed(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                part["text"] += _END_MARK
                return list(copied)
    message = "continue_final_message needs a last message with text"
    raise InvalidRequestError(message, param="continue_final_message")


def _cut_at_end_mark(text: str) -> str:
    place = text.rfind(_END_MARK.rstrip())
    if place < 0:
        message = "continue_final_message: the chat template leaves out the last message"
        raise InvalidRequestError(message, param="continue_final_message")
    # A template that trims messages has trimmed the mark's space and would trim the message's own.
    trims = not text.startswith(_END_MARK, place)
    return text[:place].rstrip() if trims else text[:place]


def _read_templates(model_dir: Path) -> dict[str, str]:
    own_file = read_text(model_dir / "chat_template.jinja")
    templates = {} if own_file is None else {"default": own_file}
    folder = model_dir / "additional_chat_templates"
    for path in sorted(folder.glob("*.jinja")):
        templates[path.stem] = read_text(path) or ""
    if templates:
        return templates
    path = model_dir / "tokenizer_config.json"
    field = read_json(path).get("chat_template")
    match field:
        case None:
            return {}
        case str():
            return {"default": field}
        case [*named] if all(
            isinstance(n, dict)
            and isinstance(n.get("name"), str)
            and isinstance(n.get("template"), str)
            for n in named
        ):
            return {n["name"]: n["template"] for n in named}
    raise ConfigError(f"chat_template in {path} must be a string or a list of named templates")
