"""From the states of a text to its vector or its scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import ConfigError, InvalidRequestError, ModelLoadError, UnsupportedError
from shared.pooling.base import PoolingFacts, PoolingKind, PoolTask, ScoreActivation
from shared.pooling.classifier import Classifier, is_classifier, read_classifier
from shared.pooling.settings import Conversion, PoolingSettings
from shared.pooling.steps import Linear, read_dense, unit_length
from shared.pooling.stored import StoredDense, StoredNormalize, read_stored_pooling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import Any

    from torch import Tensor

    from shared.pooling.base import PoolRequest
    from shared.pooling.steps import Step
    from shared.pooling.stored import StoredPooling


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """What a head must know of the model in front of it."""

    hidden_size: int
    vocab_size: int
    max_len: int
    is_causal: bool
    num_token_types: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Maps pooled states to results. Its methods may be called in any thread."""

    facts: PoolingFacts
    vocab_size: int
    #: Of `PoolTask.EMBED`, without a last step that makes lengths 1.
    steps: tuple[Step, ...] = ()
    #: None: the model has none.
    classifier: Classifier | None = None

    def kind_of(self, task: PoolTask) -> PoolingKind | None:
        """Return which states a task pools; None: it wants all of them."""
        if task is PoolTask.TOKEN_EMBED:
            return None
        return self.facts.kind

    def finish(self, request: PoolRequest, pooled: Tensor) -> Tensor:
        """Return a result of the states that `kind_of` names: float32 [1 or n, hidden]."""
        match request.task:
            case PoolTask.TOKEN_EMBED:
                if request.dimensions is not None:
                    pooled = pooled[:, : request.dimensions]
                return unit_length(pooled) if request.normalize else pooled.contiguous()
            case PoolTask.EMBED:
                return self._embed(request, pooled)[0]
            case _:
                return self._score(request, pooled)[0]

    def check(self, request: PoolRequest) -> None:
        """Check a request.

        Raises:
            InvalidRequestError: it can never be served; names the parameter.
        """
        facts, num_tokens = self.facts, len(request.token_ids)
        if request.task not in facts.tasks:
            offered = ", ".join(sorted(facts.tasks))
            raise UnsupportedError(
                f"request {request.request_id}: this model does not {request.task}; it offers "
                f"{offered}",
                param="task",
            )
        if not num_tokens:
            raise InvalidRequestError(
                f"request {request.request_id}: the input is empty", param="input"
            )
        if num_tokens > facts.max_len:
            raise InvalidRequestError(
                f"request {request.request_id}: the input has {num_tokens} tokens; at most "
                f"{facts.max_len} fit; truncate_prompt_tokens shortens it",
                param="input",
            )
        if not 0 <= min(request.token_ids) <= max(request.token_ids) < self.vocab_size:
            raise InvalidRequestError(
                f"request {request.request_id}: token ids go from 0 to {self.vocab_size - 1}",
                param="input",
            )
        self._check_types(request)
        self._check_dimensions(request)

    def _embed(self, request: PoolRequest, pooled: Tensor) -> Tensor:
        for step in self.steps:
            pooled = step(pooled)
        if request.dimensions is not None:
            pooled = pooled[:, : request.dimensions]
        normalizes = self.facts.normalizes if request.normalize is None else request.normalize
        return unit_length(pooled) if normalizes else pooled.clone()

    def _score(self, request: PoolRequest, pooled: Tensor) -> Tensor:
        assert self.classifier is not None  # `check` has seen to it
        for step in self.classifier.steps:
            pooled = step(pooled)
        if request.activate is False:
            return pooled
        match self.facts.activation:
            case ScoreActivation.SIGMOID:
                return pooled.sigmoid()
            case ScoreActivation.SOFTMAX:
                return pooled.softmax(dim=-1)
            case _:
                return pooled

    def _check_types(self, request: PoolRequest) -> None:
        types, num = request.token_type_ids, self.facts.num_token_types
        if types is None:
            return
        if len(types) != len(request.token_ids):
            raise InvalidRequestError(
                f"request {request.request_id}: {len(types)} token types for "
                f"{len(request.token_ids)} tokens",
                param="token_type_ids",
            )
        if not 0 <= min(types) <= max(types) < max(1, num):
            raise InvalidRequestError(
                f"request {request.request_id}: this model tells {num} parts of a text apart",
                param="token_type_ids",
            )

    def _check_dimensions(self, request: PoolRequest) -> None:
        dimensions, facts = request.dimensions, self.facts
        if dimensions is None:
            return
        makes_vectors = request.task in (PoolTask.EMBED, PoolTask.TOKEN_EMBED)
        if not makes_vectors or not facts.supports_dimensions:
            raise UnsupportedError(
                f"request {request.request_id}: this model's vectors cannot be shortened",
                param="dimensions",
            )
        if not 1 <= dimensions <= facts.size:
            raise InvalidRequestError(
                f"request {request.request_id}: {dimensions} dimensions; this model's vectors have "
                f"{facts.size}",
                param="dimensions",
            )
        if facts.dimensions and dimensions not in (*facts.dimensions, facts.size):
            known = ", ".join(map(str, facts.dimensions))
            raise InvalidRequestError(
                f"request {request.request_id}: {dimensions} dimensions; this model was trained "
                f"for {known}",
                param="dimensions",
            )


