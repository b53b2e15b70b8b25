// Causal attention of a ragged batch over the paged KV cache, each key and value read once per task.
//
// A task is a few tokens of one sequence with query heads that share one key/value head, or several if rows are few;
// it goes over the context in chunks of kChunk keys with an online softmax (Milakov and Gimelshein 2018;
// Dao et al. 2022). What spans of kSpan keys give is combined in their order, whether one task computes
// them all or each is a task of its own. Chunks and spans lie at fixed positions, so a token's result
// does not depend on how the prompt was cut, nor on which other tokens are in its task or batch.
//
// With the matrix unit there are three ways, between which the head and the number of rows choose: few rows
// (`kv/tiles.h`), blocks of many rows with the same bits (`kv/spans.h`), and int8 as exact integers (`integers.h`).
// With AVX2 and no AVX-512 int8 is multiplied as exact integers, too (`kv/halves.h`).
#pragma once

#include <algorithm>

#include "attention/integers.h"
#include "attention/places.h"
#include "attention/softmax.h"
#include "attention/sums.h"
#include "attention/task.h"
#include "kv/panels.h"
#include "kv/rows.h"
#include "kv/spans.h"
#include "kv/tiles.h"
#include "threads/pool.h"
#include "vectors/memory.h"

namespace baton {

// With AVX-512 panels are faster than rows for many rows; few rows were not compared without a matrix unit.
#if defined(__AVX512F__)
template <class Dot>
using Chunk = PanelChunk<Dot>;
#else
template <class Dot>
using Chunk = RowChunk<Dot>;
#endif

// Query rows of one task: the packing of keys and values is shared by all of them.
template <class Dot>
#if defined(__AVX512F__)
constexpr int kQueryRows = Chunk<Dot>::kHasTiles ? 192 : 96;
#else
constexpr int kQueryRows = 32 * kTileRows;
#endif

// Calls body(first_head, num_heads) for parts of the query heads that share a key/value head: all of
// them, if a task has room for their rows.
template <class Dot, class Body>
inline void for_head_parts(int group, Body&& body) {
  const int parts = (group + kQueryRows<Dot> - 1) / kQueryRows<Dot>;
  for (int part = 0; part < parts; ++part) {
    const int first = group * part / parts;
    body(first, group * (part + 1) / parts - first);
  }
}

// Key/value heads that one task can take if each has so many rows.
template <class Dot>
inline int most_heads([[maybe_unused]] int rows, [[maybe_unused]] int head_dim) {
#if defined(BATON_HAS_AMX)
  if (Chunk<Dot>::kHasTiles && may_use_amx() && TileChunk::takes(rows, head_dim)) return kMostHeads;
#endif
#if !defined(__AVX512F__)
  if (Chunk<Dot>::reads_in_place(rows, head_dim)) return kMostHeads;
#endif
  return 1;
}

template <class Dot>
class AttentionScratch {
 public:
  static constexpr int kRows = kQueryRows<Dot>;
  static constexpr bool kHasTiles = Chunk<Dot>::kHasTiles;

  AttentionScratch(int head_dim)
      : words(Chunk<Dot>::query_words(head_dim)),
        panels(panels_of(head_dim)),
        query(size_t(kRows) * words),
        chunk(head_dim),
#if defined(BATON_HAS_AMX)
        tiles(kHasTiles ? head_dim : 0),
        spans(kHasTiles ? head_dim : 0, kSpan / kChunk),
#endif
        scores(size_t(2) * kRows * kPanel),
        weights(size_t(kRows) * Chunk<Dot>::kWeightWords),
        sums(2 * Sums::num_floats(kRows, panels)),
        zeros(head_dim * sizeof(typename Dot::Element)) {}

  int words;   // of a head
  int panels;  // of a head
  Buffer<uint32_t> query;    // [rows][words]
  Chunk<Dot> chunk;
#if defined(BATON_HAS_AMX)
  TileChunk tiles;           // of tasks with few rows
  IntegerSpan integers;      // of tasks over int8
  SpanTiles spans;           // of tasks with many rows
  SpanFetch<typename Dot::Element> fetch;
#endif
  Buffer<float> scores;      // [2 panels][rows][32 keys]
  Buffer<uint32_t> weights;  // [rows][words of keys]
  Buffer<float> sums;        // of all keys so far, and of one span
  Buffer<uint8_t> zeros;     // stands for keys and values that no row of the task sees
  ChunkFetch next;           // of tasks with few rows, and over int8
  ChunkRows places[2];       // of this chunk and of the next one
#if !defined(__AVX512F__)
  ChunkRows of_heads[kMostHeads];  // of this chunk, of all key/value heads of a task with few rows
#endif
  // Of this chunk, of all chunks of a span, or of the key/value heads of a task.
  float key_scales[kSpan];
  float value_scales[kSpan];
  static_assert(kMostHeads * kChunk <= kSpan);
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
    const Sums all = part_of(task, 0, s);
    for (int span = 1; span < task.num_spans; ++span) all.add(part_of(task, span, s), steps());
    with_format([&](auto stored) { write<decltype(stored)>(task, 0, all); });
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

