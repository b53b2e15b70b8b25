"""A checkpoint's files: whatever is in them, it loads or is refused, and in bounded memory."""

from __future__ import annotations

import copy
import json
import shutil
import struct
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError, InvalidRequestError, ModelLoadError
from shared.model.checkpoint.config import parse_spec
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.text.chat_template import ChatTemplate
from shared.text.generation_defaults import GenerationDefaults
from shared.text.tokenizer import Tokenizer
from tests.fakes.text import tiny_tokenizer
from tests.fuzz.cases import COUNTS, MAX_GROWTH_BYTES, memory_bytes, profile
from tests.fuzz.mutation import FLOATS, LARGE, NUMBERS, TEXTS, VALUES, mutate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPEC = CheckpointSpec(num_layers=1, hidden_size=32, num_heads=2, num_kv_heads=1, vocab_size=300)
EDGES = (*NUMBERS, *LARGE, *FLOATS, *TEXTS, 10**30, 10**400, None, True, [], {}, [1], {"a": 1})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("files") / "model"
    write_random_checkpoint(path, SPEC)
    # Code of transformers is loaded once, and is not what a file costs.
    load_model(path, model_impl="transformers")
    before = memory_bytes()
    yield path
    assert memory_bytes() - before < 4 * MAX_GROWTH_BYTES


def load(model: Path) -> None:
    try:
        load_model(model, attention_backend="torch")
    except (ModelLoadError, ConfigError):
        return


def changed(random: Random, content: Any) -> Any:
    """Other values at one to three places, at any depth."""
    content = json.loads(json.dumps(content))
    for _ in range(random.randint(1, 3)):
        target = content
        while isinstance(target, dict | list) and target:
            keys = list(target) if isinstance(target, dict) else list(range(len(target)))
            key = random.choice(keys)
            if isinstance(target[key], dict | list) and target[key] and random.random() < 0.7:
                target = target[key]
                continue
            if random.random() < 0.15:
                del target[key]
            else:
                target[key] = copy.deepcopy(random.choice(EDGES))
            break
    return content


CONFIGS = [
    {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "eos_token_id": [1, 2],
        "rope_scaling": scaling,
        "sliding_window": 64,
        "torch_dtype": "float32",
    }
    for scaling in (
        None,
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    )
]
CONFIGS.append({**CONFIGS[0], "architectures": ["MistralForCausalLM"]})
CONFIGS.append({**CONFIGS[0], "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True})


@profile(100, 1000)
@given(st.integers(0, 2**64 - 1))
def test_config(seed: int) -> None:
    """Ten at a time, parsed alone: it allocates nothing that a number in it could make large."""
    random = Random(seed)
    for _ in range(10):
        raw = changed(random, random.choice(CONFIGS))
        with suppress(ModelLoadError):
            parse_spec(raw)
    COUNTS["files: config.json"] += 10


@profile(30, 1500)
@given(st.integers(0, 2**64 - 1))
def test_config_with_weights(model: Path, seed: int) -> None:
    random = Random(seed)
    path = model / "config.json"
    before = path.read_bytes()
    try:
        raw = changed(random, json.loads(before))
        data = json.dumps(raw).encode() if random.random() < 0.8 else mutate(random, before)
        path.write_bytes(data)
        load(model)
    finally:
        path.write_bytes(before)
    COUNTS["files: config.json, loaded"] += 1


@profile(60, 6000)
@given(st.integers(0, 2**64 - 1))
def test_safetensors(model: Path, seed: int) -> None:
    """Header fields changed (shapes, offsets, dtypes, its own length), or bytes anywhere."""
    random = Random(seed)
    path = model / "model.safetensors"
    before = path.read_bytes()
    (size,) = struct.unpack_from("<Q", before)
    header, rest = before[8 : 8 + size], before[8 + size :]
    if random.random() < 0.7:
        header = json.dumps(changed(random, json.loads(header))).encode()
        length = len(header) if random.random() < 0.9 else random.choice((*NUMBERS[:6], *LARGE))
        data = struct.pack("<Q", length % 2**64) + header + rest
    else:
        data = mutate(random, before[: size + 64]) + before[size + 64 :]
    try:
        path.write_bytes(data)
        load(model)
    finally:
        path.write_bytes(before)
    COUNTS["files: safetensors"] += 1


@profile(60, 3000)
@given(st.integers(0, 2**64 - 1))
def test_tokenizer(tokenizer_dir: Path, seed: int) -> None:
    random = Random(seed)
    names = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    path = tokenizer_dir / random.choice(names)
    before = path.read_bytes()
    try:
        if random.random() < 0.7:
            path.write_text(json.dumps(changed(random, json.loads(before))))
        else:
            path.write_bytes(mutate(random, before))
        try:
            loaded = Tokenizer.load(tokenizer_dir)
            ChatTemplate.load(tokenizer_dir, loaded.special_tokens)
            GenerationDefaults.load(tokenizer_dir)
        except ConfigError:
            pass
        else:
            for token_id in range(min(loaded.vocab_size, 300)):
                loaded.token_bytes(token_id)
    finally:
        path.write_bytes(before)
    COUNTS["files: tokenizer"] += 1


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_tokenizer.save(
        tiny_tokenizer.byte_level(), tmp_path_factory.mktemp("tokenizer") / "tiny"
    )
    defaults = {"temperature": 0.5, "top_k": 3, "eos_token_id": [0], "max_new_tokens": 9}
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    shutil.copy(folder / "tokenizer_config.json", folder / "special_tokens_map.json")
    return folder


EXPRESSIONS = (
    "{{ messages }}",
    "{{ messages[0].content * 100000 }}",
    "{{ '%s' % messages[0].content }}",
    "{{ 2 ** n ** 9 }}",
    "{{ 'a'.center(n) }}",
    "{{ '{:>9}'.format(n) }}",
    "{{ n | string | center(n) }}",
    "{{ messages[0].content | indent(n) }}",
    "{{ messages | tojson(indent=n) }}",
    "{{ messages[0].content.split('')[n] }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ raise_exception(n) }}",
    "{{ strftime_now(messages[0].content) }}",
    "{% for i in range(n) %}{{ i }}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{{ m.role ~ m.content | trim }}{% endfor %}",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% set ns = namespace(x=n) %}{% set ns.x = ns.x * ns.x %}{{ ns.x }}",
    "{{ (n * n * n) | round | int // 0 }}",
    "{{ lipsum(n=n) }}",
)


@profile(60, 3000)
@given(
    st.lists(st.sampled_from(EXPRESSIONS), min_size=1, max_size=4),
    VALUES,
    st.sampled_from([*NUMBERS, *LARGE, 10**6, 10**9]),
)
def test_templates(expressions: list[str], content: Any, number: int) -> None:
    """Programs that want out, or never to end, on whatever a client sends."""
    template = ChatTemplate({"default": "".join(expressions)}, {})
    messages = [{"role": "user", "content": content}]
    with suppress(InvalidRequestError):
        assert "uid=" not in template.render(messages, extra={"n": number})
    COUNTS["files: chat templates"] += 1
