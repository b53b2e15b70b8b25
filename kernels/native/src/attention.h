// Causal attention of a ragged batch over the paged KV cache, each key and value read once per task.
//
// A task is a few tokens of one sequence with query heads that share one key/value head; it goes
// over the context in chunks of kChunk keys with an online softmax (Milakov and Gimelshein 2018;
// Dao et al. 2022). What spans of kSpan keys give is combined in their order, whether one task computes
// them all or each is a task of its own. Chunks and spans lie at fixed positions, so a token's result
// does not depend on how the prompt was cut, nor on which other tokens are in its task or batch.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention_sums.h"
#include "attention_task.h"
#include "kv_integers.h"
#include "kv_panels.h"
#include "kv_places.h"
#include "kv_rows.h"
#include "memory.h"
#include "pool.h"

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

// Key/value heads that one task can take if each has so many rows.
template <class Dot>
inline int most_heads([[maybe_unused]] int rows, [[maybe_unused]] int head_dim) {
#if defined(BATON_HAS_AMX)
  if (Chunk<Dot>::kHasTiles && may_use_amx() && TileChunk::takes(rows, head_dim)) return kMostHeads;
#endif
  return 1;
}

template <class Dot>
class AttentionScratch {
 public:
  AttentionScratch(int head_dim)
      : words(Chunk<Dot>::query_words(head_dim)),
        panels(panels_of(head_dim)),
        query(size_t(kQueryRows) * words),
        chunk(head_dim),
#if defined(BATON_HAS_AMX)
        tiles(Chunk<Dot>::kHasTiles ? head_dim : 0),
#endif
        scores(size_t(2) * kQueryRows * kPanel),
        shrinks(round_up(kQueryRows, kLanes)),
        weights(size_t(kQueryRows) * Chunk<Dot>::kWeightWords),
        sums(2 * Sums::num_floats(kQueryRows, panels)),
        zeros(head_dim * sizeof(typename Dot::Element)) {}

  int words;   // of a head
  int panels;  // of a head
  Buffer<uint32_t> query;    // [rows][words]
  Chunk<Dot> chunk;
#if defined(BATON_HAS_AMX)
  TileChunk tiles;           // of tasks with few rows
  IntegerSpan integers;      // of tasks over int8
#endif
  Buffer<float> scores;      // [2 panels][rows][32 keys]
  Buffer<float> shrinks;     // [rows]: what is multiplied with what a row has gathered
  Buffer<uint32_t> weights;  // [rows][words of keys]
  Buffer<float> sums;        // of all keys so far, and of one span
  Buffer<uint8_t> zeros;     // stands for keys and values that no row of the task sees
  ChunkRows places[2];       // of this chunk and of the next one
  ChunkFetch fetch;          // of the next one
  float key_scales[kMostHeads][kChunk];  // of this chunk
  float value_scales[kMostHeads][kChunk];
};

template <class Dot>
class AttentionKernel {
  using Element = typename Dot::Element;
  using Scratch = AttentionScratch<Dot>;
  static constexpr int kWeightWords = Chunk<Dot>::kWeightWords;

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
  // The first key of what a task reads of a span, and of all spans.
  static int first_key(const Keys& keys, int span) { return std::max(span * kSpan, keys.first / kChunk * kChunk); }
  static int first_key(const AttentionTask& task, const Keys& keys) {
    return first_key(keys, task.num_spans > 0 ? task.first_span : keys.first / kSpan);
  }

