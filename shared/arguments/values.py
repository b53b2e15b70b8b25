"""Words of ours for the values of vLLM's arguments that are spelled differently here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BACKENDS = {"TRITON_ATTN": "triton", "CPU_ATTN": "native", "TORCH_SDPA": "torch"}
_EVENTS = {
    "endpoint": "--kv-events-endpoint",
    "replay_endpoint": "--kv-events-replay-endpoint",
    "topic": "--kv-events-topic",
}
#: Keys of --kv-events-config that change nothing.
_EVENTS_HARMLESS = frozenset({"enable_kv_cache_events", "publisher", "buffer_steps", "hwm"})
_EVENTS_HARMLESS |= {"max_queue_size"}
#: By vLLM's older word: runner and conversion.
_TASKS = {
    "auto": ("auto", "auto"),
    "generate": ("generate", "none"),
    "embed": ("pooling", "embed"),
    "embedding": ("pooling", "embed"),
    "reward": ("pooling", "embed"),
    "classify": ("pooling", "classify"),
    "score": ("pooling", "classify"),
}
#: The batch sizes that are recorded by default, up to the largest: 1, 2, 4, 8, then by 16.
_FIRST_SIZES = (1, 2, 4, 8)
_SIZE_STEP = 16


def task(word: str) -> list[str]:
    """Return the words for what a model is run for, in one word.

    Raises:
        ConfigError: there is no such task.
    """
    if word not in _TASKS:
        raise ConfigError(f"--task must be one of {', '.join(_TASKS)}, not {word}")
    runner, conversion = _TASKS[word]
    return ["--runner", runner, "--convert", conversion]


def either(flag: str, names: Mapping[str, str]) -> Callable[[str], list[str]]:
    """Return a writer that replaces the names; others stay as they are."""
    return lambda word: [flag, names.get(word, word)]


def lower(flag: str) -> Callable[[str], list[str]]:
    """Return a writer of the word in small letters."""
    return lambda word: [flag, word.lower()]


def on_or_off(flag: str) -> Callable[[str], list[str]]:
    """Return a writer of a switch, for `True` and `False`."""
    return lambda word: [flag if word == "True" else flag.replace("--", "--no-", 1)]


def word_list(flag: str) -> Callable[[str], list[str]]:
    """Return a writer of a list as one word, in which commas are no separators."""
    return lambda word: [flag, json.dumps(word.split())]


def lora_modules(word: str) -> list[str]:
    """Return the words for adapters as one list: `name=path` words, JSON objects, such lists.

    Raises:
        ConfigError: an object or a list is not valid JSON.
    """
    entries: list[str] = []
    rest = word.strip()
    while rest:
        if rest[0] not in "{[":
            entry, _, rest = rest.partition(" ")
            entries.append(entry)
        else:
            try:
                given, end = json.JSONDecoder().raw_decode(rest)
            except ValueError as error:
                message = f"--lora-modules: {rest!r} is not valid JSON: {error}"
                raise ConfigError(message) from error
            # A list is what this function has written: words may be read twice.
            items = given if isinstance(given, list) else [given]
            entries += [item if isinstance(item, str) else json.dumps(item) for item in items]
            rest = rest[end:]
        rest = rest.strip()
    return ["--lora-modules", json.dumps(entries)]


def length(flag: str) -> Callable[[str], list[str]]:
    """Return a writer of a length; `auto` and -1 leave it to the model and the memory."""
    return lambda word: [] if word.lower() in {"auto", "-1"} else [flag, word]


def backend(word: str) -> list[str]:
    """Return the words for a backend of attention."""
    return ["--attention-backend", _BACKENDS.get(word.upper(), word)]


def only_backend(word: str) -> list[str]:
    """Return the words for an object whose only key is the backend.

    Raises:
        ConfigError: it has others.
    """
    given = _object("--attention-config", word)
    name = given.pop("backend", None)
    _require_nothing("--attention-config", given)
    return [] if name is None else backend(str(name))


def graph_sizes_up_to(word: str) -> list[str]:
    """Return the words for all default sizes up to the largest.

    Raises:
        ConfigError: it is no number.
    """
    try:
        largest = int(word)
    except ValueError as error:
        message = f"--max-cudagraph-capture-size has a bad value {word!r}: it is no whole number"
        raise ConfigError(message) from error
    sizes = [*_FIRST_SIZES, *range(_SIZE_STEP, largest + 1, _SIZE_STEP)]
    return ["--cuda-graph-sizes", ",".join(str(size) for size in sizes if size <= largest)]


def key_of_speculation(key: str) -> Callable[[str], list[str]]:
    """Return a writer of one key of --speculative-config."""
    return lambda word: [f"--speculative-config.{key}", word]


def structured_outputs(word: str) -> list[str]:
    """Return the words for the keys that have settings here.

    Raises:
        ConfigError: other keys change something.
    """
    given = _object("--structured-outputs-config", word)
    found: list[str] = []
    if "backend" in given:
        found += ["--structured-outputs-backend", str(given.pop("backend"))]
    if given.get("reasoning_parser"):
        found += ["--reasoning-parser", str(given.pop("reasoning_parser"))]
    _require_nothing("--structured-outputs-config", given)
    return found


def reasoning(word: str) -> list[str]:
    """Return the words for a parser of reasoning, or for its two marks.

    Raises:
        ConfigError: there is one mark alone, or other keys change something.
    """
    given = _object("--reasoning-config", word)
    found: list[str] = []
    if given.get("reasoning_parser"):
        found += ["--reasoning-parser", str(given.pop("reasoning_parser"))]
    marks = [given.pop(f"reasoning_{side}_str", None) for side in ("start", "end")]
    if all(marks):
        found += ["--reasoning-marks", json.dumps(marks)]
    elif any(marks):
        message = "--reasoning-config: reasoning_start_str and reasoning_end_str need each other"
        raise ConfigError(message)
    _require_nothing("--reasoning-config", given)
    return found


def kv_events(word: str) -> list[str]:
    """Return the words for events over ZeroMQ; none where events are off.

    Raises:
        ConfigError: another publisher is asked for, or a key is unknown.
    """
    given = _object("--kv-events-config", word)
    if not given.get("enable_kv_cache_events", False):
        return []
    if given.get("publisher", "zmq") not in {None, "zmq"}:
        raise ConfigError("--kv-events-config: the only publisher is zmq")
    found = ["--kv-events-endpoint", str(given.pop("endpoint", "tcp://127.0.0.1:5557"))]
    for key in ("replay_endpoint", "topic"):
        if given.get(key):
            found += [_EVENTS[key], str(given.pop(key))]
    _require_nothing(
        "--kv-events-config", {k: v for k, v in given.items() if k not in _EVENTS_HARMLESS}
    )
    return found


def profiler(word: str) -> list[str]:
    """Return the words for PyTorch's profiler; none where nothing is to be profiled.

    Raises:
        ConfigError: another profiler is asked for, a key is unknown, or one lacks the other.
    """
    given = _object("--profiler-config", word)
    kind, folder = given.pop("profiler", None), given.pop("torch_profiler_dir", "")
    _require_nothing("--profiler-config", given)
    if kind not in {None, "torch"}:
        raise ConfigError("--profiler-config: the only profiler is torch")
    if bool(kind) != bool(folder):
        raise ConfigError(
            '--profiler-config: "profiler": "torch" and torch_profiler_dir need each other'
        )
    return ["--profiler-dir", str(folder)] if kind else []


def _object(flag: str, word: str) -> dict[str, Any]:
    try:
        given = json.loads(word)
    except ValueError as error:
        raise ConfigError(f"{flag} is not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise ConfigError(f"{flag} must be a JSON object, not {word!r}")
    return given


def _require_nothing(flag: str, left: Mapping[str, Any]) -> None:
    """Refuse keys that change something and have no setting here."""
    for key, value in left.items():
        if value not in (None, False, "", {}, []):
            raise ConfigError(f"{flag}: {key} cannot be set here; leave it out")