  static Keys keys_in(const Keys& keys, int span) {
    return {first_key(keys, span), std::min((span + 1) * kSpan, keys.end)};
  }
  static int first_span(const AttentionTask& task, const Keys& keys) {
    return task.num_spans > 0 ? task.first_span : keys.first / kSpan;
  }
  static int end_span(const AttentionTask& task, const Keys& keys) {
    return task.num_spans > 0 ? task.first_span + task.num_spans : (keys.end + kSpan - 1) / kSpan;
  }
  // What a task gathers from one of its spans.
  Sums part_of(const AttentionTask& task, int span, const Scratch& s) const {
    return Sums(parts + task.part + span * Sums::num_floats(task.rows(), s.panels), task.rows(), s.panels);
  }

  template <class Stored>
  void run(const AttentionTask& task, const AttentionTask* following, Scratch& s) const {
    load_query<Stored>(task, s);
#if defined(BATON_HAS_AMX)
    if constexpr (Scratch::kHasTiles)
      if (may_use_amx() && !is_few(task) && !is_integers<Stored>())
        return run_blocks<Stored>(task, following, s);
#endif
    const int rows = task.rows();
    const Keys keys = keys_of(task);
    const Sums all(s.sums.data(), rows, s.panels);
    const Sums one(s.sums.data() + Sums::num_floats(rows, s.panels), rows, s.panels);
    begin_tiles<Stored>(task, s);
    const int first = first_span(task, keys), end = end_span(task, keys);
    for (int span = first; span < end; ++span) {
      const AttentionTask* next = span + 1 < end ? nullptr : following;
      if (task.num_spans > 0) {
        gather<Stored>(task, keys, span, next, part_of(task, span - first, s), s);
        continue;
      }
      gather<Stored>(task, keys, span, next, span == first ? all : one, s);
      if (span > first) all.add(one, steps());
    }
    end_tiles<Stored>(task, s);
    if (task.num_spans == 0) write<Stored>(task, 0, all);
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
#if defined(BATON_HAS_AMX)
    if constexpr (kMayBeIntegers<Stored>)
      if (is_integers<Stored>()) return gather_integers<Stored>(task, keys, {first, end}, following, sums, s);
    if (is_few(task)) return gather_few<Stored>(task, keys, {first, end}, following, sums, s);
#elif !defined(__AVX512F__)
    if (Chunk<Dot>::reads_in_place(task.head_rows(), cache.head_dim))
      return gather_in_place<Stored>(task, keys, {first, end}, following, sums, s);
#endif
    places(s).template locate<Stored>(task, 0, first, keys, s.places[0]);
    int turn = 0;
    for (int key = first; key < end; key += kChunk, turn ^= 1) {
      const ChunkRows& here = s.places[turn];
      ChunkRows& next = s.places[turn ^ 1];
      if (following != nullptr && key + kChunk >= end) {
        const Keys its = keys_of(*following);
        places(s).template locate<Stored>(*following, 0, first_key(its, first_span(*following, its)), its, next);
      } else {
        places(s).template locate<Stored>(task, 0, key + kChunk, keys, next);
      }
      s.chunk.template read<Stored>(here, next, cache.row_bytes(), rows, std::min(kChunk, keys.end - key));
      if constexpr (Stored::kHasScales) {
        read_scales(here.key_scales, s.key_scales);
        read_scales(here.value_scales, s.value_scales);
      }
      s.chunk.template multiply_keys<Stored>(rows, s.query.data(), s.scores.data(), Scratch::kRows);
      weigh_chunk<Stored>(task, keys, key, {0, rows}, 0, sums, key == first, s);
      s.chunk.template add_values<Stored>(rows, s.weights.data(), sums.out);
    }
  }

