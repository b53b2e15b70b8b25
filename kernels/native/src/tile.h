// The register tile: up to kTileRows rows times one panel of kPanel columns.
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

}  // namespace baton
