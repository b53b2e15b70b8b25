// Products with codes of 4 bits that share a scale, and a zero or an offset, by groups of inner numbers.
//
// A weight, (code - zero) * scale or code * scale - offset, becomes a float32 number; of scales of 16 bits
// it is the same as that of a dense matrix. It takes part in sums as one of a float32 matrix does: results
// are the same bits. Few rows take weights from registers; for many rows a piece of a panel is written once.
#pragma once

#include "matrix.h"
#include "rows.h"

namespace baton {

// Codes of a word, along the inner dimension.
constexpr int kFours = 8;
// Words of a piece: its weights and the rows' numbers stay in the first-level cache.
constexpr int kFoursPiece = 8;
constexpr int kFoursNumbers = kFours * kFoursPiece;

// The scales of a vector of columns, and what is added to a product of code and scale.
struct FoursScale {
  Floats scale;
  Floats plus;

  FoursScale() = default;
  FoursScale(const FourScales& from, int panel, int group, int column) {
    const size_t at = (size_t(panel) * from.num_groups + group) * kPanel + column;
    scale = from.scales.at(at);
    if (!from.offsets.empty()) {
      // Codes are stored from 0 on.
      plus = float(-from.zero) * scale - from.offsets.at(at);
      return;
    }
    const Floats zero =
        from.zeros.size() > 0
            ? __builtin_convertvector((Ints)widen_bytes(load<Bytes>(from.zeros.data() + at)), Floats)
            : splat(float(from.zero));
    plus = -zero * scale;
  }

  // Of the code at `place` of each word.
  Floats weight(Words words, int place) const {
    const Ints code = reinterpret_cast<Ints>(words >> (4 * place) & 15u);
    return __builtin_convertvector(code, Floats) * scale + plus;
  }
};

// sums [kRows][kPanelVectors] += rows of kFoursNumbers . words of a panel. A word's columns come before the
// next word: the sums of one vector wait for each other, those of several do not.
template <int kRows>
__attribute__((noinline)) void multiply_fours_tile(const float (*rows)[kFoursNumbers], const Matrix& matrix, int panel,
                                int word, int count, Floats* sums) {
  const uint32_t* from = matrix.panel(panel) + size_t(word) * kPanel;
  Floats acc[kRows][kPanelVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = sums[r * kPanelVectors + v];
  for (int w = 0; w < count;) {
    const int group = (word + w) / matrix.fours.group_words;
    const int end = std::min(count, (group + 1) * matrix.fours.group_words - word);
    FoursScale scales[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v)
      scales[v] = FoursScale(matrix.fours, panel, group, v * kLanes);
    for (; w < end; ++w, from += kPanel)
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVectors; ++v) {
        const Words words = load<Words>(from + v * kLanes);
#pragma GCC unroll 8
        for (int place = 0; place < kFours; ++place) {
          const Floats weight = scales[v].weight(words, place);
          for (int r = 0; r < kRows; ++r)
            acc[r][v] += splat(rows[r][w * kFours + place]) * weight;
        }
      }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kPanelVectors; ++v) sums[r * kPanelVectors + v] = acc[r][v];
}

template <int kRows = kTileRows>
inline void multiply_fours_rows(int num_rows, const float (*rows)[kFoursNumbers],
                                const Matrix& matrix, int panel, int word, int count, Floats* sums) {
  if (num_rows == kRows) {
    multiply_fours_tile<kRows>(rows, matrix, panel, word, count, sums);
  } else if constexpr (kRows > 1) {
    multiply_fours_rows<kRows - 1>(num_rows, rows, matrix, panel, word, count, sums);
  }
}

// Writes the weights of `count` words of a panel: [number][kPanel].
__attribute__((noinline)) inline void unpack_fours(const Matrix& matrix, int panel, int word, int count, float* to) {
  const uint32_t* from = matrix.panel(panel) + size_t(word) * kPanel;
  for (int v = 0; v < kPanel; v += kLanes)
    for (int w = 0; w < count; ++w) {
      const FoursScale scale(matrix.fours, panel, (word + w) / matrix.fours.group_words, v);
      const Words words = load<Words>(from + size_t(w) * kPanel + v);
#pragma GCC unroll 8
      for (int place = 0; place < kFours; ++place)
        store(to + size_t(w * kFours + place) * kPanel + v, scale.weight(words, place));
    }
}

// sums: [count][kPanelVectors] of the rows from `first` on against the whole panel. `rows` are words of
// elements, which become float32.
template <class Element>
void multiply_fours(const uint32_t* rows, size_t stride, int count, const Matrix& matrix, int panel,
                    Floats* sums) {
  alignas(64) float wide_rows[kTaskRows][kFoursNumbers];
  alignas(64) float weights[kFoursNumbers * kPanel];
  std::fill(sums, sums + size_t(count) * kPanelVectors, Floats{});
  for (int word = 0; word < matrix.words; word += kFoursPiece) {
    const int piece = std::min(kFoursPiece, matrix.words - word);
    for (int r = 0; r < count; ++r)
      widen_row(wide_rows[r],
                reinterpret_cast<const Element*>(rows + r * stride) + size_t(word) * kFours,
                piece * kFours);
    const uint32_t* ahead = matrix.panel(panel) + size_t(word + 2 * kFoursPiece) * kPanel;
    for (int w = 0; w < piece * kPanel; w += kLineWords) prefetch(ahead + w);
    if (count <= kTileRows) {
      multiply_fours_rows(count, wide_rows, matrix, panel, word, piece, sums);
      continue;
    }
    unpack_fours(matrix, panel, word, piece, weights);
    for_row_groups(count, [&](int row, int n) {
      multiply_rows<Float32Dot, 0>(n, reinterpret_cast<const uint32_t*>(wide_rows[row]),
                                   kFoursNumbers, reinterpret_cast<const uint32_t*>(weights),
                                   piece * kFours, sums + size_t(row) * kPanelVectors, false);
    });
  }
}

}  // namespace baton
