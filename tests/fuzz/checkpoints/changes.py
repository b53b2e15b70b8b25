"""Changes to a checkpoint's files that readers get wrong."""

from __future__ import annotations

import copy
import json
import struct
from typing import TYPE_CHECKING, Any

from tests.fuzz.checkpoints.gguf_fields import fields
from tests.fuzz.checkpoints.tensors import (
    ITEM_BYTES,
    Tensor,
    read_tensors,
    split_header,
    with_header,
    write_tensors,
)
from tests.fuzz.mutation import FLOATS, LARGE, NUMBERS, TEXTS, mutate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from random import Random

#: Expressions that are none, that try everything, or that fit everything.
PATTERNS = (
    "",
    "re:",
    "re:(",
    "re:[",
    "re:a{99999999999999999999}",
    "re:(?:(?:(?:a{999}){999}){999}){999}",
    "re:" + "(" * 3000 + ")" * 3000,
    "re:" + "(?:" * 90 + ".*" + ")*" * 90 + "!",
    "re:(\\w+\\.?)+!",
    "re:([a-z_.0-9]+)+!",
    "re:(?:.|.)*!",
    r"re:(?:[\w.]|[\w.]{2}|[\w.]{3})+[A-Z]",
    "re:(.*)*(.*)*(.*)*!",
    "re:^(?!.*lm_head).*",
    "re:(?P<a>.)(?P=a)",
    "re:\\1",
    "re:.*",
    "re:(?i)LM_HEAD",
    "re:\ud800",
    "*",
    "*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*!",
    "[",
    "[!",
    "-:.*",
    "-:(.+)+!",
    "+:(.+)+!",
    "model.layers.0.self_attn.q_proj",
    "*q_proj",
    "Linear",
    "lm_head",
)
SIZES = (0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 128, 200, 256, 512)
HUGE = (2**20, 2**24, 2**26, 2**27, 2**40, 2**62)
EDGES = (
    *NUMBERS,
    *LARGE,
    *FLOATS,
    *TEXTS,
    *SIZES,
    *HUGE,
    10**30,
    -(10**30),
    10**400,
    "\ud800",
    "None",
    "float32",
    "4",
    None,
    True,
    False,
    [],
    {},
    [1],
    [[]],
    {"a": 1},
    {"": None},
    [None, None],
    ["re:.*"],
)
SUFFIXES = (
    ".weight",
    ".qweight",
    ".qzeros",
    ".scales",
    ".g_idx",
    ".weight_scale",
    ".weight_scale_inv",
    ".weight_scale_2",
    ".weight_packed",
    ".weight_shape",
    ".weight_zero_point",
    ".weight_g_idx",
    ".weight_global_scale",
    ".input_scale",
    ".input_zero_point",
    ".k_scale",
    ".output_scale",
    ".pre_quant_scale",
    ".SCB",
    ".weight.absmax",
    ".weight.quant_map",
    ".weight.quant_state.bitsandbytes__nf4",
    "_blocks",
    "_scales",
    ".bias",
)


def change_header(random: Random, folder: Path) -> None:
    """What a safetensors file says of its tensors, and sometimes the tensors with it."""
    path = random.choice(sorted(folder.glob("*.safetensors")))
    if random.random() < 0.7:
        tensors = read_tensors(path)
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            _change_tensors(random, tensors)
        write_tensors(path, tensors)
        return
    before = path.read_bytes()
    header, data = split_header(before)
    kind = random.randrange(5)
    if kind == 0:
        path.write_bytes(before[: random.randrange(len(before))])
    elif kind == 1:
        path.write_bytes(mutate(random, before[: 8 + len(header)]) + data)
    elif kind == 2:
        path.write_bytes(with_header(header, data, random.choice((*NUMBERS, *LARGE))))
    elif kind == 3:
        path.write_bytes(before + random.randbytes(random.choice((1, 8, 1000))))
    else:
        changed = json.dumps(changed_at(random, json.loads(header))).encode()
        path.write_bytes(with_header(changed, data))


