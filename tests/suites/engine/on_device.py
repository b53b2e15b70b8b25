"""The engine on a device: overlapped and recorded steps, pinned buffers, staging.

Runs on a CPU with the stand-ins that tests have there, and on a GPU with what it runs on.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.sequence.request import KVSource
from shared.engine.settings.engine import EngineConfig
from shared.engine.step.decode_graphs import EagerRecorder
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.engine.engines import Run, drain, make_request
from tests.fakes.model.hidden_states import BOUND, rows_in

if TYPE_CHECKING:
    from shared.engine.sequence.request import EngineRequest
    from shared.model.loaded import LoadedModel

NUM_BLOCKS = 96


def requests() -> list[EngineRequest]:
    """Long and short, greedy and drawn, with and without what needs the host."""
    fields: list[dict[str, object]] = [
        {},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 0.8, "seed": 4, "top_p": 0.8, "top_k": 30},
        {"temperature": 1.0, "seed": 5, "min_p": 0.1},
        {"presence_penalty": 0.5},
        {"logprobs": 2},
        {"return_hidden_states": True},
    ]
    return [
        make_request(str(i), [(i * 31 + j) % 500 for j in range(5 + 17 * i)], max_tokens=12, **own)
        for i, own in enumerate(fields)
    ]


class EngineOnDeviceSuite:
    """Subclasses give a `device`."""

    @pytest.fixture
    def loaded(self, device: str, tmp_path: object) -> LoadedModel:
        write_random_checkpoint(tmp_path, CheckpointSpec())  # type: ignore[arg-type]
        backend = "triton" if device == "cuda" else "torch"
        return load_model(tmp_path, device=device, attention_backend=backend)  # type: ignore[arg-type]

    def engine(self, loaded: LoadedModel, device: str, **settings: object) -> Engine:
        settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64} | settings
        settings |= {"enable_return_hidden_states": True}
        config = EngineConfig(device=device, num_blocks=NUM_BLOCKS, **settings)  # type: ignore[arg-type]
        stand_in = EagerRecorder() if device == "cpu" else None
        return Engine(loaded, config, recorder=stand_in)

    def test_every_way_to_run_steps_gives_the_same_tokens(
        self, loaded: LoadedModel, device: str
    ) -> None:
        answers, rows = [], []
        for overlap in (False, True):
            for eager in (True, False):
                engine = self.engine(loaded, device, async_scheduling=overlap, enforce_eager=eager)
                for request in requests():
                    engine.add(request)
                run = drain(engine)
                answers.append([run.tokens(request.request_id) for request in requests()])
                parts = [row for event in run.new_tokens("6") for row in event.hidden_states]
                rows.append(rows_in(parts))
                assert engine.stats().num_free_blocks == NUM_BLOCKS
                engine.close()
        assert all(len(tokens) == 12 for tokens in answers[0])
        assert answers.count(answers[0]) == 4
        for each in rows:
            assert each.shape == (12, loaded.spec.hidden_size)
            np.testing.assert_allclose(each, rows[0], atol=BOUND)

    @pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
    def test_kv_in_8_bits_passes_through_every_tier(
        self, loaded: LoadedModel, device: str, kv_cache_dtype: str
    ) -> None:
        """Recorded and overlapped steps, and blocks that come back from host memory."""
        plain = self.engine(
            loaded,
            device,
            kv_cache_dtype=kv_cache_dtype,
            async_scheduling=False,
            enforce_eager=True,
        )
        tiered = self.engine(
            loaded,
            device,
            kv_cache_dtype=kv_cache_dtype,
            async_scheduling=True,
            kv_offload_host_gib=2**-6,
            kv_offload_always_load=True,
        )
        answers = []
        with closing(plain), closing(tiered):
            for engine in (plain, tiered, tiered):
                for request in requests():
                    engine.add(request)
                run = drain(engine)
                answers.append([run.tokens(request.request_id) for request in requests()])
                # Others take the pool: what was cached there is in host memory only.
                for i in range(3):
                    engine.add(make_request(f"x{i}", [7 + i] * 500, max_tokens=1))
                drain(engine)
        assert answers.count(answers[0]) == 3

    def test_padding_leaves_every_block_alone(self, loaded: LoadedModel, device: str) -> None:
        engine = self.engine(loaded, device, cuda_graph_sizes=(8,), async_scheduling=True)
        engine.add(requests()[0])
        drain(engine, until=lambda run: len(run.tokens("0")) >= 2)
        (seq,) = engine._scheduler.running
        cache = engine._parts.arena.blocks
        others = [i for i in range(NUM_BLOCKS) if i not in set(seq.tables[0])]
        assert len(cache) == NUM_BLOCKS + 1
        assert not cache[others].any()
        assert cache[list(seq.tables[0])].any()
        drain(engine)
        engine.close()

    def test_blocks_are_read_where_they_are(self, loaded: LoadedModel, device: str) -> None:
        engine = self.engine(loaded, device)
        engine.add(requests()[3])
        blocks = list(drain(engine).admitted("3")[0].tables[0])
        found = engine.device_kv().read(blocks)
        cache = engine._parts.arena.blocks
        assert found.shape == (len(blocks), engine.layout.block_bytes)
        assert torch.equal(
            torch.from_numpy(found), cache[blocks].cpu().view(torch.uint8).flatten(1)
        )
        assert found.any()
        assert engine.device_kv().address == cache.data_ptr()
        assert (engine.device_kv().device_id is None) == (device == "cpu")
        engine.close()

    def test_blocks_pass_through_the_host(self, loaded: LoadedModel, device: str) -> None:
        """A hand-off between two engines by way of one's staging memory."""
        prefill, decode = (self.engine(loaded, device) for _ in range(2))
        alone = self.engine(loaded, device)
        request = requests()[3]
        alone.add(request)
        expected = drain(alone).tokens("3")
        run = Run()
        prompt, num_tokens = request.prompt_token_ids, len(expected)
        how = {"temperature": 1.0, "seed": 5, "min_p": 0.1, "max_tokens": num_tokens}
        decode.add(make_request("3", prompt, kv_source=KVSource.TRANSFER, **how))
        drain(decode, run)
        target = run.admitted("3")[0].tables[0]
        prefill.add(make_request("3", prompt, hold_blocks=True, **how))
        sent = drain(prefill)
        source = sent.admitted("3")[0].tables[0]
        staging = [engine.stage_kv(len(source)) for engine in (prefill, decode)]
        places = list(range(len(source)))
        staging[0].to_host(source, places)
        staging[1].memory.blocks[:] = staging[0].memory.blocks
        staging[1].to_device(places, target)
        (first,) = sent.tokens("3")
        decode.complete_transfer("3", first)
        drain(decode, run)
        assert [first, *run.tokens("3")] == expected
        caches = [engine._parts.arena.blocks for engine in (prefill, decode)]
        num_full = len(prompt) // prefill.layout.block_size
        left, right = (
            cache[list(blocks[:num_full])]
            for cache, blocks in zip(caches, (source, target), strict=True)
        )
        assert torch.equal(left, right)
        del caches, left, right
        for one in staging:
            one.close()
        for engine in (prefill, decode, alone):
            engine.close()
