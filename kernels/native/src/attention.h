// Causal attention of a ragged batch over the paged KV cache, each key and value read once per task.
//
// A task is a few tokens of one sequence with query heads that share one key/value head; it goes
// over the context in chunks of kChunk keys with an online softmax (Milakov and Gimelshein 2018;
// Dao et al. 2022). What spans of kSpan keys give is combined in their order, whether one task computes
// them all or each is a task of its own. Chunks and spans lie at fixed positions, so a token's result
// does not depend on how the prompt was cut, nor on which other tokens are in its task or batch.
#pragma once

#include <algorithm>

#include "attention_sums.h"
#include "attention_task.h"
#include "kv_panels.h"
#include "kv_places.h"
#include "kv_rows.h"
#include "memory.h"
#include "pool.h"
#include "softmax.h"

namespace baton {

// Query rows of one task: the packing of a chunk is shared by all of them.
#if defined(__AVX512F__)
constexpr int kQueryRows = 96;  // whole pairs of the matrix unit's tiles
#else
constexpr int kQueryRows = 32 * kTileRows;
#endif

// Calls body(first_head, num_heads) for parts of the query heads that share a key/value head: all of
// them, if a task has room for their rows.
template <class Body>
inline void for_head_parts(int group, Body&& body) {
  const int parts = (group + kQueryRows - 1) / kQueryRows;
  for (int part = 0; part < parts; ++part) {
    const int first = group * part / parts;
    body(first, group * (part + 1) / parts - first);
  }
}

// With AVX-512 panels are faster than rows for many rows; few rows were not compared without a matrix unit.
#if defined(__AVX512F__)
template <class Dot>
using Chunk = PanelChunk<Dot>;
#else
template <class Dot>
using Chunk = RowChunk<Dot>;
#endif

template <class Dot>
class AttentionScratch {
 public:
  AttentionScratch(int head_dim)
      : words(Chunk<Dot>::query_words(head_dim)),
        panels(panels_of(head_dim)),
        query(size_t(kQueryRows) * words),
        chunk(head_dim),
        scores(size_t(2) * kQueryRows * kPanel),
        weights(size_t(kQueryRows) * Chunk<Dot>::kWeightWords),
        sums(2 * Sums::num_floats(kQueryRows, panels)),
        zeros(head_dim * sizeof(typename Dot::Element)) {}

  int words;   // of a head
  int panels;  // of a head
  Buffer<uint32_t> query;    // [rows][words]
  Chunk<Dot> chunk;
  Buffer<float> scores;      // [2 panels][rows][32 keys]
  Buffer<uint32_t> weights;  // [rows][words of keys]
  Buffer<float> sums;        // of all keys so far, and of one span
  Buffer<uint8_t> zeros;     // stands for keys and values that no row of the task sees
  ChunkRows places[2];       // of this chunk and of the next one
  float key_scales[kChunk];    // of this chunk
  float value_scales[kChunk];
};

template <class Dot>
class AttentionKernel {
  using Element = typename Dot::Element;
  using Scratch = AttentionScratch<Dot>;
  using Operand = typename Chunk<Dot>::Operand;

 public:
  const Cache<Element>& cache;
  const Batch& batch;
  int group_of_layers;
  int layer;  // among those of its group
  Seen seen;
  float scale;         // of scores; positive
  float cap;           // c makes c * tanh(score / c) of scaled scores; 0: none
  const float* sinks;  // by head: a score that takes part in the softmax and has no value; or null
  int num_heads;
  const Element* query;  // [tokens][heads][head dim], rows `query_stride` apart
  size_t query_stride;
  Element* out;  // the same shape, rows `out_stride` apart
  size_t out_stride;
  float* parts;  // sums of spans that are tasks of their own

  int group() const { return num_heads / cache.num_kv_heads; }

  // following: the task that this thread takes next, as far as is known, or null: its first chunk is fetched.
  void operator()(const AttentionTask& task, const AttentionTask* following, Scratch& s) const {
    with_format([&](auto stored) { run<decltype(stored)>(task, following, s); });
  }

