"""The classifiers of checkpoints: steps from a pooled state to logits, and their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from shared.errors import ModelLoadError
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.files.tensor_files import read_headers
from shared.pooling.base import PoolingKind, ScoreActivation
from shared.pooling.steps import ACTIVATIONS, LayerNorm, Linear, read_tensors
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from shared.pooling.settings import PoolingSettings
    from shared.pooling.steps import Step
    from shared.pooling.stored import StoredPooling

_SEQUENCE = "ForSequenceClassification"
_SCORE_TOKENS = "classifier_from_token"
#: What names of embeddings and heads are, in the order in which they are looked for.
_HEADS = ("lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight")
#: By what transformers' configs call it: a name of `ACTIVATIONS`.
_ACTS = {"gelu": "GELU", "relu": "ReLU", "silu": "SiLU", "tanh": "Tanh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """From a pooled state to logits."""

    kind: PoolingKind
    steps: tuple[Step, ...]
    labels: tuple[str, ...]
    activation: ScoreActivation


def is_classifier(raw: Mapping[str, Any], stored: StoredPooling) -> bool:
    """Return whether a checkpoint says that it is one."""
    names = raw.get("architectures") or [""]
    is_named = str(names[0]).endswith(_SEQUENCE)
    return is_named or stored.score is not None or bool(raw.get(_SCORE_TOKENS))


def read_classifier(
    model_dir: Path, raw: Mapping[str, Any], stored: StoredPooling, settings: PoolingSettings
) -> Classifier:
    """Return a checkpoint's classifier.

    Raises:
        ModelLoadError: it has none, or a tensor or value is missing or wrong; names it.
    """
    names = settings.score_tokens or raw.get(_SCORE_TOKENS)
    if names or stored.score is not None:
        return _of_tokens(model_dir, raw, stored, names)
    match raw.get("model_type"):
        case "bert":
            begin, steps = "bert.", ("pooler.dense", "classifier")
        case "roberta" | "xlm-roberta" | "camembert":
            begin, steps = "", ("classifier.dense", "classifier.out_proj")
        case "modernbert":
            return _modern(model_dir, raw)
        case _:
            return _of_decoder(model_dir, raw)
    dense, out = steps
    prefix = begin if begin and _has(model_dir, f"{begin}{dense}.weight") else ""
    found = read_tensors(
        model_dir,
        [f"{name}.{kind}" for name in (prefix + dense, out) for kind in ("weight", "bias")],
    )
    hidden = Linear(
        found[f"{prefix}{dense}.weight"], found[f"{prefix}{dense}.bias"], ACTIVATIONS["Tanh"]
    )
    last = Linear(found[f"{out}.weight"], found[f"{out}.bias"])
    return _classifier(raw, PoolingKind.CLS, (hidden, last), len(last.weight))


def _modern(model_dir: Path, raw: Mapping[str, Any]) -> Classifier:
    pooling = raw.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise ModelLoadError(f"{model_dir}: classifier_pooling {pooling!r} is neither cls nor mean")
    act = raw.get("classifier_activation", "gelu")
    if act not in _ACTS:
        raise ModelLoadError(f"{model_dir}: classifier_activation {act!r} is not supported")
    names = ["head.dense.weight", "head.norm.weight", "classifier.weight", "classifier.bias"]
    names += ["head.dense.bias"] if raw.get("classifier_bias") else []
    names += ["head.norm.bias"] if raw.get("norm_bias") else []
    found = read_tensors(model_dir, names)
    steps = (
        Linear(found["head.dense.weight"], found.get("head.dense.bias"), ACTIVATIONS[_ACTS[act]]),
        LayerNorm(
            found["head.norm.weight"],
            found.get("head.norm.bias"),
            float(raw.get("norm_eps", 1e-5)),
        ),
        Linear(found["classifier.weight"], found["classifier.bias"]),
    )
    kind = PoolingKind.CLS if pooling == "cls" else PoolingKind.MEAN
    return _classifier(raw, kind, steps, len(found["classifier.weight"]))


def _of_decoder(model_dir: Path, raw: Mapping[str, Any]) -> Classifier:
    bias = ["score.bias"] if _has(model_dir, "score.bias") else []
    found = read_tensors(model_dir, ["score.weight", *bias])
    score = Linear(found["score.weight"], found.get("score.bias"))
    return _classifier(raw, PoolingKind.LAST, (score,), len(score.weight))


def _of_tokens(
    model_dir: Path, raw: Mapping[str, Any], stored: StoredPooling, names: Sequence[str] | None
) -> Classifier:
    """Score by the output head: the logit of "yes", less that of "no"."""
    true_token: int | None
    if names:
        if len(names) != 2:
            raise ModelLoadError(f"{model_dir}: a score is of two tokens, not of {len(names)}")
        tokenizer = Tokenizer.load(model_dir)
        false_token, true_token = (tokenizer.token_id(str(name)) for name in names)
        if false_token is None or true_token is None:
            raise ModelLoadError(f"{model_dir}: its tokenizer lacks a token of {list(names)}")
    else:
        assert stored.score is not None
        true_token, false_token = stored.score.true_token, stored.score.false_token
    head = _head(model_dir, [true_token, *([] if false_token is None else [false_token])])
    weight = head[:1] if false_token is None else head[:1] - head[1:]
    return _classifier(raw, PoolingKind.LAST, (Linear(weight),), 1)


def _head(model_dir: Path, token_ids: Sequence[int]) -> Tensor:
    """Return these tokens' rows of the output head."""
    name = next((name for name in _HEADS if _has(model_dir, name)), None)
    if name is None:
        raise ModelLoadError(f"{model_dir} has no output head to score with")
    weight = read_tensors(model_dir, [name])[name]
    if max(token_ids) >= len(weight):
        raise ModelLoadError(f"{model_dir}: the output head has no token {max(token_ids)}")
    return weight[torch.tensor(token_ids)].clone()


def _has(model_dir: Path, name: str) -> bool:
    return any(name in read_headers(path) for path in find_checkpoint_files(model_dir).shards)


def _classifier(
    raw: Mapping[str, Any], kind: PoolingKind, steps: tuple[Step, ...], num_labels: int
) -> Classifier:
    named = raw.get("id2label")
    labels = tuple(f"LABEL_{number}" for number in range(num_labels))
    if isinstance(named, dict) and len(named) == num_labels:
        labels = tuple(str(named.get(str(n), labels[n])) for n in range(num_labels))
    return Classifier(
        kind=kind, steps=steps, labels=labels, activation=_activation(raw, num_labels)
    )


def _activation(raw: Mapping[str, Any], num_labels: int) -> ScoreActivation:
    """Return what makes scores of logits: as sentence-transformers' key says, or the problem."""
    own = raw.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, dict) else None
    named = named or raw.get("sbert_ce_default_activation_function")
    if named is not None:
        name = str(named).rpartition(".")[2].lower()
        if name == "identity":
            return ScoreActivation.NONE
        if name not in (ScoreActivation.SIGMOID, ScoreActivation.SOFTMAX):
            raise ModelLoadError(f"config.json: activation {str(named)[:80]!r} is not supported")
        return ScoreActivation(name)
    match raw.get("problem_type"):
        case "regression":
            return ScoreActivation.NONE
        case "multi_label_classification":
            return ScoreActivation.SIGMOID
        case _:
            return ScoreActivation.SIGMOID if num_labels == 1 else ScoreActivation.SOFTMAX
