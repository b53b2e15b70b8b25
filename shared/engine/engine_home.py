"""The engine of a program: it can sleep, and take other weights of its model.

Each change ends the engine and begins another one, so that nothing computed with other weights
stays.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.engine.adapters.build import attach, build_store
from shared.engine.adapters.folders import AdapterFolders
from shared.engine.engine import Engine
from shared.engine.offload.build import forget_disk
from shared.engine.speculation.own_head import check_own_head
from shared.engine.step.followers.followers import NO_FOLLOWERS
from shared.errors import InvalidRequestError, ModelLoadError, UnavailableError
from shared.gguf.folder import made_of
from shared.model.checkpoint.loading.heap import give_back_free

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from shared.engine.settings.engine import EngineConfig
    from shared.engine.step.followers.followers import Followers
    from shared.model.loaded import LoadedModel

#: Version of weights that were never updated, and the parts that wake up; as in vLLM.
FIRST_VERSION = "default"
WEIGHTS, KV_CACHE = "weights", "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)
#: Levels of sleep: 1 wakes up with the same weights, 2 with what the folder has then.
LEVELS = (1, 2)


@dataclass(slots=True)
class _Asleep:
    #: Fingerprint that the weights must come back with; None: any.
    fingerprint: str | None
    #: None until they are awake.
    loaded: LoadedModel | None = None


class EngineHome:
    """Owns an engine, or what is left of it while it sleeps."""

    def __init__(
        self,
        folder: Path,
        config: EngineConfig,
        load: Callable[[Path], LoadedModel],
        followers: Followers = NO_FOLLOWERS,
    ) -> None:
        """Load the model with `load`, on `followers` too, and make the engine."""
        self._followers = followers
        self._folder = folder
        self._config = config
        self._load = load
        #: Those of all its engines; None: it serves none.
        self.adapters = build_store(config, AdapterFolders(takes_any=True))
        self._asleep: _Asleep | None = None
        self.weight_version = FIRST_VERSION
        self._loaded: LoadedModel | None = load(folder)
        #: What no change of weights changes.
        self.spec = self._loaded.spec
        self.eos_token_ids = self.spec.eos_token_ids
        attach(self.adapters, self._loaded, config)
        self._engine: Engine | None = self._new_engine(self._loaded)
        #: Of the blocks that the last engine may have left on disk.
        self._namespace = self._engine.namespace

    @property
    def engine(self) -> Engine:
        """The present engine.

        Raises:
            UnavailableError: it sleeps, or is closed.
        """
        if self._engine is None:
            sleeps = "sleeps: call wake_up first"
            raise UnavailableError(f"the engine {sleeps if self.is_sleeping else 'is closed'}")
        return self._engine

    @property
    def num_weight_bytes(self) -> int:
        """Memory of the present weights."""
        return 0 if self._loaded is None else self._loaded.num_weight_bytes

    @property
    def is_sleeping(self) -> bool:
        """Whether there is no engine."""
        return self._asleep is not None

    def sleep(self, level: int) -> None:
        """Return the memory of weights and KV to the system. Safe to repeat.

        An engine that sleeps may be told to wake up with any weights, by level 2.

        Raises:
            InvalidRequestError: the level is not 1 or 2, or the engine has work.
        """
        if level not in LEVELS:
            raise InvalidRequestError(f"level must be 1 or 2, not {level}", param="level")
        self._require_idle()
        loaded = self._loaded if self._asleep is None else self._asleep.loaded
        if loaded is None:
            if level == 2 and self._asleep is not None:
                self._asleep.fingerprint = None
            return
        self._asleep = _Asleep(loaded.fingerprint if level == 1 else None)
        del loaded
        self._end_engine()

    def wake_up(self, tags: Collection[str] = TAGS) -> bool:
        """Load what the tags name; return whether the engine is back. Safe to repeat.

        Raises:
            InvalidRequestError: a tag is unknown, or the KV cache is to come before the weights.
            ModelLoadError: the weights cannot be loaded, or are not the same after level 1.
        """
        unknown = sorted(set(tags) - set(TAGS))
        if unknown:
            message = f"tags may be weights and kv_cache, not {unknown[0]!r}"
            raise InvalidRequestError(message, param="tags")
        asleep = self._asleep
        if asleep is None:
            return True
        if asleep.loaded is None:
            if WEIGHTS not in tags:
                raise InvalidRequestError("wake up the weights first", param="tags")
            asleep.loaded = self._load_same(asleep.fingerprint)
        if KV_CACHE not in tags:
            return False
        self._begin_engine(asleep.loaded)
        return True

    def update_weights(self, folder: Path, version: str | None) -> None:
        """Take the weights of a folder. They are loaded beside the present ones first.

        Raises:
            InvalidRequestError: the engine has work, or they are of another model.
            ModelLoadError: they cannot be loaded, or lack the head that is to guess for them; the
                present ones stay.
        """
        self._require_idle()
        loaded = self._load(folder)
        asleep = self._asleep
        present = self._loaded if asleep is None else asleep.loaded
        if present is not None and (loaded.spec, loaded.dtype) != (present.spec, present.dtype):
            raise InvalidRequestError(f"{folder} is another model", param="path")
        check_own_head(self._config.speculation, loaded.made_from, loaded.spec)
        del present
        self._folder, self.weight_version = folder, version or folder.name
        if asleep is not None:
            asleep.fingerprint, asleep.loaded = loaded.fingerprint, loaded
            return
        if self._engine is not None and loaded.fingerprint != self._engine.model_fingerprint:
            # No time is spent on saving what other weights cannot use.
            with suppress(UnavailableError):
                self._engine.reset_prefix_cache()
        self._end_engine(kept=[loaded.fingerprint])
        self._begin_engine(loaded)

    def close(self) -> None:
        """Free the memory."""
        self._end_engine()
        if self.adapters is not None:
            self.adapters.close()

    def _require_idle(self) -> None:
        if self._engine is not None and self._engine.has_work():
            raise InvalidRequestError("requests are running: end them first")

    def _load_same(self, fingerprint: str | None) -> LoadedModel:
        loaded = self._load(self._folder)
        if fingerprint not in (None, loaded.fingerprint):
            place = made_of(self._folder) or self._folder
            raise ModelLoadError(
                f"{place} has other weights than those that fell asleep: sleep with level 2 to "
                "wake up with what is there"
            )
        return loaded

    def _begin_engine(self, loaded: LoadedModel) -> None:
        attach(self.adapters, loaded, self._config)
        self._engine = self._new_engine(loaded)
        self._loaded, self._asleep = loaded, None
        if self._engine.namespace != self._namespace:
            forget_disk(self._config, self._namespace)
            self._namespace = self._engine.namespace

    def _new_engine(self, loaded: LoadedModel) -> Engine:
        return Engine(loaded, self._config, adapters=self.adapters, followers=self._followers)

    def _end_engine(self, kept: Collection[str] = ()) -> None:
        """End the engine and free its model. kept: fingerprints of models for the next one."""
        if self._engine is not None:
            self._engine.close()
        if self.adapters is not None:
            # It refers to the model, and sleep returns all memory.
            self.adapters.attach(None)
            self.adapters.forget_contents()
        self._engine = self._loaded = None
        self._followers.keep(kept)
        # Reference cycles keep the memory of an engine and its model otherwise.
        gc.collect()
        give_back_free()