  // Combines and writes what was left of all of these spans.
  void combine(const AttentionTask& task, Scratch& s) const {
    const size_t size = Sums::num_floats(task.rows(), s.panels);
    const Sums all(parts + task.part, task.rows(), s.panels);
    for (int span = 1; span < task.num_spans; ++span)
      all.add(Sums(parts + task.part + span * size, task.rows(), s.panels), steps());
    with_format([&](auto stored) { write<decltype(stored)>(task, all); });
  }

 private:
  template <class Body>
  void with_format(Body&& body) const {
    switch (cache.format) {
      case KvFormat::kElements:
        return body(ElementRow<Element>{});
      case KvFormat::kInt8:
        return body(ByteRow<Int8Kv>{});
      case KvFormat::kFloat8:
        return body(ByteRow<Float8Kv>{});
    }
  }

  KvPlaces<Element> places(const Scratch& s) const {
    return {cache, batch, group_of_layers, layer, s.zeros.data()};
  }
  int first_position(const AttentionTask& task) const {
    return batch.seq_lens[task.seq] - num_queries(task) + task.first_token;
  }
  Keys keys_of(const AttentionTask& task) const {
    const int position = first_position(task);
    return {std::max(0, seen.first(position)), position + task.num_tokens};
  }
  // The first key of what a task reads of a span.
  static int first_key(const Keys& keys, int span) { return std::max(span * kSpan, keys.first / kChunk * kChunk); }

  template <class Stored>
  void run(const AttentionTask& task, const AttentionTask* following, Scratch& s) const {
    const int rows = task.rows();
    const Keys keys = keys_of(task);
    load_query<Stored>(task, s);
    s.chunk.begin(rows, s.query.data());
    if (task.num_spans > 0) {
      const size_t size = Sums::num_floats(rows, s.panels);
      for (int i = 0; i < task.num_spans; ++i)
        gather<Stored>(task, keys, task.first_span + i, i + 1 < task.num_spans ? nullptr : following,
                       Sums(parts + task.part + i * size, rows, s.panels), s);
      s.chunk.end();
      return;
    }
    const Sums all(s.sums.data(), rows, s.panels);
    const Sums one(s.sums.data() + Sums::num_floats(rows, s.panels), rows, s.panels);
    const int first = keys.first / kSpan;
    for (int span = first; span * kSpan < keys.end; ++span) {
      const bool is_last = (span + 1) * kSpan >= keys.end;
      gather<Stored>(task, keys, span, is_last ? following : nullptr, span == first ? all : one, s);
      if (span > first) all.add(one, steps());
    }
    s.chunk.end();
    write<Stored>(task, all);
  }

  // What the keys of one span give. following: whose first chunk is fetched behind them; null: that of the next span.
  template <class Stored>
  void gather(const AttentionTask& task, const Keys& keys, int span, const AttentionTask* following, const Sums& sums,
              Scratch& s) const {
    const int rows = task.rows();
    sums.clear();
    const int first = first_key(keys, span);
    const int end = std::min((span + 1) * kSpan, keys.end);
    if (first >= end) return;
    places(s).template locate<Stored>(task, first, keys, s.places[0]);
    int turn = 0;
    for (int key = first; key < end; key += kChunk, turn ^= 1) {
      const ChunkRows& here = s.places[turn];
      ChunkRows& next = s.places[turn ^ 1];
      if (following != nullptr && key + kChunk >= end) {
        const Keys its = keys_of(*following);
        const int its_span = following->num_spans > 0 ? following->first_span : its.first / kSpan;
        places(s).template locate<Stored>(*following, first_key(its, its_span), its, next);
      } else {
        places(s).template locate<Stored>(task, key + kChunk, keys, next);
      }
      s.chunk.template read<Stored>(here, next, cache.row_bytes(), rows, std::min(kChunk, keys.end - key));
      if constexpr (Stored::kHasScales) {
        read_scales(here.key_scales, s.key_scales);
        read_scales(here.value_scales, s.value_scales);
      }
      s.chunk.template multiply_keys<Stored>(rows, s.query.data(), s.scores.data(), kQueryRows);
      const Rows all{0, rows};
      if (keys.end - key > kPanel)
        weigh<Stored, 2>(task, all, key, sums, key == first, sees_all(task, all, key), s);
      else
        weigh<Stored, 1>(task, all, key, sums, key == first, false, s);
      s.chunk.template add_values<Stored>(rows, s.weights.data(), sums.out);
    }
  }

