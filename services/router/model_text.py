"""The files of a model that the router reads: tokenizer, templates, answer formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.models import read_hidden_size, read_vocab_size
from services.router.parsers.find import find_reasoning_format, find_tool_format
from services.router.parsers.plan import ChatFormats
from services.router.parsers.reasoning.think import ThinkFormat
from shared.errors import ConfigError
from shared.folder.find import find_folder
from shared.text.chat_template import ChatTemplate
from shared.text.generation_defaults import GenerationDefaults
from shared.text.no_tokenizer import NoTokenizer
from shared.text.template_source import read_template
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from services.router.config import RouterConfig
    from services.router.parsers.base import ReasoningFormat
    from services.router.settings.templates import TemplateSettings


@dataclass(frozen=True, slots=True)
class ModelText:
    """Tokenizer, chat template and answer formats of a model, and its sizes."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    formats: ChatFormats
    vocab_size: int
    #: None if its files do not say.
    hidden_size: int | None = None


def load_text(config: RouterConfig) -> ModelText:
    """Read the model's files.

    Raises:
        ConfigError: a file cannot be used, or there is no parser of the configured name.
    """
    folder = find_folder(config.own_model, config.hub, config.changes)
    defaults = GenerationDefaults.choose(
        folder, config.generation_config, config.override_generation_config
    )
    load = NoTokenizer if config.skip_tokenizer_init else Tokenizer.load
    tokenizer = load(folder, defaults=defaults)
    template = _load_template(config.templates, folder, tokenizer)
    formats = ChatFormats(
        tools=find_tool_format(config.tool_call_parser, template.sources),
        reasoning=_reasoning_format(config, template),
    )
    sizes = read_vocab_size(folder, tokenizer), read_hidden_size(folder)
    return ModelText(tokenizer, template, formats, *sizes)


def _reasoning_format(config: RouterConfig, template: ChatTemplate) -> ReasoningFormat | None:
    """Return the format of the marks in the settings, otherwise the parser's."""
    if config.reasoning.reasoning_marks:
        begin, end = config.reasoning.reasoning_marks
        return ThinkFormat(begins=(begin,), ends=(end,))
    return find_reasoning_format(config.reasoning_parser, template.sources)


def _load_template(settings: TemplateSettings, folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    """Return the template of the settings, otherwise the model's own."""
    special, variables = tokenizer.special_tokens, settings.read_variables()
    if settings.chat_template is None:
        return ChatTemplate.load(folder, special, variables)
    try:
        source = read_template(settings.chat_template)
        return ChatTemplate({"default": source}, special, variables)
    except ConfigError as error:
        raise ConfigError(f"--chat-template: {error}") from error
