// Products of blocks of rows with the keys and values of a span, by the processor's matrix unit.
//
// A span is packed once for all rows of a task, and one block after the other goes through its chunks: the queries of
// a block, its scores and what it gathers stay in the first-level cache. A sum has the order that it has in
// `TileChunk`, so a row gets the same bits.
#pragma once

#include "kv/pairs.h"
#include "kv/panels.h"
#include "vectors/amx.h"

namespace baton {

#if defined(BATON_HAS_AMX)

class SpanTiles {
 public:
  static constexpr int kRows = 2 * amx::kRows;  // of a block
  static constexpr int kWeightWords = kChunk / 2;

  SpanTiles(int head_dim, int num_chunks)
      : head_dim_(head_dim),
        words_(query_words(head_dim)),
        panels_(panels_of(head_dim)),
        keys_(size_t(num_chunks) * 2 * words_ * kPanel),
        values_(size_t(num_chunks) * panels_ * kWeightWords * kPanel) {}

  // Words of a head's query, whole tiles of them; those behind its end are zero.
  static int query_words(int head_dim) { return round_up((head_dim + 1) / 2, amx::kWords); }

  // Before the products of a task, and behind them.
  void begin() { shaped_ = 0; }
  static void end() { _tile_release(); }

  template <class Dot, class Stored>
  void pack(int chunk, const ChunkRows& rows) {
    using Pack = Packing<Dot, Stored>;
    for (int i = 0; i < kChunk; i += kLanes)
      Pack::pack_keys(rows.keys + i, rows.keys + i, head_dim_, keys_at(chunk, i / kPanel) + i % kPanel);
    const int whole = head_dim_ / kPanel;
    for (int word = 0; word < kWeightWords; ++word) {
      const uint8_t* const* values = rows.values + 2 * word;
      for (int panel = 0; panel < whole; ++panel)
        pair_values<Stored>(values[0], values[1], panel, values_at(chunk, panel) + word * kPanel);
      for (int dim = whole * kPanel; dim < head_dim_; dim += kLanes)
        Pack::pack_values(values, dim, std::min(kLanes, head_dim_ - dim),
                          values_at(chunk, whole) + word * kPanel + dim % kPanel);
    }
  }

  // scores [kPanels][kRows][kPanel keys] = query [rows][query words] . keys
  template <int kPanels>
  void multiply_keys(int chunk, int rows, const uint32_t* query, float* scores) {
    multiply(rows, query, words_, words_, keys_at(chunk, 0), words_, kPanels, scores, kRows, true);
  }

  // out [panel of the head][rows, `apart` apart][kPanel] += weights [rows][words of keys] . values of kPanels
  // of the chunk; or = if `is_first`.
  template <int kPanels>
  void add_values(int chunk, int rows, const uint32_t* weights, float* out, int apart, bool is_first) {
    multiply(rows, weights, kWeightWords, kPanels * kPanel / 2, values_at(chunk, 0), kWeightWords, panels_, out, apart,
             is_first);
  }

 private:
  uint32_t* keys_at(int chunk, int panel) { return keys_.data() + size_t(2 * chunk + panel) * words_ * kPanel; }
  uint32_t* values_at(int chunk, int panel) {
    return values_.data() + (size_t(chunk) * panels_ + panel) * kWeightWords * kPanel;
  }

  // Rows are `stride` words apart, of which the first `words` count; panels have `panel_words`.
  void multiply(int num_rows, const uint32_t* rows, int stride, int words, const uint32_t* panels, int panel_words,
                int num_panels, float* sums, int apart, bool is_first) {
    const int upper = std::min(num_rows, amx::kRows), lower = num_rows - upper;
    if (num_rows != shaped_) amx::shape_tiles(upper, lower);
    shaped_ = num_rows;
    asm volatile("" ::: "memory");
    for (int panel = 0; panel < num_panels; ++panel) {
      const uint32_t* own = panels + size_t(panel) * panel_words * kPanel;
      auto* to = reinterpret_cast<Floats*>(sums + size_t(panel) * apart * kPanel);
      if (lower > 0)
        amx::multiply_rows<BFloat16Dot, true>(rows, stride, upper, lower, own, words, false, is_first, to);
      else
        amx::multiply_rows<BFloat16Dot, false>(rows, stride, upper, lower, own, words, false, is_first, to);
    }
    asm volatile("" ::: "memory");
  }

  int head_dim_;
  int words_;       // of a head's query
  int panels_;      // of a head
  int shaped_ = 0;  // rows that tiles are for
  Buffer<uint32_t> keys_;    // [chunks][2 panels][words][32 keys]
  Buffer<uint32_t> values_;  // [chunks][panel of the head][words of keys][32 dims]
};

#endif

}  // namespace baton
