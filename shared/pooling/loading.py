"""Makes the part that computes a checkpoint's vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.model.checkpoint.config import read_config
from shared.model.encoders.loading import is_encoder, load_encoder
from shared.pooling.encoder_pooler import EncoderPooler
from shared.pooling.engine_pooler import EnginePooler
from shared.pooling.head import ModelSizes, read_head

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.thread.engine_thread import EngineThread
    from shared.model.spec.decoder import DecoderSpec
    from shared.pooling.head import Head
    from shared.pooling.settings import PoolingSettings


def reads_whole_texts(model_dir: Path) -> bool:
    """Return whether a checkpoint needs `load_encoder_pooler`, and no engine.

    Raises:
        ModelLoadError: its config is missing or damaged.
    """
    return is_encoder(read_config(model_dir))


def load_encoder_pooler(
    model_dir: Path,
    *,
    settings: PoolingSettings | None = None,
    dtype: str = "auto",
    num_threads: int | None = None,
    bind: str | None = None,
    implementation: str = "auto",
    max_batch_tokens: int = 4096,
    max_waiting: int = 8192,
) -> EncoderPooler:
    """Load an encoder. The caller starts and closes the pooler. Arguments: see `load_encoder`.

    Raises:
        ConfigError: a setting is unknown or wrong.
        ModelLoadError: the checkpoint cannot be used.
    """
    if max_batch_tokens < 1 or max_waiting < 1:
        raise ConfigError("max_batch_tokens and max_waiting must be at least 1")
    loaded = load_encoder(
        model_dir, dtype=dtype, num_threads=num_threads, bind=bind, implementation=implementation
    )
    model = loaded.model
    sizes = ModelSizes(
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        max_len=model.max_len,
        is_causal=False,
        num_token_types=model.num_token_types,
    )
    head = read_head(model_dir, loaded.raw, sizes, settings)
    return EncoderPooler(
        model,
        head,
        max_batch_tokens=max_batch_tokens,
        max_waiting=max_waiting,
        fingerprint=loaded.fingerprint,
    )


def make_engine_pooler(
    model_dir: Path,
    spec: DecoderSpec,
    engine: EngineThread,
    *,
    max_model_len: int,
    settings: PoolingSettings | None = None,
) -> EnginePooler:
    """Return the vectors of a decoder that an engine computes.

    Raises:
        ConfigError: a setting is wrong.
        ModelLoadError: the checkpoint's files of pooling cannot be used.
    """
    head = read_decoder_head(model_dir, spec, max_model_len=max_model_len, settings=settings)
    return EnginePooler(engine, head)


def read_decoder_head(
    model_dir: Path,
    spec: DecoderSpec,
    *,
    max_model_len: int,
    settings: PoolingSettings | None = None,
) -> Head:
    """Return what makes vectors of a decoder's states; see `make_engine_pooler`."""
    sizes = ModelSizes(
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_len=max_model_len,
        is_causal=True,
    )
    return read_head(model_dir, read_config(model_dir), sizes, settings)