  int num_queries(const AttentionTask& task) const {
    return batch.query_start_loc[task.seq + 1] - batch.query_start_loc[task.seq];
  }
  size_t head_row(const AttentionTask& task, int row) const {
    return size_t(task.row + row / task.num_heads);
  }
  int head(const AttentionTask& task, int row) const {
    return task.kv_head * group() + task.first_head + row % task.num_heads;
  }

  // What a difference of kept scores is multiplied with, as a power of two.
  float steps() const { return (cap != 0.0f ? 1.0f : scale) * kLog2E; }

  template <class Stored>
  void load_query(const AttentionTask& task, Scratch& s) const {
    for (int row = 0; row < task.rows(); ++row) {
      const Element* from =
          query + head_row(task, row) * query_stride + head(task, row) * cache.head_dim;
      Chunk<Dot>::template put_query<Stored>(s.query.data() + row * s.words, from, cache.head_dim);
    }
  }

  // Some of a task's rows.
  struct Rows {
    int first;
    int count;
  };
  int position(const AttentionTask& task, int row) const { return first_position(task) + row / task.num_heads; }
  // Whether all of them see all keys of the chunk from `key` on.
  bool sees_all(const AttentionTask& task, const Rows& rows, int key) const {
    return position(task, rows.first) >= key + kChunk - 1 &&
           seen.first(position(task, rows.first + rows.count - 1)) <= key;
  }

  template <class Stored, int kPanels>
  void weigh(const AttentionTask& task, const Rows& rows, int key, const Sums& sums, bool is_first, bool sees_all,
             Scratch& s) const {
    const Softmax<Stored, Operand, kQueryRows> softmax{scale, cap, s.key_scales, s.value_scales};
    auto sight = [&](int row) {
      const int own = position(task, rows.first + row);
      return Sight{seen.first(own) - key, own - key};
    };
    softmax.template weigh<kPanels>(s.scores.data(), reinterpret_cast<Operand*>(s.weights.data()), sums, is_first,
                                    sees_all, sight);
  }

  template <class Stored>
  void write(const AttentionTask& task, const Sums& sums) const {
    constexpr int kApart = Chunk<Dot>::template kApart<Stored>, kNumbers = kApart * kLanes;
    for (int row = 0; row < sums.rows; ++row) {
      Element* to = out + head_row(task, row) * out_stride + head(task, row) * cache.head_dim;
      const float factor = share(task, sums, row);
      for (int dim = 0; dim < cache.head_dim; dim += kNumbers) {
        const Floats* apart = sums.out_row(dim / kPanel, row) + dim % kPanel / kLanes;
        if constexpr (kApart == 1)
          if (dim + kLanes <= cache.head_dim) {
            narrow(to + dim, *apart * factor);
            continue;
          }
        float numbers[kNumbers];
        for (int i = 0; i < kNumbers; ++i) numbers[i] = apart[i % kApart][i / kApart] * factor;
        narrow_row(to + dim, numbers, std::min(kNumbers, cache.head_dim - dim));
      }
    }
  }

  // What a row's weighted values are multiplied with: one over all weights, a sink's among them.
  float share(const AttentionTask& task, const Sums& sums, int row) const {
    const float total = sum(sums.total[row]);
    if (sinks == nullptr) return 1.0f / total;
    const float sink = sinks[head(task, row)] * kLog2E / steps(), largest = sums.largest[row];
    const float now = std::max(sink, largest);
    const float mine = exp2(splat((largest - now) * steps()))[0];
    return mine / (total * mine + exp2(splat((sink - now) * steps()))[0]);
  }
};

// x *= sigmoid(gates)
template <class Element>
inline void multiply_gates(Element* x, const float* gates, int size) {
  for_vectors(size, [&](int i, auto count) {
    Element lanes[kLanes] = {};
    std::memcpy(lanes, x + i, count * sizeof(Element));
    narrow(lanes, widen(lanes) / (1.0f + exp2(load_some(gates + i, count) * -kLog2E)));
    std::memcpy(x + i, lanes, count * sizeof(Element));
  });
}

}  // namespace baton
