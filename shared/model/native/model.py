"""A CausalModel for CPUs, computed by the native decoder."""

from __future__ import annotations

import copy
import weakref
from ctypes import byref
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from kernels.native.kinds import Kind, Outcome
from kernels.native.structures import Operation, Shape, Step, Weights
from shared.errors import InternalError
from shared.model.native.adapters import PackedAdapter, adapter_rows, linears_taking_adapters
from shared.model.native.call import DecoderCall, PreparedStep
from shared.model.native.owned_rows import OwnedRows
from shared.model.native.program import build_program
from shared.model.native.records.batch import batch_record, place_states, pointer
from shared.model.native.records.kv_memory import kv_memory
from shared.model.spec.norms import NormKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from kernels.sampling.native import RowChoices
    from shared.model.adapted.base import AdapterWeights
    from shared.model.attention.base import AttentionMetadata
    from shared.model.decoder.causal_lm import CausalLM
    from shared.model.given_embeds import GivenEmbeds
    from shared.model.native.packing.packing import Packing

#: Formats of the weights, by name.
WEIGHT_KINDS = {"float32": Kind.FLOAT32, "bfloat16": Kind.BFLOAT16, "int8": Kind.INT8}


class NativeCausalLM:
    """Takes the packed weights of a loaded CausalLM, which is empty afterwards.

    Activations between the layers are float32. A token's result has the same bits for any batch and
    any cut of its prompt, so a recomputation gives equal results. Not for two threads at a time.
    """

    #: What computes, as `attention_backend` calls it.
    backend_name = "native"

    def __init__(self, model: CausalLM, packing: Packing) -> None:
        """Make the model. `packing` is the method that the model was loaded with.

        Models on the same threads never compute at the same time.
        """
        self._library = packing.threads.library
        self.spec = spec = model.spec
        inputs = spec.layer_inputs
        #: Of a KV cache that is not quantised.
        self.dtype = model.dtype
        self._element = WEIGHT_KINDS[str(model.dtype).removeprefix("torch.")]
        self.threads = packing.threads
        self._packing = packing
        self._packed = packing.pack(model)
        self._adapted = linears_taking_adapters(model)
        #: By slot.
        self._adapters: dict[int, PackedAdapter] = {}
        self._shape = Shape(
            hidden_size=spec.hidden_size,
            intermediate_size=max(spec.inner_size, inputs.size if inputs else 0),
            vocab_size=spec.vocab_size,
            first_token=self._tokens.start,
            num_tokens=len(self._tokens),
            token_room=spec.num_rows,
            norm_eps=spec.norm.eps,
            centers=spec.norm.kind is NormKind.LAYER,
            # Rounded to the dtype of the weights, as PyTorch's executor does.
            embedding_multiplier=float(torch.tensor(spec.embedding_multiplier, dtype=model.dtype)),
            logit_multiplier=spec.logit_multiplier,
            logit_cap=spec.logit_softcap or 0.0,
        )
        #: Those with states are the others.
        self._num_groups = spec.num_token_groups
        self._captured_layers = torch.empty(0, dtype=torch.int32)
        self._captures_behind = False
        self._begin(spec.computed)

    def of_layers(self, numbers: Sequence[int]) -> NativeCausalLM:
        """See `CausalLM.of_layers`."""
        short = copy.copy(self)
        # The decoder is this model's: the copy deletes only one of its own.
        short._decoder = None
        short._begin(numbers)
        return short

    def _begin(self, numbers: Sequence[int]) -> None:
        """Make a decoder of these layers on the packed weights, with memory of its own."""
        packed, first = self._packed, self.spec.computed.start
        layers = {number: packed.layers[number - first] for number in numbers}
        program = build_program(self.spec, layers, packed.inputs)
        weights = Weights(
            program=(Operation * len(program))(*program),
            program_size=len(program),
            norm=packed.norm.weight,
            norm_bias=packed.norm.bias,
            head=packed.head,
            embedding=packed.embedding,
            embedding_kind=packed.embedding_kind,
            positions=packed.positions,
        )
        self._decoder = self._library.baton_decoder_new(
            self.threads.pool, byref(self._shape), byref(weights), self._element
        )
        if not self._decoder:
            raise InternalError(f"no native decoder of a {self.dtype} model")
        self._hidden = OwnedRows(self.spec.hidden_size)
        self._logits = OwnedRows(self.spec.vocab_size)
        self._captured_memory = OwnedRows(self.spec.hidden_size)
        #: Captured states of the last `forward`, by layer.
        self._captured: dict[int, Tensor] = {}
        #: The last step in parts, while anything refers to it, and what computes beside it.
        self._in_parts: weakref.ref[DecoderCall] | None = None
        self._beside: NativeCausalLM | None = None

    @property
    def pool(self) -> int:
        """The library's threads: they have no work between the model's calls."""
        return self.threads.pool

    @property
    def is_recordable(self) -> bool:
        """See `CausalModel.is_recordable`."""
        return self.spec.is_recordable

    @property
    def embeds_width(self) -> int:
        """See `CausalModel.embeds_width`."""
        return self.spec.embeds_width

    @property
    def why_no_embeds(self) -> str | None:
        """See `CausalModel.why_no_embeds`."""
        return self.spec.why_no_embeds

    @property
    def num_weight_bytes(self) -> int:
        """Memory of the packed weights in bytes."""
        return self._packing.num_bytes

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None = None,
    ) -> Tensor:
        """Return hidden states float32 [num_wanted, hidden] after the last norm; write all tokens'
        KV.

        They belong to the caller.

        token_ids, positions: int64 [num_tokens], packed as `metadata` says; kv_caches, one per
        group of the spec, over the same blocks: [num_blocks, num_layers, kinds, num_kv_heads,
        block_size, head_dim]; those of groups with states float32
        [num_blocks, num_layers, state_size].
        """
        wanted = metadata.wanted
        if wanted is not None and self._captures_behind:
            # After the last layer that keeps something only wanted rows are computed.
            every = replace(metadata, wanted=None)
            return self.forward(token_ids, positions, kv_caches, every, given)[wanted]
        model = self._idle()
        call = model._call(token_ids, positions, kv_caches, metadata, given)
        call.advance()
        self._captured = model._captured
        return call.hidden

    def begin_forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None = None,
    ) -> DecoderCall:
        """Return a `forward` of which nothing is computed yet, for one step at a time.

        While it is not over the model's other calls compute beside it, with memory of their own.
        The tensors must not change until then.
        """
        before = None if self._in_parts is None else self._in_parts()
        if before is not None and not before.is_over:
            raise InternalError("a step in parts begins beside another one")
        call = self._call(token_ids, positions, kv_caches, metadata, given)
        self._in_parts = weakref.ref(call)
        return call

    def _idle(self) -> NativeCausalLM:
        """Return the model, or beside a step in parts a copy with memory of its own."""
        if self._in_parts is None:
            return self
        call = self._in_parts()
        if call is None or call.is_over:
            self._in_parts = None
            return self
        if self._beside is None:
            self._beside = self.of_layers(self.spec.computed)
        self._beside._captured_layers = self._captured_layers
        return self._beside

    def prepare_step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None,
        choices: RowChoices,
    ) -> PreparedStep:
        """Return a step that chooses a token behind each wanted one, of which nothing is computed.

        It may be computed again, with what its tensors hold then.
        """
        num_rows = len(choices.rows)
        logits = self._logits.take(num_rows)
        step, inputs = self._step(token_ids, positions, kv_caches, metadata, given)
        step.logits = logits.data_ptr()
        return PreparedStep(self, step, choices, inputs=(logits, inputs))

    def compute_step(self, step: Step) -> None:
        """Compute a step as a whole."""
        self.threads.take_caller()
        num_tokens = step.batch.num_tokens
        stream = self._stream(num_tokens)
        if stream is not None:
            step.batch.stream = stream.data_ptr()
        outcome = self._library.baton_decoder_advance(self._idle()._decoder, byref(step), True, -1)
        if outcome:
            self._check(outcome, f"the activations of {num_tokens} tokens")

    def _call(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None,
    ) -> DecoderCall:
        """Return the call of the library that computes a step, of which nothing is computed yet."""
        self.threads.take_caller()
        wanted = metadata.wanted
        hidden = self._hidden.take(len(token_ids) if wanted is None else len(wanted))
        step, inputs = self._step(token_ids, positions, kv_caches, metadata, given)
        step.hidden = hidden.data_ptr()
        layers, captured = self._captured_layers, self._take_captured(len(token_ids))
        if captured is not None:
            step.batch.captured_layers, step.batch.num_captured = layers.data_ptr(), len(layers)
            step.batch.captured = captured.data_ptr()
        stream = self._stream(len(token_ids))
        if stream is not None:
            step.batch.stream = stream.data_ptr()
        return DecoderCall(
            self._library,
            self._decoder,
            step,
            hidden,
            check=self._check,
            inputs=(stream, inputs),
        )

    def _step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None,
    ) -> tuple[Step, object]:
        """Return a step without results, in the library's format, and what it points to."""
        batch = batch_record(token_ids, positions, metadata, self._num_groups)
        #: Beside what the caller keeps.
        own: tuple[Tensor, ...] = ()
        if given is not None and self.spec.begins:
            own = rows, places = self._given(given, len(token_ids))
            batch.given, batch.given_at = rows.data_ptr(), places.data_ptr()
        if metadata.adapters is not None:
            records = adapter_rows(metadata.adapters.tokens, self._adapters)
            batch.adapter_rows, batch.num_adapter_rows = records, len(records)
        if self.spec.has_states:
            assert metadata.states is not None  # the batch of a model with states
            place_states(batch, kv_caches[self._num_groups :], metadata.states)
        step = Step(
            batch=batch,
            kv=kv_memory(kv_caches[: self._num_groups], self.dtype),
            collective=self._group,
        )
        return step, (token_ids, positions, metadata, own)

    @property
    def _tokens(self) -> range:
        """Those whose rows the embedding and the head have."""
        return range(self.spec.vocab_size)

    @property
    def _group(self) -> int | None:
        """The library's handle of the ranks' group; None: there is one rank."""
        return None

    def _stream(self, num_tokens: int) -> Tensor | None:
        """Return what the first layer reads, float32 [num_tokens, hidden]; None: embeddings."""
        return None

    def _check(self, outcome: int, what: str) -> None:
        """Raise the error of a call that needed memory for `what`."""
        if outcome == Outcome.NO_MEMORY:
            raise MemoryError(f"no memory for {what}")

    @property
    def adapter_linears(self) -> Mapping[str, tuple[int, int]]:
        """See `AdaptableModel.adapter_linears`."""
        return {path: linear.sizes for path, linear in self._adapted.items()}

    def prepare_adapter(self, weights: AdapterWeights) -> PackedAdapter:
        """See `AdaptableModel.prepare_adapter`."""
        return PackedAdapter(
            self._library,
            self._adapted,
            weights,
            self._adapters,
            dtype=self.dtype,
            element=self._element,
        )

    def set_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        """See `AdaptableModel.set_adapter`."""
        self._adapters.pop(slot, None)
        if weights:
            self.prepare_adapter(weights).place(slot)

    def _given(self, given: GivenEmbeds, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Return the rows as the first layer reads them, and by token the number of its row."""
        rows = given.rows.to(self.dtype).float()
        if self.spec.multiplies_given:
            rows = rows * self._shape.embedding_multiplier
        places = torch.full((num_tokens,), -1, dtype=torch.int32)
        places[given.at] = torch.arange(len(rows), dtype=torch.int32)
        return rows.contiguous(), places

    def _take_captured(self, num_tokens: int) -> Tensor | None:
        """Return memory for the captured layers' rows, concatenated; None if there are none."""
        self._captured = {}
        layers = self._captured_layers.tolist()
        if not layers:
            return None
        rows = self._captured_memory.take(len(layers) * num_tokens)
        self._captured = dict(zip(layers, rows.split(num_tokens), strict=True))
        return rows

    @property
    def hidden_dtype(self) -> torch.dtype:
        """Dtype of hidden states in `forward` and `compute_logits`."""
        return torch.float32

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings, float32 [n, hidden], of int64 [n]."""
        out = torch.empty(len(token_ids), self.spec.hidden_size, dtype=torch.float32)
        tokens, count = pointer(token_ids, torch.int64), len(token_ids)
        outcome = self._library.baton_decoder_embeddings(
            self._idle()._decoder, tokens, count, self._group, out.data_ptr()
        )
        self._check(outcome, f"the embeddings of {count} tokens")
        return out

    def capture_layers(self, layers: tuple[int, ...]) -> None:
        """Keep the residual stream at the input of these layers in every `forward` from now on.

        `num_layers` means the output of the last layer.
        """
        self._captured_layers = torch.tensor(layers, dtype=torch.int32).unique()
        keeping = max(filter(self.spec.keeps, self.spec.computed), default=0)
        self._captures_behind = max(layers, default=0) > keeping

    def captured(self) -> dict[int, Tensor]:
        """Return the states of the last `forward`: float32 [num_tokens, hidden] by layer, of all
        tokens.

        They belong to the caller: the next `forward` has memory of its own.
        """
        return self._captured

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [n, vocab_size] of float32 [n, hidden]; they are the caller's."""
        rows, model = len(hidden), self._idle()
        logits = model._logits.take(rows)
        outcome = self._library.baton_decoder_logits(
            model._decoder, pointer(hidden, torch.float32), rows, self._group, logits.data_ptr()
        )
        self._check(outcome, f"the logits of {rows} tokens")
        return logits

    def __del__(self) -> None:
        # The weights are freed after it: nothing uses them any more.
        if getattr(self, "_decoder", None):
            self._library.baton_decoder_delete(self._decoder)
