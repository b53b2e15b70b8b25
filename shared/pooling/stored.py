"""The files that sentence-transformers writes beside a model's weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.files.json_file import read_json
from shared.pooling.base import PoolingKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: By key of old files, and by name in new ones.
_KINDS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_OWN = {"cls": PoolingKind.CLS, "mean": PoolingKind.MEAN, "lasttoken": PoolingKind.LAST}
_ROWS = ("sentence_embedding", None)


@dataclass(frozen=True, slots=True)
class StoredDense:
    """A linear behind the pooling, with an activation."""

    folder: Path
    in_size: int
    out_size: int
    has_bias: bool
    #: Name of PyTorch's class.
    activation: str
    is_residual: bool


@dataclass(frozen=True, slots=True)
class StoredNormalize:
    """The vector gets the length 1."""


@dataclass(frozen=True, slots=True)
class StoredScore:
    """A score is the logit of a token, less that of another one."""

    true_token: int
    false_token: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPooling:
    """What the files say. Without them nothing is said."""

    kind: PoolingKind | None = None
    #: Behind the pooling, in order.
    steps: tuple[StoredDense | StoredNormalize, ...] = ()
    score: StoredScore | None = None
    #: Whether there are such files at all.
    is_there: bool = False
    max_len: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None


def read_stored_pooling(model_dir: Path) -> StoredPooling:
    """Return what a checkpoint's files say of pooling.

    Raises:
        ModelLoadError: a file is damaged, or asks for what is not known here; names it.
    """
    prompts, default_prompt = _read_prompts(model_dir / "config_sentence_transformers.json")
    max_len = _read_max_len(model_dir / "sentence_bert_config.json")
    path = model_dir / "modules.json"
    if not path.exists():
        return StoredPooling(prompts=prompts, default_prompt=default_prompt, max_len=max_len)
    kind, score = None, None
    steps: list[StoredDense | StoredNormalize] = []
    for number, (what, folder) in enumerate(_modules(path)):
        if (what == "Transformer") != (number == 0):
            raise ModelLoadError(
                f"{path}: module {number} is a {what}: the first, and no other, "
                "must be a Transformer"
            )
        match what:
            case "Transformer":
                if folder != model_dir:
                    raise ModelLoadError(
                        f"{path}: the weights are in {folder.name}/, not beside it"
                    )
            case "Pooling" if kind is None and not steps:
                kind = _read_kind(folder / "config.json")
            case "Dense" if kind is not None:
                steps.append(_read_dense(folder))
            case "Normalize" if kind is not None:
                steps.append(StoredNormalize())
            case "LogitScore" if kind is None:
                score = _read_score(folder / "config.json")
            case _:
                raise ModelLoadError(
                    f"{path}: module {number}, a {what}, is not supported here; supported: "
                    "Transformer, Pooling, Dense, Normalize, in this order; LogitScore"
                )
    return StoredPooling(
        kind=kind,
        steps=tuple(steps),
        score=score,
        is_there=True,
        max_len=max_len,
        prompts=prompts,
        default_prompt=default_prompt,
    )


def _modules(path: Path) -> list[tuple[str, Path]]:
    """Return by module the last part of its class's name, and its folder."""
    content = read_json(path)
    if not isinstance(content, list) or not content:
        raise ModelLoadError(f"{path} must be a list of modules")
    found = []
    for entry in content:
        kind, folder = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (0, 0)
        if not isinstance(kind, str) or not isinstance(folder, str):
            raise ModelLoadError(f"{path}: a module needs a type and a path")
        if folder and PurePath(folder).name != folder:
            raise ModelLoadError(f"{path} names {folder[:80]!r}, which is no folder beside it")
        found.append((kind.rpartition(".")[2], path.parent / folder if folder else path.parent))
    return found


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} holds a {type(content).__name__}, not an object")
    return content


def _read_kind(path: Path) -> PoolingKind:
    raw = _object(path)
    modes = raw.get("pooling_mode")
    if modes is None:
        modes = [name for key, name in _KINDS.items() if raw.get(key)] or ["mean"]
    named = [modes] if isinstance(modes, str) else list(modes) if isinstance(modes, list) else []
    if len(named) != 1 or named[0] not in _OWN:
        raise ModelLoadError(
            f"{path}: pooling by {' and '.join(map(str, named)) or modes!r} is not supported; one "
            f"of {', '.join(_OWN)} is"
        )
    if raw.get("include_prompt", True) is not True:
        raise ModelLoadError(f"{path}: include_prompt is false, which is not supported")
    return _OWN[named[0]]


def _read_dense(folder: Path) -> StoredDense:
    path = folder / "config.json"
    raw = _object(path)
    if raw.get("module_input_name") not in _ROWS or raw.get("module_output_name") not in _ROWS:
        raise ModelLoadError(f"{path}: a Dense of anything but the pooled vector is not supported")
    return StoredDense(
        folder=folder,
        in_size=_size(path, raw, "in_features"),
        out_size=_size(path, raw, "out_features"),
        has_bias=bool(raw.get("bias", True)),
        activation=str(raw.get("activation_function", "torch.nn.modules.activation.Tanh")),
        is_residual=bool(raw.get("use_residual", False)),
    )


def _read_score(path: Path) -> StoredScore:
    raw = _object(path)
    true_token, false_token = raw.get("true_token_id"), raw.get("false_token_id")
    if not isinstance(true_token, int) or not isinstance(false_token, int | None):
        raise ModelLoadError(f"{path}: true_token_id and false_token_id must be token ids")
    return StoredScore(true_token, false_token)


def _size(path: Path, raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or not 1 <= value <= 2**18:
        raise ModelLoadError(f"{path}: {key} must be a number of features, not {value!r}")
    return value


def _read_max_len(path: Path) -> int | None:
    if not path.exists():
        return None
    raw = _object(path)
    if raw.get("do_lower_case"):
        raise ModelLoadError(f"{path}: do_lower_case is set, which is not supported")
    value = raw.get("max_seq_length")
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ModelLoadError(f"{path}: max_seq_length must be at least 1, not {value!r}")
    return value


def _read_prompts(path: Path) -> tuple[dict[str, str], str | None]:
    if not path.exists():
        return {}, None
    raw = _object(path)
    prompts, default = raw.get("prompts") or {}, raw.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(
        isinstance(text, str | None) for text in prompts.values()
    ):
        raise ModelLoadError(f"{path}: prompts must be texts by name")
    if default is not None and default not in prompts:
        raise ModelLoadError(f"{path}: default_prompt_name {default!r} is none of its prompts")
    return {name: text or "" for name, text in prompts.items()}, default