  template <class Stored>
  void run(const AttentionTask& task, const AttentionTask* following, Scratch& s) const {
    const int rows = task.rows();
    const Keys keys = keys_of(task);
    load_query<Stored>(task, s);
    begin<Stored>(task, s);
    if (task.num_spans > 0) {
      const size_t size = Sums::num_floats(rows, s.panels);
      for (int i = 0; i < task.num_spans; ++i)
        gather<Stored>(task, keys, task.first_span + i, i + 1 < task.num_spans ? nullptr : following,
                       Sums(parts + task.part + i * size, rows, s.panels), s);
      end<Stored>(task, s);
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
    end<Stored>(task, s);
    write<Stored>(task, all);
  }

  // What the keys of one span give. following: whose first chunk is fetched behind them; null: that of the next span.
  template <class Stored>
  void gather(const AttentionTask& task, const Keys& keys, int span, const AttentionTask* following, const Sums& sums,
              Scratch& s) const {
    sums.clear();
    const int first = first_key(keys, span);
    const int end = std::min((span + 1) * kSpan, keys.end);
    if (first >= end) return;
#if defined(BATON_HAS_AMX)
    if constexpr (kMayBeIntegers<Stored>)
      if (IntegerSpan::takes(cache.head_dim)) return gather_integers<Stored>(task, keys, first, end, following, sums, s);
    if (is_few(task)) return gather_few<Stored>(task, keys, first, end, following, sums, s);
#endif
    places(s).template locate<Stored>(task, 0, first, keys, s.places[0]);
    int turn = 0;
    for (int key = first; key < end; key += kChunk, turn ^= 1) {
      const ChunkRows& here = s.places[turn];
      ChunkRows& next = s.places[turn ^ 1];
      if (following != nullptr && key + kChunk >= end) {
        const Keys its = keys_of(*following);
        places(s).template locate<Stored>(*following, 0, first_key(*following, its), its, next);
      } else {
        places(s).template locate<Stored>(task, 0, key + kChunk, keys, next);
      }
      s.chunk.template read<Stored>(here, next, cache.row_bytes(), sums.rows, std::min(kChunk, keys.end - key));
      if constexpr (Stored::kHasScales) {
        read_scales(here.key_scales, s.key_scales[0]);
        read_scales(here.value_scales, s.value_scales[0]);
      }
      s.chunk.template multiply_keys<Stored>(sums.rows, s.query.data(), s.scores.data(), kQueryRows);
      weigh<Stored>(task, keys, key, sums, s);
      s.chunk.template add_values<Stored>(sums.rows, s.weights.data(), sums.out);
    }
  }

#if defined(BATON_HAS_AMX)
  template <class Stored>
  static constexpr bool kMayBeIntegers = Chunk<Dot>::kHasTiles && std::is_same_v<Stored, ByteRow<Int8Kv>>;

  // The same as exact sums of integers, for any number of rows.
  template <class Stored>
  void gather_integers(const AttentionTask& task, const Keys& keys, int first, int end, const AttentionTask* following,
                       const Sums& sums, Scratch& s) const {
    const auto places = this->places(s);
    const int begin = first / kSpan * kSpan, first_position = this->first_position(task);
    if (following != nullptr) {
      const Keys its = keys_of(*following);
      places.aim(*following, first_key(*following, its), its, s.fetch, kSpan);
    } else {
      places.aim(task, begin + kSpan, keys, s.fetch, kSpan);
    }
    s.integers.open(s.fetch);
    for (int head = 0; head < task.num_kv_heads; ++head) {
      s.integers.begin_head(head, (first - begin) / kChunk, (end - begin + kChunk - 1) / kChunk);
      AttentionTask one = task;
      one.kv_head += head;
      one.num_kv_heads = 1;
      for (int key = first; key < end; key += kChunk)
        places.template for_heads<Stored>(
            one, key, keys, s.places[0], s.key_scales, s.value_scales,
            [&](int, const TileRows& its_keys, const TileRows& values) {
              s.integers.put_chunk((key - begin) / kChunk, its_keys, values, s.key_scales[0], s.value_scales[0]);
            });
      s.integers.weigh({scale, cap, steps()}, sums, [&](int row) {
        const int position = first_position + row / task.num_heads;
        return SeenKeys{seen.first(position) - begin, position - begin};
      });
      s.integers.add_values(sums);
    }
    s.fetch.rest();
  }

  bool is_few(const AttentionTask& task) const {
    return most_heads<Dot>(task.head_rows(), cache.head_dim) > 1;
  }

  // The same of the key/value heads of a task with few rows.
  template <class Stored>
  void gather_few(const AttentionTask& task, const Keys& keys, int first, int end, const AttentionTask* following,
                  const Sums& sums, Scratch& s) const {
    const auto places = this->places(s);
    const int rows = task.head_rows();
    for (int key = first; key < end; key += kChunk) {
      if (following != nullptr && key + kChunk >= end) {
        const Keys its = keys_of(*following);
        places.aim(*following, first_key(*following, its), its, s.fetch);
      } else {
        places.aim(task, key + kChunk, keys, s.fetch);
      }
      s.tiles.read(s.fetch, cache.row_bytes());
      auto for_heads = [&](auto body) {
        places.template for_heads<Stored>(task, key, keys, s.places[0], s.key_scales, s.value_scales, body);
      };
      for_heads([&](int head, const TileRows& its_keys, const TileRows&) {
        s.tiles.template multiply_keys<Stored>(head, its_keys, s.scores.data() + head * rows * kPanel, kQueryRows);
      });
      weigh<Stored>(task, keys, key, sums, s);
      for_heads([&](int head, const TileRows&, const TileRows& values) {
        s.tiles.template add_values<Stored>(values, s.weights.data() + head * rows * kWeightWords,
                                            sums.out + head * rows * kPanel, sums.rows);
      });
      s.fetch.rest();
    }
  }
#endif

  template <class Stored>
  void begin([[maybe_unused]] const AttentionTask& task, [[maybe_unused]] Scratch& s) const {
#if defined(BATON_HAS_AMX)
    if constexpr (kMayBeIntegers<Stored>)
      if (IntegerSpan::takes(cache.head_dim))
        return s.integers.begin(task.num_kv_heads, task.head_rows(), cache.head_dim, s.query.data());
    if (is_few(task)) s.tiles.begin(task.num_kv_heads, task.head_rows(), s.query.data());
#endif
  }
  template <class Stored>
  void end([[maybe_unused]] const AttentionTask& task, [[maybe_unused]] Scratch& s) const {
#if defined(BATON_HAS_AMX)
    if constexpr (kMayBeIntegers<Stored>)
      if (IntegerSpan::takes(cache.head_dim)) return IntegerSpan::end();
    if (is_few(task)) s.tiles.end();
#endif
  }

  int num_queries(const AttentionTask& task) const {
    return batch.query_start_loc[task.seq + 1] - batch.query_start_loc[task.seq];
  }
  size_t head_row(const AttentionTask& task, int row) const {
    return size_t(task.row + row % task.head_rows() / task.num_heads);
  }
  int head(const AttentionTask& task, int row) const {
    return (task.kv_head + row / task.head_rows()) * group() + task.first_head + row % task.num_heads;
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

  // Turns scores into weights and scales down what rows have gathered so far. One step for all rows comes before the
  // next one: what a row waits for, others fill.
  template <class Stored>
  void weigh(const AttentionTask& task, const Keys& keys, int key, const Sums& sums, Scratch& s) const {
    if (keys.end - key > kPanel)
      weigh_panels<Stored, 2>(task, key, sums, s);
    else
      weigh_panels<Stored, 1>(task, key, sums, s);
  }

  // Of kChunk keys from `key` on kPanels are read.
  template <class Stored, int kPanels>
  void weigh_panels(const AttentionTask& task, int key, const Sums& sums, Scratch& s) const {
    const int first_position = this->first_position(task);
    int position = first_position, head = 0, kv_head = 0;
    for (int row = 0; row < sums.rows; row += kLanes) {
      Floats largest[kLanes] = {};
      for (int i = 0; i < std::min(kLanes, sums.rows - row); ++i) {
        largest[i] = prepare<Stored, kPanels>(row + i, seen.first(position) - key, position - key, kv_head, s);
        if (++head == task.num_heads) ++position, head = 0;
        if (position == first_position + task.num_tokens) position = first_position, ++kv_head;
      }
      const Floats before = load<Floats>(sums.largest + row), now = max(max_of_each(largest), before);
      store(&s.shrinks[row], exp2((before - now) * steps()));
      store(sums.largest + row, now);
    }
    for (int row = 0; row < sums.rows; ++row) weigh_row<Stored, kPanels>(row, row / task.head_rows(), sums, s);
  }

  static float* scores_at(int row, int vector, Scratch& s) {
    const size_t panel = vector / kPanelVectors;
    return s.scores.data() + (panel * kQueryRows + row) * kPanel + vector % kPanelVectors * kLanes;
  }

  // Makes a row's scores what the softmax takes, and returns the largest one of each lane. Counted from the first key,
  // the row sees those from `first` to `last`. kv_head: among those of the task.
  template <class Stored, int kPanels>
  Floats prepare(int row, int first, int last, [[maybe_unused]] int kv_head, Scratch& s) const {
    constexpr int kVectors = kPanels * kPanelVectors;
    const bool partial = last < kVectors * kLanes - 1 || first > 0;
    Floats largest = splat(kMasked);
    for (int v = 0; v < kVectors; ++v) {
      float* own = scores_at(row, v, s);
      Floats x = load<Floats>(own);
      if constexpr (Stored::kHasScales) x *= load<Floats>(s.key_scales[kv_head] + v * kLanes);
      if (cap != 0.0f) x = cap * tanh(x * (scale / cap));
      if (partial) x = hide(x, v * kLanes, first, last);
      if (Stored::kHasScales || cap != 0.0f || partial) store(own, x);
      largest = max(largest, x);
    }
    return largest;
  }

  template <class Stored, int kPanels>
  void weigh_row(int row, [[maybe_unused]] int kv_head, const Sums& sums, Scratch& s) const {
    constexpr int kVectors = kPanels * kPanelVectors;
    using Operand = typename Chunk<Dot>::Operand;
    constexpr bool kIsRounded = !std::is_same_v<Operand, float>;
    const Floats largest = splat(sums.largest[row]), shrink = splat(s.shrinks[row]);
    // e^(scale * (x - largest)) as a power of two: one multiplication for all constants.
    const float steps = this->steps();
    const Floats most = largest * steps;
    Floats total{};
    auto* weights = reinterpret_cast<Operand*>(s.weights.data() + row * kWeightWords);
    for (int v = 0; v < kVectors; ++v) {
      const Floats score = load<Floats>(scores_at(row, v, s));
      const Floats weight = kIsRounded ? exp2_to_round(score * steps - most) : exp2((score - largest) * steps);
      total += weight;
      if constexpr (Stored::kHasScales)
        narrow(weights + v * kLanes, weight * load<Floats>(s.value_scales[kv_head] + v * kLanes));
      else
        narrow(weights + v * kLanes, weight);
    }
    if constexpr (kVectors * kLanes < kChunk)
      std::fill(weights + kVectors * kLanes, weights + kChunk, Operand{});
    sums.total[row] = sums.total[row] * shrink + total;
    sums.scale_out(row, shrink);
  }

  // The scores of keys from `at` on, of which the row sees those from `first` to `last`.
  static Floats hide(Floats scores, int at, int first, int last) {
    Ints key;
    for (int lane = 0; lane < kLanes; ++lane) key[lane] = at + lane;
    return (key <= last) & (key >= first) ? scores
                                          : splat(-std::numeric_limits<float>::infinity());
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
