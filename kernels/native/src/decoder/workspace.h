// Memory that the operations of a program share.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "decoder/program.h"
#include "kv/format.h"
#include "ranks/ranks.h"
#include "threads/pool.h"
#include "vectors/memory.h"
#include "vectors/rows.h"

namespace baton {

// What the operations of a step share: the model, and activations, a row per token.
template <class Dot>
struct Workspace {
  using Element = typename Dot::Element;

  Workspace(Pool& pool, const Shape& shape, const Weights& weights)
      : pool(pool),
        shape(shape),
        weights(weights),
        x(shape.hidden_size),
        product(most(weights, &product_size)),
        added(Activations<float>::close(shape.hidden_size)),
        query(most(weights, &query_size)),
        attended(most(weights, &attended_size)),
        gated(shape.intermediate_size),
        operand(std::max(shape.hidden_size, most(weights, &query_rank))),
        rates(most(weights, &num_rates)),
        inputs(most(weights, &num_inputs)) {
    for (int thread = 0; thread < pool.num_threads(); ++thread)
      float_rows.emplace_back(size_t(std::max({gated.stride, attended.stride, operand.stride})));
  }

  void resize(int tokens) {
    x.resize(tokens);
    product.resize(tokens);
    added.resize(tokens);
    query.resize(tokens);
    attended.resize(tokens);
    gated.resize(tokens);
    operand.resize(tokens);
    rates.resize(tokens);
    inputs.resize(tokens);
  }

  // See run_rows.
  template <class Body>
  void rows_of(int rows, Body&& body) const {
    run_rows(pool, rows, body);
  }

  // to = the norm of x, in place if wanted.
  void norm(const float* x, const float* weight, const float* bias, int size, float* to) const {
    if (shape.centers) {
      center(x, size, to);
      x = to;
    }
    normalize(x, weight, size, shape.norm_eps, to);
    if (bias != nullptr) add_row(to, 1.0f, bias, size);
  }

  void norm_row(const Operation& now, int row, float* to) {
    if (now.first != nullptr)
      norm(x.row(row), now.first, now.second, shape.hidden_size, to);
    else
      std::memcpy(to, x.row(row), shape.hidden_size * sizeof(float));
  }

  Pool& pool;
  const Shape shape;
  const Weights weights;
  Ranks ranks;  // of the present call
  Activations<float> x;
  Activations<float> product;  // queries, keys and values; what a mixer with states reads
  Activations<float> added;    // what is to be added to x
  Activations<Element> query;
  Activations<Element> attended;
  Activations<Element> gated;
  Activations<float> operand;
  Activations<float> rates;   // of mixers with states; gates of heads
  Activations<float> inputs;  // [layers][size] of a token
  Buffer<float> totals;       // sums of squares of all ranks, by row
  std::vector<Buffer<float>> float_rows;  // by thread
};

// Every layer's attention has heads of its own.
template <class Element>
Cache<Element> cache_of(const Operation& now, const KvMemory& kv) {
  const Heads& heads = now.heads;
  const float* scales = nullptr;
  if (kv.scales)
    scales = kv.scales[now.kv_group] +
             size_t(now.kv_place) * heads.kv_kinds * heads.num_kv * kv.block_size;
  return {static_cast<Element*>(kv.data), kv.format, kv.block_stride, heads.kv_kinds,
          heads.num_kv, kv.block_size, heads.dim, scales};
}

}  // namespace baton
