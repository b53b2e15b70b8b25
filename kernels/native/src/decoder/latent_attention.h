// The rows, queries and values of latent attention.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "decoder/row_products.h"
#include "decoder/workspace.h"
#include "kv/format.h"
#include "products/multiply.h"

namespace baton {

// Attention whose keys and values are products of one row per token: what is around `kAttend`.
template <class Dot>
class LatentAttention {
  using Element = typename Dot::Element;

 public:
  LatentAttention(Workspace<Dot>& work, RowProducts<Dot>& products)
      : work_(work), products_(products), by_head_(most(work.weights, &by_head_size)) {}

  void resize(int tokens) { by_head_.resize(tokens); }

  void put_rows(const Operation& now, const Batch& batch, const KvMemory& kv) {
    const Cache<Element> cache = cache_of<Element>(now, kv);
    const Latent& own = *now.attention;
    const int64_t* slots = batch.slots[now.kv_group];
    products_.multiply_to(work_.product, *now.matrix, batch.num_tokens);
    work_.rows_of(batch.num_tokens, [&](int row, int) {
      float* x = work_.product.row(row);
      normalize(x, now.first, own.latent, own.norm_eps, x);
      rotate(x + own.latent, now.cos_sin + size_t(batch.positions[row]) * own.rope, own.rope);
      store_row(cache, int(slots[row] / cache.block_size), now.kv_place, 0, 0,
                int(slots[row] % cache.block_size), x);
    });
  }

  void put_operand(const Operation& now, int rows) {
    const Latent& own = *now.attention;
    products_.multiply_to(work_.product, *now.matrix, rows);
    work_.rows_of(rows, [&](int row, int) {
      normalize(work_.product.row(row), now.first, own.query_rank, own.norm_eps, work_.operand.row(row));
    });
  }

  void put_queries(const Operation& now, const Batch& batch) {
    const Latent& own = *now.attention;
    const int heads = now.heads.num, size = now.heads.dim, rows = batch.num_tokens;
    const int padded = round_up(own.plain, kLanes);
    products_.multiply_to(work_.product, *now.matrix, rows);
    work_.rows_of(rows, [&](int row, int) {
      const float* plain = work_.product.row(row);
      float* rotated = work_.product.row(row) + heads * own.plain;
      const float* cos_sin = now.cos_sin + size_t(batch.positions[row]) * own.rope;
      for (int head = 0; head < heads; ++head, plain += own.plain, rotated += own.rope) {
        Element* to = by_head_.row(row) + head * padded;
        std::fill(to + own.plain, to + padded, Element{});
        narrow_row(to, plain, own.plain);
        rotate(rotated, cos_sin, own.rope);
        narrow_row(work_.query.row(row) + head * size + own.latent, rotated, own.rope);
      }
    });
    multiply_heads(by_head_, heads, padded, own.up_keys, rows, [&](int row, int head, int column) {
      return std::pair(work_.query.row(row) + head * size + column, own.latent - column);
    });
  }

  void put_values(const Operation& now, int rows) {
    const Latent& own = *now.attention;
    const int heads = now.heads.num;
    multiply_heads(work_.attended, heads, now.heads.dim, own.up_values, rows,
                   [&](int row, int head, int column) {
                     return std::pair(by_head_.row(row) + head * own.value + column,
                                      own.value - column);
                   });
    work_.rows_of(rows, [&](int row, int) {
      std::copy_n(by_head_.row(row), heads * own.value, work_.attended.row(row));
    });
  }

 private:
  // Multiplies each head's part of the rows, `step` numbers apart, with a matrix of its own. place:
  // where the results of a row and head go from a column on, and how many of them exist.
  template <class Place>
  void multiply_heads(Activations<Element>& from, int heads, int step,
                      const Matrix* const* matrices, int rows, Place&& place) {
    by_heads_.clear();
    for (int head = 0; head < heads; ++head) {
      Rows part = elements(from, rows);
      part.words += size_t(head) * step / Dot::kElements;
      by_heads_.push_back({part, matrices[head], head * rows});
    }
    multiply_each<Dot>(work_.pool, by_heads_, [&](int pair, int column, const Floats* values) {
      const auto [to, left] = place(pair % rows, pair / rows, column);
      float wide[kPanel];
      for (int v = 0; v < kPanelVectors; ++v) store(wide + v * kLanes, values[v]);
      narrow_row(to, wide, std::min(kPanel, left));
    });
  }

  Rows elements(Activations<Element>& activations, int rows) {
    return Rows{reinterpret_cast<const uint32_t*>(activations.data.data()),
                size_t(activations.stride / Dot::kElements), rows};
  }

  Workspace<Dot>& work_;
  RowProducts<Dot>& products_;
  Activations<Element> by_head_;  // what is multiplied, or has been, head by head
  std::vector<Product> by_heads_;
};

}  // namespace baton
