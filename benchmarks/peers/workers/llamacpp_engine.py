"""llama.cpp's C API, batching sequences as its own server does. Runs where llama-cpp-python is.

Every sequence has a KV stream of its own (`kv_unified` off), which is the faster way where
prompts share nothing. A shared prefix is computed once in a spare sequence and copied from there.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from benchmarks.peers.workers.gguf_file import gguf_file
from benchmarks.peers.workers.wire import Many, Single, Timeline, WorkerOptions, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Tokens per call; llama.cpp splits them into pieces of its own default size.
BATCH = 2048
NUM_SEQS = 32
#: The sequence that keeps a shared prefix.
PREFIX_SEQ = NUM_SEQS
SEQ_LEN = 1536
#: Longest sequence of models whose prompts fit into SEQ_LEN.
SHORT = 4096
#: A shorter common beginning is computed by each.
MIN_PREFIX = 512


class TokenBatch:
    """A `llama_batch` over numpy arrays: filling it costs next to nothing, as it does in C."""

    def __init__(self) -> None:
        self._tokens, self._positions, self._seqs = np.zeros((3, BATCH), dtype=np.int32)
        self._wanted = np.zeros(BATCH, dtype=np.int8)
        self._counts = np.ones(BATCH, dtype=np.int32)
        # One pointer per token, to its only sequence.
        addresses = self._seqs.ctypes.data + self._seqs.itemsize * np.arange(BATCH)
        self._pointers = addresses.astype(np.uintp)
        kinds = dict(llama_cpp.llama_batch._fields_)
        self._struct = llama_cpp.llama_batch(
            token=self._tokens.ctypes.data_as(kinds["token"]),
            pos=self._positions.ctypes.data_as(kinds["pos"]),
            n_seq_id=self._counts.ctypes.data_as(kinds["n_seq_id"]),
            seq_id=self._pointers.ctypes.data_as(kinds["seq_id"]),
            logits=self._wanted.ctypes.data_as(kinds["logits"]),
        )

    def fill(
        self, tokens: np.ndarray, positions: np.ndarray, seqs: np.ndarray, wanted: np.ndarray
    ) -> Any:
        """The batch with these tokens; valid until the next call."""
        num = self._struct.n_tokens = len(tokens)
        self._tokens[:num] = tokens
        self._positions[:num] = positions
        self._seqs[:num] = seqs
        self._wanted[:num] = wanted
        return self._struct


class LlamaCppEngine:
    """Its own defaults, apart from what all engines here are given."""

    def __init__(self, options: WorkerOptions) -> None:
        llama_cpp.llama_backend_init()
        path = gguf_file(Path(options.model))
        self._model = llama_cpp.llama_load_model_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = (NUM_SEQS + 1) * (
            SEQ_LEN if options.max_model_len <= SHORT else options.max_model_len
        )
        params.n_seq_max = NUM_SEQS + 1
        params.n_batch = BATCH
        params.n_threads = params.n_threads_batch = options.threads
        params.kv_unified = False
        params.swa_full = False  # as its server has it: layers with a window keep the window
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp made no context")
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self._batch = TokenBatch()
        self._prefix: list[int] = []

    def one(self, prompt: Sequence[int], num_tokens: int) -> Single:
        """Answer one prompt."""
        started_s = time.perf_counter()
        self._forget()
        rounds = list(self._run([prompt], num_tokens, start=0))
        return Single(
            times_s=[at_s - started_s for at_s, _ in rounds],
            token_ids=[int(tokens[0]) for _, tokens in rounds],
        )

    def many(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Many:
        """Answer all prompts."""
        timeline = Timeline(len(prompts))
        everybody = {str(number): 1 for number in range(len(prompts))}
        for _ in self._run(prompts, num_tokens, start=self._share_prefix(prompts)):
            timeline.add(everybody)
        return timeline.end()

    def describe(self) -> dict[str, Any]:
        """Version of the binding; it pins the version of llama.cpp."""
        return {"version": llama_cpp.__version__, "kv_cache": "f16, its default"}

    def _run(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, *, start: int
    ) -> Iterator[tuple[float, np.ndarray]]:
        """Rounds of one token of every sequence, and when each was there."""
        last = self._prefill(prompts, start)
        yield time.perf_counter(), last
        seqs = np.arange(len(prompts))
        lengths = np.array([len(prompt) for prompt in prompts])
        for number in range(num_tokens - 1):
            self._decode(last, lengths + number, seqs, np.ones(len(seqs), dtype=np.int8))
            last = np.array([self._most_likely(int(index)) for index in seqs])
            yield time.perf_counter(), last

    def _prefill(self, prompts: Sequence[Sequence[int]], start: int) -> np.ndarray:
        tokens = np.concatenate([prompt[start:] for prompt in prompts])
        lengths = [len(prompt) - start for prompt in prompts]
        positions = np.concatenate([start + np.arange(length) for length in lengths])
        seqs = np.repeat(np.arange(len(prompts)), lengths)
        wanted = np.zeros(len(tokens), dtype=np.int8)
        wanted[np.cumsum(lengths) - 1] = 1
        last = np.zeros(len(prompts), dtype=np.int64)
        for begin in range(0, len(tokens), BATCH):
            part = slice(begin, begin + BATCH)
            self._decode(tokens[part], positions[part], seqs[part], wanted[part])
            for index in np.flatnonzero(wanted[part]):
                last[seqs[begin + index]] = self._most_likely(int(index))
        return last

    def _decode(
        self, tokens: np.ndarray, positions: np.ndarray, seqs: np.ndarray, wanted: np.ndarray
    ) -> None:
        code = llama_cpp.llama_decode(
            self._context, self._batch.fill(tokens, positions, seqs, wanted)
        )
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")

    def _most_likely(self, index: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, index)
        return int(np.argmax(np.ctypeslib.as_array(logits, (self._vocab_size,))))

    def _share_prefix(self, prompts: Sequence[Sequence[int]]) -> int:
        """Give every sequence what all prompts begin with; returns how many tokens that is."""
        length = _common_length(prompts)
        if length < MIN_PREFIX:
            self._forget()
            return 0
        prefix = list(prompts[0][:length])
        if prefix != self._prefix:
            self._forget()
            seqs, nothing = np.full(length, PREFIX_SEQ), np.zeros(length, dtype=np.int8)
            for begin in range(0, length, BATCH):
                part = slice(begin, begin + BATCH)
                tokens = np.array(prefix[part])
                self._decode(tokens, np.arange(length)[part], seqs[part], nothing[part])
            self._prefix = prefix
        for seq in range(len(prompts)):
            llama_cpp.llama_memory_seq_rm(self._memory, seq, -1, -1)
            llama_cpp.llama_memory_seq_cp(self._memory, PREFIX_SEQ, seq, -1, -1)
        return length

    def _forget(self) -> None:
        llama_cpp.llama_memory_clear(self._memory, False)
        self._prefix = []


def _common_length(prompts: Sequence[Sequence[int]]) -> int:
    """Leading tokens that all prompts share; at least one token of each is left to compute."""
    if len(prompts) == 1:
        return 0
    shortest = min(len(prompt) for prompt in prompts)
    rows = np.array([prompt[:shortest] for prompt in prompts])
    different = np.flatnonzero((rows != rows[0]).any(axis=0))
    return min(int(different[0]) if len(different) else shortest, shortest - 1)


if __name__ == "__main__":
    serve(LlamaCppEngine)
