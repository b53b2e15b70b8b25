// The register tile: up to kTileRows rows times one panel of kPanel columns; and how rows become a panel.
#pragma once

#include "dot.h"

namespace baton {

constexpr int kPanel = 32;
constexpr int kPanelVectors = kPanel / kLanes;
#if defined(__AVX512F__)
constexpr int kTileRows = 14;  // 28 accumulators, 2 vectors of the panel, 1 of the row: of 32
#else
constexpr int kTileRows = 3;
#endif

inline int panels_of(int columns) { return (columns + kPanel - 1) / kPanel; }
inline int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// sums[row][column] (+)= rows[row][word] . panel[word][column] over `words`.
//
// rows: words `stride` apart; panel: [words][kPanel]; sums: kPanel apart, continued unless `first`.
// At every word kAhead cache lines are fetched from `ahead` on: the caller says what is needed next.
template <class Dot, int kRows, int kAhead>
inline void multiply_tile(const uint32_t* rows, size_t stride, const uint32_t* panel, int words,
                          typename Dot::Accumulator* sums, bool first, const uint32_t* ahead) {
  using Accumulator = typename Dot::Accumulator;
  Accumulator acc[kRows][kPanelVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kPanelVectors; ++v)
      acc[r][v] = first ? Accumulator{} : sums[r * kPanelVectors + v];
#pragma GCC unroll 2
  for (int w = 0; w < words; ++w) {
    for (int line = 0; line < kAhead; ++line) prefetch(ahead + (w * kAhead + line) * kLanes);
    U32x16 columns[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v)
      columns[v] = load<U32x16>(panel + w * kPanel + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const U32x16 row = splat(rows[r * stride + w]);
      for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = Dot::add(acc[r][v], row, columns[v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kPanelVectors; ++v) sums[r * kPanelVectors + v] = acc[r][v];
}

// The same for any number of rows up to kTileRows.
template <class Dot, int kAhead, int kRows = kTileRows>
inline void multiply_rows(int num_rows, const uint32_t* rows, size_t stride, const uint32_t* panel,
                          int words, typename Dot::Accumulator* sums, bool first,
                          const uint32_t* ahead = nullptr) {
  if (num_rows == kRows) {
    multiply_tile<Dot, kRows, kAhead>(rows, stride, panel, words, sums, first, ahead);
  } else if constexpr (kRows > 1) {
    multiply_rows<Dot, kAhead, kRows - 1>(num_rows, rows, stride, panel, words, sums, first, ahead);
  }
}

// Calls body(first_row, num_rows) for groups of at most kTileRows rows, as equal as possible.
template <class Body>
inline void for_row_groups(int num_rows, Body&& body) {
  const int groups = (num_rows + kTileRows - 1) / kTileRows;
  for (int group = 0, row = 0; group < groups; ++group) {
    const int rows = (num_rows - row + groups - group - 1) / (groups - group);
    body(row, rows);
    row += rows;
  }
}

#if defined(__AVX512F__)
// Writes the transpose of 16 rows of 16 words, each result row kPanel words after the last.
inline void transpose_words(const uint32_t* const rows[16], uint32_t* to) {
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
    _mm512_storeu_si512(to + (i + 0) * kPanel, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
    _mm512_storeu_si512(to + (i + 4) * kPanel, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
    _mm512_storeu_si512(to + (i + 8) * kPanel, _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
    _mm512_storeu_si512(to + (i + 12) * kPanel, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
  }
}
#endif

}  // namespace baton