  // What is fetched while the chunk from `key` on is read: the next one, or the first one of the following task.
  void aim(const AttentionTask& task, const Keys& keys, const Keys& own, int key, const AttentionTask* following,
           Scratch& s) const {
    if (following != nullptr && key + kChunk >= own.end) {
      const Keys its = keys_of(*following);
      places(s).aim(*following, first_key(its, first_span(*following, its)), its, s.next);
    } else {
      places(s).aim(task, key + kChunk, keys, s.next);
    }
  }

#if !defined(__AVX512F__)
  // With few rows: what these keys give to all key/value heads of the task, which are read in the order of memory.
  template <class Stored>
  void gather_in_place(const AttentionTask& task, const Keys& keys, const Keys& own, const AttentionTask* following,
                       const Sums& sums, Scratch& s) const {
    const int rows = task.head_rows();
    for (int key = own.first; key < own.end; key += kChunk) {
      if constexpr (Stored::kHasScales) aim(task, keys, own, key, following, s);
      for (int head = 0; head < task.num_kv_heads; ++head) {
        ChunkRows& here = s.of_heads[head];
        places(s).template locate<Stored>(task, head, key, keys, here);
        if constexpr (Stored::kHasScales) {
          read_scales(here.key_scales, s.key_scales + head * kChunk);
          read_scales(here.value_scales, s.value_scales + head * kChunk);
        }
        s.chunk.template multiply_keys_in_place<Stored>(rows, s.query.data() + size_t(head) * rows * s.words, here,
                                                        s.scores.data() + size_t(head) * rows * kPanel, Scratch::kRows,
                                                        s.next);
      }
      weigh_heads<Stored>(task, keys, key, sums, key == own.first, s);
      for (int head = 0; head < task.num_kv_heads; ++head)
        s.chunk.template add_values_in_place<Stored>(rows, s.weights.data() + size_t(head) * rows * kChunk,
                                                     s.of_heads[head], sums.out + size_t(head) * rows * kPanel,
                                                     sums.rows, s.next);
    }
  }
#endif

#if defined(BATON_HAS_AMX)
  template <class Stored>
  static constexpr bool kMayBeIntegers = Scratch::kHasTiles && std::is_same_v<Stored, ByteRow<Int8Kv>>;
  template <class Stored>
  bool is_integers() const {
    return kMayBeIntegers<Stored> && IntegerSpan::takes(cache.head_dim);
  }

  // The same as exact sums of integers, for any number of rows.
  template <class Stored>
  void gather_integers(const AttentionTask& task, const Keys& keys, const Keys& own, const AttentionTask* following,
                       const Sums& sums, Scratch& s) const {
    const int first = own.first, end = own.end;
    const auto places = this->places(s);
    const int begin = first / kSpan * kSpan, first_position = this->first_position(task);
    if (following != nullptr) {
      const Keys its = keys_of(*following);
      places.aim(*following, first_key(its, first_span(*following, its)), its, s.next, kSpan);
    } else {
      places.aim(task, begin + kSpan, keys, s.next, kSpan);
    }
    s.integers.open(s.next);
    for (int head = 0; head < task.num_kv_heads; ++head) {
      s.integers.begin_head(head, (first - begin) / kChunk, (end - begin + kChunk - 1) / kChunk);
      AttentionTask one = task;
      one.kv_head += head;
      one.num_kv_heads = 1;
      for (int key = first; key < end; key += kChunk)
        places.template for_heads<Stored>(
            one, key, keys, s.places[0], s.key_scales, s.value_scales,
            [&](int, const TileRows& its_keys, const TileRows& values) {
              s.integers.put_chunk((key - begin) / kChunk, its_keys, values, s.key_scales, s.value_scales);
            });
      s.integers.weigh({scale, cap, steps()}, sums, [&](int row) {
        const int position = first_position + row / task.num_heads;
        return Sight{seen.first(position) - begin, position - begin};
      });
      s.integers.add_values(sums);
    }
    s.next.rest();
  }

  bool is_few(const AttentionTask& task) const {
    return most_heads<Dot>(task.head_rows(), cache.head_dim) > 1;
  }

