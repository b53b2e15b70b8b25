// From tokens to rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "decoder/row_products.h"
#include "decoder/workspace.h"

namespace baton {

// What a step's tokens bring along: rows of the residual stream, and inputs of layers.
template <class Dot>
class Embedding {
 public:
  Embedding(Workspace<Dot>& work, RowProducts<Dot>& products) : work_(work), products_(products) {}

  void enter(const Batch& batch) {
    const int size = work_.shape.hidden_size;
    work_.rows_of(batch.num_tokens, [&](int row, int) {
      std::memcpy(work_.x.row(row), batch.stream + size_t(row) * size, size * sizeof(float));
    });
  }

  void embed(const Batch& batch) {
    const int size = work_.shape.hidden_size;
    if (!work_.ranks.alone()) {
      work_.rows_of(batch.num_tokens,
                    [&](int row, int) { embed_token(batch.token_ids[row], work_.added.row(row)); });
      work_.ranks.sum(work_.added.row(0), size_t(batch.num_tokens) * work_.added.stride);
    }
    work_.rows_of(batch.num_tokens, [&](int row, int) {
      float* x = work_.x.row(row);
      if (batch.given_at != nullptr && batch.given_at[row] >= 0)
        std::memcpy(x, batch.given + size_t(batch.given_at[row]) * size, size * sizeof(float));
      else if (work_.ranks.alone())
        embed_token(batch.token_ids[row], x);
      else
        std::memcpy(x, work_.added.row(row), size * sizeof(float));
      if (work_.weights.positions != nullptr)
        add_row(x, 1.0f, work_.weights.positions + size_t(batch.positions[row]) * size, size);
    });
  }

  // Zeros, if another rank has the token's row.
  void embed_token(int64_t token, float* to) {
    const int size = work_.shape.hidden_size;
    const int64_t own = token - work_.shape.first_token;
    if (own < 0 || own >= work_.shape.num_tokens) {
      std::fill_n(to, size, 0.0f);
      return;
    }
    if (work_.weights.embedding == nullptr)
      unpack_column(*work_.weights.head, int(own), to);
    else
      widen_stored(to, work_.weights.embedding, work_.weights.embedding_kind, size_t(own) * size, size);
    if (work_.shape.embedding_multiplier != 1.0f)
      for (int i = 0; i < size; ++i) to[i] *= work_.shape.embedding_multiplier;
  }

  void put_inputs(const Operation& now, const Batch& batch) {
    const LayerInputs& own = *now.inputs;
    products_.multiply_to(work_.inputs, *now.matrix, batch.num_tokens);
    work_.rows_of(batch.num_tokens, [&](int row, int thread) {
      float* to = work_.inputs.row(row);
      float* stored = work_.float_rows[thread].data();
      scale_row(to, own.product_factor, own.num());
      for (int layer = 0; layer < own.num_layers; ++layer, to += own.size) {
        const size_t place = size_t(batch.token_ids[row]) * own.num_layers + layer;
        widen_stored(stored, own.table, own.table_kind, place * own.size, own.size);
        work_.norm(to, now.first, nullptr, own.size, to);
        add_row(to, own.table_factor, stored, own.size);
        scale_row(to, std::sqrt(0.5f), own.size);
      }
    });
  }

  void weigh(const Operation& now, int rows) {
    const int size = now.inputs->size;
    work_.rows_of(rows, [&](int row, int thread) {
      const float* input = work_.inputs.row(row) + now.layer * size;
      float* gated = work_.float_rows[thread].data();
      widen_row(gated, work_.gated.row(row), size);
      for (int i = 0; i < size; ++i) gated[i] *= input[i];
      narrow_row(work_.gated.row(row), gated, size);
    });
  }

 private:
  static void widen_stored(float* to, const void* from, Kind kind, size_t first, int size) {
    if (kind == Kind::kFloat32)
      widen_row(to, static_cast<const float*>(from) + first, size);
    else
      widen_row(to, static_cast<const uint16_t*>(from) + first, size);
  }

  Workspace<Dot>& work_;
  RowProducts<Dot>& products_;
};

}  // namespace baton