def _change_tensors(random: Random, tensors: dict[str, Tensor]) -> None:
    """Of one tensor: dtype, shape, name, numbers; or it is gone, or there twice."""
    if not tensors:
        return
    name = random.choice(list(tensors))
    own, kind = tensors[name], random.randrange(9)
    if kind <= 1:
        dtype = random.choice(list(ITEM_BYTES))
        tensors[name] = own.of(dtype, own.shape)
    elif kind <= 3:
        tensors[name] = own.of(own.dtype, _changed_shape(random, own.shape))
    elif kind == 4:
        del tensors[name]
    elif kind == 5:
        tensors[_changed_name(random, name, list(tensors))] = own
    elif kind == 6:
        tensors[_changed_name(random, name, list(tensors))] = tensors.pop(name)
    elif kind == 7:
        other = random.choice(list(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    else:
        item = struct.pack("<d", random.choice(FLOATS)) if random.random() < 0.3 else None
        piece = item or random.choice((b"\0", b"\xff", b"\x7f", b"\x80", b"\0\0\xc0\x7f"))
        filled = (piece * (len(own.data) // len(piece) + 1))[: len(own.data)]
        begin = random.choice((0, len(own.data) // 2, max(0, len(own.data) - 8)))
        data = own.data[:begin] + filled[begin:]
        tensors[name] = Tensor(own.dtype, own.shape, data)


def _changed_shape(random: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    sizes, kind = list(shape), random.randrange(6)
    if kind == 0:
        random.shuffle(sizes)
    elif kind == 1:
        sizes.insert(random.randrange(len(sizes) + 1), random.choice((0, 1, 1, 2)))
    elif kind == 2 and sizes:
        del sizes[random.randrange(len(sizes))]
    elif kind == 3 and sizes:
        at = random.randrange(len(sizes))
        sizes[at] = max(0, random.choice((sizes[at] - 1, sizes[at] + 1, sizes[at] * 2)))
    elif kind == 4 and sizes:
        at = random.randrange(len(sizes))
        sizes[at] //= 2
    elif sizes:
        sizes[random.randrange(len(sizes))] = random.choice(SIZES)
    return tuple(sizes)


def _changed_name(random: Random, name: str, others: Sequence[str]) -> str:
    kind = random.randrange(5)
    if kind == 0:
        return name.rpartition(".")[0] + random.choice(SUFFIXES)
    if kind == 1:
        return name + random.choice((*SUFFIXES, "\x00", "a" * 3000))
    if kind == 2:
        number = random.choice(("0", "1", "7", "99999999999999999999", "-1", "x"))
        return ".".join(number if each.isdigit() else each for each in name.split("."))
    if kind == 3:
        return "model." + name if random.random() < 0.5 else name.removeprefix("model.")
    return random.choice(others).rpartition(".")[0] + "." + name.rpartition(".")[2]


def change_config(
    random: Random, folder: Path, others: Sequence[Any], keep: frozenset[str] = frozenset()
) -> None:
    """The config.json, mostly what it says of few bits.

    others: configs of other checkpoints; keep: keys that stay as they are.
    """
    path = folder / "config.json"
    text = path.read_text()
    raw = json.loads(text)
    kept = {key: raw[key] for key in keep if key in raw}
    if random.random() < 0.04:
        path.write_bytes(_changed_text(random, text, _spelled(kept)))
        return
    key = "quantization_config"
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if isinstance(raw.get(key), dict) and random.random() < 0.75:
            raw[key] = _changed_quantization(random, raw[key], others)
        else:
            raw = changed_at(random, raw)
    raw |= kept
    if key in raw and random.random() < 0.05:
        name = random.choice(("quantize_config.json", "quant_config.json", "hf_quant_config.json"))
        (folder / name).write_text(json.dumps(raw.pop(key)))
    path.write_text(json.dumps(raw))


def _spelled(kept: dict[str, Any]) -> list[bytes]:
    """Keys and values as any text of JSON has them."""
    lists = [value if isinstance(value, list) else [value] for value in kept.values()]
    return [json.dumps(each).encode() for each in (*kept, *(own for part in lists for own in part))]


def _changed_text(random: Random, text: str, kept: Sequence[bytes] = ()) -> bytes:
    kind = random.randrange(4)
    changed = mutate(random, text.encode())
    if kind == 0 and all(each in changed for each in kept):
        return changed
    if kind <= 1:
        return text.encode()[: random.randrange(len(text))]
    depth = random.choice((500, 5000, 200_000))
    deep = "[" * depth + "]" * depth if kind == 2 else '{"a":' * depth + "1" + "}" * depth
    at = random.choice([place for place, each in enumerate(text) if each == "{"])
    return (text[: at + 1] + f'"deep": {deep}, ' + text[at + 1 :]).encode()


def _changed_quantization(random: Random, own: dict[str, Any], others: Sequence[Any]) -> Any:
    kind = random.randrange(10)
    if kind <= 3:
        return changed_at(random, own)
    if kind <= 6:
        return _with_pattern(random, own)
    other = copy.deepcopy(random.choice(others))
    if kind == 7:
        return other
    if kind == 8 and isinstance(other, dict):
        return {**other, **own} if random.random() < 0.5 else {**own, **other}
    if isinstance(other, dict) and other:
        key = random.choice(list(other))
        return {**own, key: other[key]}
    return own


def _with_pattern(random: Random, own: dict[str, Any]) -> dict[str, Any]:
    """Names of modules replaced by patterns, or patterns added where formats read them."""
    pattern = random.choice(PATTERNS)
    if random.random() < 0.5:
        key = random.choice(("ignore", "exclude", "exclude_modules", "modules_to_not_convert"))
        listed = own.get(key)
        return {**own, key: [*(listed if isinstance(listed, list) else []), pattern]}
    own = copy.deepcopy(own)
    places = [
        (each, key)
        for each in _containers(own)
        for key in (each if isinstance(each, dict) else range(len(each)))
        if (isinstance(each, list) and isinstance(each[key], str)) or isinstance(each[key], dict)
    ]
    if not places:
        return {**own, "dynamic": {pattern: {"bits": 8}}}
    target, key = random.choice(places)
    if isinstance(target, list):
        target[key] = pattern
    else:
        target[pattern] = target[key]
    return own


def _containers(content: Any) -> list[Any]:
    if not isinstance(content, dict | list):
        return []
    inner = content.values() if isinstance(content, dict) else content
    return [content, *(found for each in inner for found in _containers(each))]


def changed_at(random: Random, content: Any) -> Any:
    """JSON with one other value, at any depth."""
    content = json.loads(json.dumps(content))
    target = content
    while isinstance(target, dict | list) and target:
        key = random.choice(list(target) if isinstance(target, dict) else range(len(target)))
        if isinstance(target[key], dict | list) and target[key] and random.random() < 0.7:
            target = target[key]
            continue
        if random.random() < 0.2:
            del target[key]
        else:
            target[key] = copy.deepcopy(random.choice(EDGES))
        break
    return content


def change_files(random: Random, folder: Path) -> None:
    """Of several files: the index, and which of them are there."""
    path = random.choice(sorted(folder.glob("*.index.json")))
    if random.random() < 0.2:
        shards = sorted(folder.glob("*.safetensors"))
        random.choice(shards).unlink()
    elif random.random() < 0.2:
        path.write_bytes(_changed_text(random, path.read_text()))
    else:
        path.write_text(json.dumps(changed_at(random, json.loads(path.read_text()))))


def change_gguf(random: Random, path: Path) -> None:
    """A number of a GGUF header, or bytes of it, or its length."""
    data = bytearray(path.read_bytes())
    places = fields(bytes(data))
    kind = random.randrange(10)
    if kind == 0:
        path.write_bytes(data[: random.randrange(len(data))])
        return
    if kind == 1:
        end = places[-1].place + 8
        path.write_bytes(mutate(random, bytes(data[:end])) + data[end:])
        return
    what = random.choice(sorted({each.what for each in places}))
    for _ in range(random.choice((1, 1, 2))):
        field = random.choice([each for each in places if each.what == what])
        before = int.from_bytes(data[field.place : field.place + field.size], "little")
        number = random.choice(
            (*NUMBERS, *LARGE, *SIZES, *HUGE, before + 1, before - 1, before * 2)
        )
        if what in ("kind", "type") and random.random() < 0.8:
            number = random.randrange(42)
        value = (number % 2 ** (8 * field.size)).to_bytes(field.size, "little")
        data[field.place : field.place + field.size] = value
    path.write_bytes(data)