  // With few rows: what these keys give to all key/value heads of the task.
  template <class Stored>
  void gather_few(const AttentionTask& task, const Keys& keys, const Keys& own, const AttentionTask* following,
                  const Sums& sums, Scratch& s) const {
    const auto places = this->places(s);
    const int rows = task.head_rows();
    for (int key = own.first; key < own.end; key += kChunk) {
      aim(task, keys, own, key, following, s);
      s.tiles.read(s.next, cache.row_bytes());
      auto for_heads = [&](auto body) {
        places.template for_heads<Stored>(task, key, keys, s.places[0], s.key_scales, s.value_scales, body);
      };
      for_heads([&](int head, const TileRows& its_keys, const TileRows&) {
        s.tiles.template multiply_keys<Stored>(head, its_keys, s.scores.data() + head * rows * kPanel, Scratch::kRows);
      });
      weigh_heads<Stored>(task, keys, key, sums, key == own.first, s);
      for_heads([&](int head, const TileRows&, const TileRows& values) {
        s.tiles.template add_values<Stored>(values, s.weights.data() + head * rows * (kChunk / 2),
                                            sums.out + head * rows * kPanel, sums.rows);
      });
      s.next.rest();
    }
  }

  // With the matrix unit: a span is packed, then goes one block of rows after the other through it.
  template <class Stored>
  void run_blocks(const AttentionTask& task, const AttentionTask* following, Scratch& s) const {
    const Keys keys = keys_of(task);
    const int first = first_span(task, keys), end = end_span(task, keys), num_rows = task.rows();
    const int num_steps = (num_rows + SpanTiles::kRows - 1) / SpanTiles::kRows * (kSpan / kChunk);
    s.spans.begin();
    for (int span = first; span < end; ++span) {
      const Keys own = keys_in(keys, span);
      pack<Stored>(task, keys, own, s);
      if (span + 1 < end) {
        s.fetch.begin(task, keys, keys_in(keys, span + 1), num_steps);
      } else if (following != nullptr) {
        const Keys its = keys_of(*following);
        s.fetch.begin(*following, its, keys_in(its, first_span(*following, its)), num_steps);
      } else {
        s.fetch.stop();
      }
      for (int row = 0; row < num_rows; row += SpanTiles::kRows)
        run_block<Stored>(task, own, span - first, {row, std::min(SpanTiles::kRows, num_rows - row)}, s);
    }
    s.spans.end();
  }

  template <class Stored>
  void pack(const AttentionTask& task, const Keys& keys, const Keys& own, Scratch& s) const {
    ChunkRows& rows = s.places[0];
    for (int key = own.first; key < own.end; key += kChunk) {
      const int chunk = (key - own.first) / kChunk;
      places(s).template locate<Stored>(task, 0, key, keys, rows);
      s.spans.template pack<Dot, Stored>(chunk, rows);
      if constexpr (Stored::kHasScales) {
        read_scales(rows.key_scales, s.key_scales + chunk * kChunk);
        read_scales(rows.value_scales, s.value_scales + chunk * kChunk);
      }
    }
  }

  // What the keys of the task's span `number`, which are packed, give to a block of rows.
  template <class Stored>
  void run_block(const AttentionTask& task, const Keys& own, int number, const TaskRows& rows, Scratch& s) const {
    if (task.num_spans > 0) return gather<Stored>(task, own, rows, part_of(task, number, s).some(rows), s);
    const Sums all = Sums(s.sums.data(), task.rows(), s.panels).some(rows);
    const int last = position(task, rows.first + rows.count - 1);
    if (own.first > last) return;
    if (number == 0) {
      gather<Stored>(task, own, rows, all, s);
    } else {
      const Sums one(s.sums.data() + Sums::num_floats(task.rows(), s.panels), rows.count, s.panels);
      gather<Stored>(task, own, rows, one, s);
      all.add(one, steps());
    }
    if (last < own.end) write<Stored>(task, rows.first, all);
  }

  // Chunks that no row of the block sees give nothing.
  template <class Stored>
  void gather(const AttentionTask& task, const Keys& own, const TaskRows& rows, const Sums& sums, Scratch& s) const {
    const int low = position(task, rows.first), high = position(task, rows.first + rows.count - 1);
    bool is_first = true;
    for (int key = own.first; key < std::min(own.end, high + 1); key += kChunk) {
      if (key + kChunk <= seen.first(low)) continue;
      const bool sees_all = low >= key + kChunk - 1 && seen.first(high) <= key;
      if (high - key >= kPanel)
        gather_chunk<Stored, 2>(task, own, key, rows, sums, is_first, sees_all, s);
      else
        gather_chunk<Stored, 1>(task, own, key, rows, sums, is_first, false, s);
      is_first = false;
    }
    if (is_first) sums.clear();
  }