def read_head(
    model_dir: Path,
    raw: Mapping[str, Any],
    model: ModelSizes,
    settings: PoolingSettings | None = None,
) -> Head:
    """Return the head of a checkpoint, as its files and the operator say.

    Raises:
        ConfigError: the settings contradict each other or the checkpoint.
        ModelLoadError: the checkpoint cannot be used; names the file, and the tensor if any.
    """
    settings = settings or PoolingSettings()
    stored = read_stored_pooling(model_dir)
    max_len = min(model.max_len, stored.max_len or model.max_len)
    classifies = settings.conversion is Conversion.CLASSIFY or (
        settings.conversion is Conversion.AUTO
        and (is_classifier(raw, stored) or settings.score_tokens is not None)
    )
    if settings.score_tokens is not None and not classifies:
        raise ConfigError("tokens to score with were given, and the model is made an embedder")
    common: dict[str, Any] = {
        "max_len": max_len,
        "prompts": stored.prompts,
        "default_prompt": stored.default_prompt,
        "is_causal": model.is_causal,
        "num_token_types": model.num_token_types,
    }
    if classifies:
        classifier = read_classifier(model_dir, raw, stored, settings)
        _size_behind("the classifier", model.hidden_size, classifier.steps)
        tasks = {PoolTask.CLASSIFY, PoolTask.TOKEN_EMBED}
        if len(classifier.labels) == 1:
            tasks.add(PoolTask.SCORE)
        facts = PoolingFacts(
            kind=settings.kind or classifier.kind,
            size=0,
            tasks=frozenset(tasks),
            labels=classifier.labels,
            activation=settings.activation or classifier.activation,
            **common,
        )
        return Head(facts=facts, vocab_size=model.vocab_size, classifier=classifier)
    return _embedder(raw, model, settings, stored, common)


def _embedder(
    raw: Mapping[str, Any],
    model: ModelSizes,
    settings: PoolingSettings,
    stored: StoredPooling,
    common: Mapping[str, Any],
) -> Head:
    steps = list(stored.steps)
    normalizes = not stored.is_there
    if steps and isinstance(steps[-1], StoredNormalize):
        steps.pop()
        normalizes = True
    made = tuple(
        read_dense(step) if isinstance(step, StoredDense) else unit_length for step in steps
    )
    size = _size_behind("a Dense of sentence-transformers", model.hidden_size, made)
    default = PoolingKind.LAST if model.is_causal else PoolingKind.MEAN
    trained = raw.get("matryoshka_dimensions")
    facts = PoolingFacts(
        kind=settings.kind or stored.kind or default,
        size=size,
        tasks=frozenset({PoolTask.EMBED, PoolTask.TOKEN_EMBED}),
        normalizes=normalizes if settings.normalizes is None else settings.normalizes,
        supports_dimensions=raw.get("is_matryoshka") is not False,
        dimensions=tuple(sorted(trained)) if isinstance(trained, list) else (),
        **common,
    )
    return Head(facts=facts, vocab_size=model.vocab_size, steps=made)


def _size_behind(what: str, size: int, steps: Iterable[Step]) -> int:
    """Return the numbers that steps make of a row of `size`.

    Raises:
        ModelLoadError: one reads rows of another size.
    """
    for step in steps:
        if isinstance(step, Linear):
            if step.weight.shape[1] != size:
                raise ModelLoadError(
                    f"{what} reads {step.weight.shape[1]} numbers; those before it make {size}"
                )
            size = len(step.weight)
    return size
