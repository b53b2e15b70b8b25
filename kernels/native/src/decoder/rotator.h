// From products to queries, keys and values: norms of heads, rotation, and the cache.
#pragma once

#include <cmath>
#include <cstring>

#include "decoder/row_products.h"
#include "decoder/workspace.h"
#include "kv/format.h"
#include "products/tasks.h"

namespace baton {

// Makes queries, and keys and values of the cache, of the heads of a product.
template <class Dot>
class Rotator {
  using Element = typename Dot::Element;

 public:
  Rotator(Workspace<Dot>& work, RowProducts<Dot>& products) : work_(work), products_(products) {}

  void share_squares(const Operation& now, int rows) {
    work_.totals.reserve(size_t(rows) * 2);
    work_.rows_of(rows, [&](int row, int) {
      clip(now, row);
      float* totals = work_.totals.data() + size_t(row) * 2;
      totals[0] = sum_of_squares(work_.product.row(row), now.heads.query_size());
      const bool counts = now.whole->counts_keys && now.num_parts > 1;
      totals[1] = counts ? sum_of_squares(keys_of(now, row), now.heads.kv_size()) : 0.0f;
    });
    work_.ranks.sum(work_.totals.data(), size_t(rows) * 2);
  }

  // tokens: that of each row, or null if they are all.
  void rotate_and_store(const Operation& now, const Batch& batch, const KvMemory& kv, int rows,
                        const int64_t* tokens) {
    const Rotation by{now, batch, cache_of<Element>(now, kv), tokens};
    const int dim = now.heads.dim, heads = now.heads.num, kv_heads = now.heads.num_kv;
    const bool whole = now.head_norm == HeadNorm::kWhole;
    work_.rows_of(rows, [&](int row, int thread) {
      float* x = work_.product.row(row);
      float* keys = keys_of(now, row);
      // Lines of the cache are far away, in as many pages as there are heads: they come while queries are computed.
      if (now.num_parts > 1)
        for (int head = 0; head < kv_heads; ++head)
          for (int kind = 0; kind < by.cache.kinds; ++kind) by.fetch(row, kind, head);
      if (!now.whole) clip(now, row);
      if (whole) norm_whole(now, row, x, 0, now.first, heads * dim);
      for (int head = 0; head < heads; ++head) put_query(by, row, head, x + head * dim);
      if (now.num_parts == 1) return;
      // Values first: keys may be what they are made of.
      const float* values = now.num_parts == 2 ? keys : keys + kv_heads * dim;
      float* normed = work_.float_rows[thread].data();
      for (int head = 0; head < kv_heads; ++head) put_value(by, row, head, values + head * dim, normed);
      if (whole) norm_whole(now, row, keys, 1, now.second, kv_heads * dim);
      for (int head = 0; head < kv_heads; ++head) put_key(by, row, head, keys + head * dim);
    });
  }

  // Whether heads of queries, keys and values can be rotated where their product is computed: what they are written to
  // and read from again does not fit into a core's caches.
  static bool may_rotate_at_once(const Operation& project, const Operation& now, int rows) {
    if (now.op != Op::kRotate || now.num_parts != 3 || now.has_gate) return false;
    if (now.head_norm == HeadNorm::kWhole || now.limit != 0.0f || now.heads.dim % kPanel != 0) return false;
    return Tasks<Element>::may_stay_whole(Rows{nullptr, 0, rows}, *project.matrix, now.heads.dim / kPanel);
  }

  void project_heads(const Operation& project, const Operation& now, const Batch& batch, const KvMemory& kv, int rows,
                     const int64_t* tokens) {
    constexpr int kAheadRows = 4;
    const Rotation by{now, batch, cache_of<Element>(now, kv), tokens};
    const int dim = now.heads.dim, heads = now.heads.num, kv_heads = now.heads.num_kv;
    auto put = [&](int row, int column, const Floats* values) {
      // Panels of a head follow each other in one thread.
      alignas(64) static thread_local float numbers[kMostPanels * kPanel], normed[kMostPanels * kPanel];
      const int head = column / dim, start = column % dim, kv_head = (head - heads) % kv_heads;
      const bool is_key = head < heads + kv_heads;
      if (head >= heads + 2 * kv_heads) return;  // behind the last column
      std::memcpy(numbers + start, values, kPanel * sizeof(float));
      if (start == 0 && head >= heads && row + kAheadRows < rows) by.fetch(row + kAheadRows, is_key ? 0 : 1, kv_head);
      if (start + kPanel < dim) return;
      if (head < heads)
        put_query(by, row, head, numbers);
      else if (is_key)
        put_key(by, row, kv_head, numbers);
      else
        put_value(by, row, kv_head, numbers, normed);
    };
    products_.multiply(*project.matrix, work_.operand, rows, put, dim / kPanel);
  }

