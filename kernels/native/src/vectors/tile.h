// The register tile: up to kTileRows rows times one panel of kPanel columns; and how rows become a panel.
#pragma once

#include "vectors/dot.h"

namespace baton {

constexpr int kPanel = 32;
constexpr int kHalfPanel = kPanel / 2;
constexpr int kPanelVectors = kPanel / kLanes;
#if defined(__AVX512F__)
constexpr int kTileRows = 14;  // 28 accumulators, 2 vectors of the panel, 1 of the row: of 32
#elif defined(__AVX__)
constexpr int kTileRows = 3;  // 12 accumulators, 3 vectors of the rows, 1 of the panel: of 16
#else
constexpr int kTileRows = 1;
#endif

// Panels that one row is multiplied with at once, word by word: a core of Zen 3 reads four streams faster than one.
// No processor with AVX-512 was measured.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kStreams = 4;
#else
constexpr int kStreams = 1;
#endif

// Rows that one task takes: their sums stay in the first-level cache.
constexpr int kTaskRows = 12 * kTileRows;

inline int panels_of(int columns) { return (columns + kPanel - 1) / kPanel; }
inline int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Adds the products of one part of a word. What there is less of, rows or vectors of the panel, is held
// in registers.
template <class Dot, int kRows, int kVectors>
inline void add_part(const uint32_t* rows, size_t stride, const uint32_t* panel, int part,
                     typename Dot::Accumulator (&acc)[kRows][kVectors]) {
  auto row = [&](int r) { return Dot::row_part(splat(rows[r * stride + part % Dot::kRowWords]), part); };
  auto columns = [&](int v) { return Dot::column_part(load<Words>(panel + v * kLanes), part); };
  if constexpr (kRows < kVectors) {
    Words held[kRows];
    for (int r = 0; r < kRows; ++r) held[r] = row(r);
    for (int v = 0; v < kVectors; ++v) {
      const Words now = columns(v);
      for (int r = 0; r < kRows; ++r) acc[r][v] = Dot::add(acc[r][v], held[r], now);
    }
  } else {
    Words held[kVectors];
    for (int v = 0; v < kVectors; ++v) held[v] = columns(v);
    for (int r = 0; r < kRows; ++r) {
      const Words now = row(r);
      for (int v = 0; v < kVectors; ++v) acc[r][v] = Dot::add(acc[r][v], now, held[v]);
    }
  }
}

// sums[row][column] (+)= rows[row][word] . panel[word][column] over `words`.
//
// rows: words `stride` apart; panel: [words][kPanel]; sums: kPanel apart, continued unless `first`.
// At every word kAhead cache lines are fetched from `ahead` on: the caller says what is needed next.
// kVectors: of the panel, from where `panel` and `sums` begin.
template <class Dot, int kRows, int kAhead, int kVectors>
inline void multiply_tile(const uint32_t* rows, size_t stride, const uint32_t* panel, int words,
                          typename Dot::Accumulator* sums, bool first, const uint32_t* ahead) {
  using Accumulator = typename Dot::Accumulator;
  Accumulator acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      acc[r][v] = first ? Accumulator{} : sums[r * kPanelVectors + v];
#pragma GCC unroll 2
  for (int w = 0; w < words; ++w) {
    for (int line = 0; line < kAhead; ++line) prefetch(ahead + (w * kAhead + line) * kLineWords);
    for (int part = 0; part < Dot::kParts; ++part)
      add_part<Dot, kRows, kVectors>(rows + w * Dot::kRowWords, stride, panel + w * kPanel, part, acc);
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r * kPanelVectors + v] = acc[r][v];
}

// The same for any number of rows up to kTileRows.
template <class Dot, int kAhead, int kRows = kTileRows, int kVectors = kPanelVectors>
inline void multiply_rows(int num_rows, const uint32_t* rows, size_t stride, const uint32_t* panel,
                          int words, typename Dot::Accumulator* sums, bool first,
                          const uint32_t* ahead = nullptr) {
  if (num_rows == kRows) {
    multiply_tile<Dot, kRows, kAhead, kVectors>(rows, stride, panel, words, sums, first, ahead);
  } else if constexpr (kRows > 1) {
    multiply_rows<Dot, kAhead, kRows - 1, kVectors>(num_rows, rows, stride, panel, words, sums, first,
                                                    ahead);
  }
}

// Calls body(first_row, num_rows) for groups of at most kMost rows, as equal as possible.
template <int kMost = kTileRows, class Body>
inline void for_row_groups(int num_rows, Body&& body) {
  const int groups = (num_rows + kMost - 1) / kMost;
  for (int group = 0, row = 0; group < groups; ++group) {
    const int rows = (num_rows - row + groups - group - 1) / (groups - group);
    body(row, rows);
    row += rows;
  }
}

// sums[panel][kPanelVectors] = row . panel of kPanels neighbours, as multiply_tile has them.
template <class Dot, int kPanels>
__attribute__((noinline)) void multiply_streams(const uint32_t* row, const uint32_t* panels, int words,
                                                typename Dot::Accumulator* sums) {
  typename Dot::Accumulator acc[kPanels][1][kPanelVectors] = {};
  const size_t size = size_t(words) * kPanel;
  for (int w = 0; w < words; ++w)
    for (int p = 0; p < kPanels; ++p)
      for (int part = 0; part < Dot::kParts; ++part)
        add_part<Dot, 1, kPanelVectors>(row + w * Dot::kRowWords, 0, panels + p * size + w * kPanel, part, acc[p]);
  for (int p = 0; p < kPanels; ++p)
    for (int v = 0; v < kPanelVectors; ++v) sums[p * kPanelVectors + v] = acc[p][0][v];
}

// The same for any number of panels up to kStreams.
template <class Dot, int kPanels = kStreams>
inline void multiply_panels_at_once(int num_panels, const uint32_t* row, const uint32_t* panels, int words,
                                    typename Dot::Accumulator* sums) {
  if (num_panels == kPanels) {
    multiply_streams<Dot, kPanels>(row, panels, words, sums);
  } else if constexpr (kPanels > 2) {
    multiply_panels_at_once<Dot, kPanels - 1>(num_panels, row, panels, words, sums);
  }
}

#if defined(__AVX512F__)
// Calls put(word, words of all rows) for each word of the transpose of 16 rows of 16 words.
template <class Put>
inline void transpose_words(const uint32_t* const rows[16], Put&& put) {
  __m512i r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(rows[i]);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    put(i, (Words)_mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
    put(i + 4, (Words)_mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
    put(i + 8, (Words)_mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
    put(i + 12, (Words)_mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
  }
}
#endif

}  // namespace baton
