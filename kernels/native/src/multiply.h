// Rows times a packed matrix, split over the pool; what happens to the results is up to the caller.
#pragma once

#include <algorithm>
#include <vector>

#include "matrix.h"
#include "rows.h"

namespace baton {

// Rows as words, with one scale per row if they are int8.
struct Rows {
  const uint32_t* words;
  size_t stride;
  int count;
  const float* scales;
};

// Rows that one task takes: their sums stay in the first-level cache.
constexpr int kTaskRows = 12 * kTileRows;
// Words that a group of rows goes through before the next group does, while few rows share a panel
// that comes from memory. Half of a piece is what one group fetches of the next piece.
constexpr int kPieceWords = 64;
constexpr int kAheadWords = 32;

// Words of a panel that are made float32 at a time: they and the rows stay in the first-level cache.
constexpr int kWideWords = 32;

// multiply_panel for bfloat16 without an instruction for it: what several groups of rows read is made
// float32 once.
inline void multiply_wide(const Rows& rows, int first, int count, const uint32_t* panel, int words,
                          Floats* sums) {
  alignas(64) uint32_t wide_panel[2 * kWideWords * kPanel];
  alignas(64) uint32_t wide_rows[kTaskRows][2 * kWideWords];
  for (int word = 0; word < words; word += kWideWords) {
    const int piece = std::min(kWideWords, words - word);
    for (int w = 0; w < piece; ++w) {
      const uint32_t* from = panel + size_t(word + w) * kPanel;
      for (int part = 0; part < 2; ++part)
        for (int v = 0; v < kPanel; v += kLanes)
          store(wide_panel + (2 * w + part) * kPanel + v,
                BFloat16Dot::column_part(load<Words>(from + v), part));
    }
    for (int r = 0; r < count; ++r) {
      const uint32_t* from = rows.words + size_t(first + r) * rows.stride + word;
      widen_row(reinterpret_cast<float*>(wide_rows[r]), reinterpret_cast<const uint16_t*>(from),
                2 * piece);
    }
    const uint32_t* ahead = panel + size_t(word + kWideWords) * kPanel;
    for_row_groups(count, [&](int row, int n) {
      auto* to = sums + row * kPanelVectors;
      if (row == 0)
        multiply_rows<Float32Dot, 1>(n, wide_rows[row], 2 * kWideWords, wide_panel, 2 * piece, to,
                                     word == 0, ahead);
      else
        multiply_rows<Float32Dot, 0>(n, wide_rows[row], 2 * kWideWords, wide_panel, 2 * piece, to,
                                     word == 0);
    });
  }
}

// sums: [count][kPanelVectors] of rows first.. against the whole panel.
template <class Dot>
void multiply_panel(const Rows& rows, int first, int count, const uint32_t* panel, int words,
                    typename Dot::Accumulator* sums) {
  const uint32_t* start = rows.words + size_t(first) * rows.stride;
  if (count <= kTileRows) {
    multiply_rows<Dot, 2>(count, start, rows.stride, panel, words, sums, true,
                          panel + kAheadWords * kPanel);
    return;
  }
  if constexpr (Dot::kIsWider) {
    multiply_wide(rows, first, count, panel, words, sums);
    return;
  }
  if (count > 4 * kTileRows) {  // the panel is read from a cache most of the time
    for_row_groups(count, [&](int row, int n) {
      multiply_rows<Dot, 0>(n, start + row * rows.stride, rows.stride, panel, words,
                            sums + row * kPanelVectors, true);
    });
    return;
  }
  for (int word = 0; word < words; word += kPieceWords) {
    const int piece = std::min(kPieceWords, words - word);
    const uint32_t* here = panel + size_t(word) * kPanel;
    const uint32_t* ahead = here + kPieceWords * kPanel;
    int group = 0;
    for_row_groups(count, [&](int row, int n) {
      const uint32_t* from = start + row * rows.stride + word;
      auto* to = sums + row * kPanelVectors;
      if (group < 2)
        multiply_rows<Dot, 1>(n, from, rows.stride, here, piece, to, word == 0,
                              ahead + group * kPieceWords * kLineWords);
      else
        multiply_rows<Dot, 0>(n, from, rows.stride, here, piece, to, word == 0);
      ++group;
    });
  }
}

template <class Dot>
inline Floats finish(const Matrix& matrix, const Rows& rows, int row, int column,
                     typename Dot::Accumulator sum) {
  const Floats bias = load<Floats>(matrix.bias.data() + column);
  if constexpr (std::is_same_v<typename Dot::Accumulator, Floats>) {
    return sum + bias;
  } else {
    const Ints exact = sum - load<Ints>(matrix.excess.data() + column);
    const Floats scale = load<Floats>(matrix.scales.data() + column) * rows.scales[row];
    return __builtin_convertvector(exact, Floats) * scale + bias;
  }
}

inline int blocks_of(const Rows& rows) { return (rows.count + kTaskRows - 1) / kTaskRows; }

// One block of the rows times one panel.
template <class Dot, class Put>
void multiply_block(const Rows& rows, const Matrix& matrix, int panel, int block, Put&& put) {
  const int blocks = blocks_of(rows);
  const int first = int(int64_t(rows.count) * block / blocks);
  const int count = int(int64_t(rows.count) * (block + 1) / blocks) - first;
  alignas(64) typename Dot::Accumulator sums[kTaskRows * kPanelVectors];
  multiply_panel<Dot>(rows, first, count, matrix.panel(panel), matrix.words, sums);
  for (int r = 0; r < count; ++r) {
    Floats values[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v)
      values[v] = finish<Dot>(matrix, rows, first + r, panel * kPanel + v * kLanes,
                              sums[r * kPanelVectors + v]);
    put(first + r, panel * kPanel, values);
  }
}

// Calls put(row, column, values) with float32 results, bias added: values[v] are the columns from
// column + v * kLanes on. The columns past the matrix's last one are zero. Each (row, panel) once,
// from any thread.
template <class Dot, class Put>
void multiply(Pool& pool, const Rows& rows, const Matrix& matrix, Put&& put) {
  const int blocks = blocks_of(rows);
  // A panel's blocks are neighbours: it is read from memory once.
  pool.run(matrix.num_panels() * blocks, [&](int task, int) {
    multiply_block<Dot>(rows, matrix, task / blocks, task % blocks, put);
  });
}

// Some rows and the matrix that they are multiplied with.
struct Product {
  Rows rows;
  const Matrix* matrix;
  int first;  // the number of the first row among those of all products
};

// The same for several products at once; `row` counts the rows of all of them.
template <class Dot, class Put>
void multiply_each(Pool& pool, const std::vector<Product>& products, Put&& put) {
  std::vector<int> ends;
  int total = 0;
  for (const Product& product : products)
    ends.push_back(total += product.matrix->num_panels() * blocks_of(product.rows));
  pool.run(total, [&](int task, int) {
    const size_t index = std::upper_bound(ends.begin(), ends.end(), task) - ends.begin();
    const Product& product = products[index];
    const int blocks = blocks_of(product.rows);
    const int own = task - (index ? ends[index - 1] : 0);
    multiply_block<Dot>(product.rows, *product.matrix, own / blocks, own % blocks,
                        [&](int row, int column, const Floats* values) {
                          put(product.first + row, column, values);
                        });
  });
}

}  // namespace baton