 private:
  // How the numbers of heads become queries, and keys and values of the cache.
  struct Rotation {
    const Operation& now;
    const Batch& batch;
    const Cache<Element> cache;
    const int64_t* tokens;  // that of each row, or null if they are all

    int64_t token(int row) const { return tokens ? tokens[row] : row; }
    int64_t position(int row) const { return batch.positions[token(row)]; }
    const float* cos_sin(int row) const { return now.cos_sin + size_t(position(row)) * now.heads.dim; }
    // The weight of a head's own norm, or null; first: that of the first head.
    const float* weight(const float* first, int head) const {
      if (first == nullptr || now.head_norm == HeadNorm::kWhole) return nullptr;
      return first + (now.head_norm == HeadNorm::kEachHead ? head * now.heads.dim : 0);
    }
    int64_t slot(int row) const { return batch.slots[now.kv_group][token(row)]; }
    void fetch(int row, int kind, int head) const {
      const int64_t at = slot(row);
      fetch_row(cache, int(at / cache.block_size), now.kv_place, kind, head, int(at % cache.block_size));
    }
    void store(int row, int kind, int head, const float* x) const {
      const int64_t at = slot(row);
      store_row(cache, int(at / cache.block_size), now.kv_place, kind, head, int(at % cache.block_size), x);
    }
  };

  static float query_factor(const Operation& now, int position) {
    if (now.query_step == 0) return 1.0f;
    return 1.0f + now.query_scale * std::log1p(float((position + 1) / now.query_step));
  }

  // Those of the product, behind the queries.
  float* keys_of(const Operation& now, int row) {
    return work_.product.row(row) + (now.has_gate ? 2 : 1) * now.heads.query_size();
  }

  void clip(const Operation& now, int row) {
    if (now.limit == 0.0f) return;
    clamp_row(work_.product.row(row), now.limit, now.heads.query_size());
    clamp_row(keys_of(now, row), now.limit, (now.num_parts - 1) * now.heads.kv_size());
  }

  // The norm of all heads of queries (`part` 0) or keys (1) together, in place.
  void norm_whole(const Operation& now, int row, float* x, int part, const float* weight, int size) {
    if (now.whole == nullptr) {
      work_.norm(x, weight, nullptr, size, x);
      return;
    }
    const int count = part == 0 ? now.whole->num_queries : now.whole->num_keys;
    const float factor = norm_factor(work_.totals.data()[size_t(row) * 2 + part], count, work_.shape.norm_eps);
    weigh_row(x, factor, weight, size, x);
  }

  // A head of queries; x is changed.
  void put_query(const Rotation& by, int row, int head, float* x) {
    const int dim = by.now.heads.dim;
    if (const float* weight = by.weight(by.now.first, head)) work_.norm(x, weight, nullptr, dim, x);
    rotate(x, by.cos_sin(row), dim);
    const float heat = query_factor(by.now, int(by.position(row)));
    if (heat != 1.0f) scale_row(x, heat, dim);
    narrow_row(work_.query.row(row) + head * dim, x, dim);
  }

  // The same of keys.
  void put_key(const Rotation& by, int row, int head, float* x) const {
    const int dim = by.now.heads.dim;
    if (const float* weight = by.weight(by.now.second, head)) work_.norm(x, weight, nullptr, dim, x);
    rotate(x, by.cos_sin(row), dim);
    by.store(row, 0, head, x);
  }

  // normed: memory for a head. x may be what keys are made of, and stays.
  void put_value(const Rotation& by, int row, int head, const float* x, float* normed) const {
    if (by.now.third) work_.norm(x, by.now.third, nullptr, by.now.heads.dim, normed);
    by.store(row, 1, head, by.now.third ? normed : x);
  }

  Workspace<Dot>& work_;
  RowProducts<Dot>& products_;
};

}  // namespace baton