  template <class Stored, int kPanels>
  void gather_chunk(const AttentionTask& task, const Keys& own, int key, const TaskRows& rows, const Sums& sums,
                    bool is_first, bool sees_all, Scratch& s) const {
    const int place = key - own.first, chunk = place / kChunk;
    s.fetch.template step<Stored>(places(s));
    s.spans.template multiply_keys<kPanels>(chunk, rows.count, s.query.data() + size_t(rows.first) * s.words,
                                            s.scores.data());
    weigh<Stored, kPanels, SpanTiles::kRows>(task, rows, key, place, sums, is_first, sees_all, s);
    s.spans.template add_values<kPanels>(chunk, rows.count, s.weights.data(), sums.out, sums.apart, is_first);
  }
#endif

  template <class Stored>
  void begin_tiles([[maybe_unused]] const AttentionTask& task, [[maybe_unused]] Scratch& s) const {
#if defined(BATON_HAS_AMX)
    if (is_integers<Stored>())
      return s.integers.begin(task.num_kv_heads, task.head_rows(), cache.head_dim, s.query.data());
    if (is_few(task)) s.tiles.begin(task.num_kv_heads, task.head_rows(), s.query.data());
#endif
  }
  template <class Stored>
  void end_tiles([[maybe_unused]] const AttentionTask& task, [[maybe_unused]] Scratch& s) const {
#if defined(BATON_HAS_AMX)
    if (is_integers<Stored>()) return IntegerSpan::end();
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

  int position(const AttentionTask& task, int row) const {
    return first_position(task) + row % task.head_rows() / task.num_heads;
  }
  // Whether all of these rows see all keys of the chunk from `key` on.
  bool sees_all(const AttentionTask& task, const TaskRows& rows, int key) const {
    return position(task, rows.first) >= key + kChunk - 1 &&
           seen.first(position(task, rows.first + rows.count - 1)) <= key;
  }

  // All rows of the task; those of a key/value head have the same scales.
  template <class Stored>
  void weigh_heads(const AttentionTask& task, const Keys& keys, int key, const Sums& sums, bool is_first,
                   Scratch& s) const {
    const int rows = task.head_rows(), together = Stored::kHasScales ? rows : sums.rows;
    for (int row = 0; row < sums.rows; row += together)
      weigh_chunk<Stored>(task, keys, key, {row, together}, row / rows * kChunk, sums, is_first, s);
  }

  template <class Stored>
  void weigh_chunk(const AttentionTask& task, const Keys& keys, int key, const TaskRows& rows, int place,
                   const Sums& sums, bool is_first, Scratch& s) const {
    if (keys.end - key > kPanel)
      weigh<Stored, 2, Scratch::kRows>(task, rows, key, place, sums.some(rows), is_first, sees_all(task, rows, key), s,
                                       rows.first);
    else
      weigh<Stored, 1, Scratch::kRows>(task, rows, key, place, sums.some(rows), is_first, false, s, rows.first);
  }

  // place: of the chunk's scales. at: where the rows are among those of scores and weights.
  template <class Stored, int kPanels, int kRows>
  void weigh(const AttentionTask& task, const TaskRows& rows, int key, int place, const Sums& sums, bool is_first,
             bool sees_all, Scratch& s, int at = 0) const {
    const Softmax<Stored, Operand, kRows> softmax{scale, cap, s.key_scales + place, s.value_scales + place};
    auto sight = [&](int row) {
      const int own = position(task, rows.first + row);
      return Sight{seen.first(own) - key, own - key};
    };
    softmax.template weigh<kPanels>(s.scores.data() + size_t(at) * kPanel,
                                    reinterpret_cast<Operand*>(s.weights.data()) + size_t(at) * kChunk, sums, is_first,
                                    sees_all, sight);
  }

  template <class Stored>
  void write(const AttentionTask& task, int first_row, const Sums& sums) const {
    constexpr int kApart = Chunk<Dot>::template kApart<Stored>, kNumbers = kApart * kLanes;
    for (int row = 0; row < sums.rows; ++row) {
      const int own_head = head(task, first_row + row);
      Element* to = out + head_row(task, first_row + row) * out_stride + own_head * cache.head_dim;
      const float factor = share(own_head, sums, row);
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
  float share(int head, const Sums& sums, int row) const {
    const float total = sum(sums.total[row]);
    if (sinks == nullptr) return 1.0f / total;
    const float sink = sinks[head] * kLog2E / steps(), largest = sums.largest[row];
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
