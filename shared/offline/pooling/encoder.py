"""A model that a program has loaded, and that reads whole texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigError, UnsupportedError
from shared.offline.pooling.vectors import EncoderPool, OfflineVectors
from shared.pooling.loading import load_encoder_pooler
from shared.text.chat_template import ChatTemplate
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from shared.offline.engine_args import EngineSettings


class LoadedEncoder:
    """Owns the thread that computes. `close` ends it."""

    def __init__(self, settings: EngineSettings) -> None:
        """Load the model.

        Raises:
            ConfigError, ModelLoadError: it cannot be run like this.
        """
        model = settings.model
        if settings.engine.enable_lora:
            raise ConfigError(f"{model.name} reads whole texts, and has no adapters: enable_lora")
        self._pooler = load_encoder_pooler(
            model.folder,
            settings=settings.pooling.head,
            dtype=model.dtype,
            num_threads=settings.num_threads,
            bind=settings.cpu_threads_bind,
            max_batch_tokens=settings.engine.max_num_batched_tokens,
        )
        self._pooler.start()
        tokenizer = Tokenizer.load(model.folder)
        template = ChatTemplate.load(model.folder, tokenizer.special_tokens)
        self.vectors = OfflineVectors(
            EncoderPool(self._pooler), tokenizer, template, find_adapter=_no_adapter
        )

    def close(self) -> None:
        """End the thread."""
        self._pooler.close()


def _no_adapter(lora_request: object) -> None:
    """Refuse a program's adapter.

    Raises:
        UnsupportedError: there is one.
    """
    if lora_request is not None:
        message = "lora_request: a model that reads whole texts has no adapters"
        raise UnsupportedError(message, param="lora_request")
