// Products with stored codes that share a scale, and a zero or an offset, by groups of inner numbers.
//
// A weight, (code - zero) * scale or code * scale - offset, becomes a float32 number; of scales of 16 bits
// it is the same as that of a dense matrix. It takes part in sums as one of a float32 matrix does: results
// are the same bits. Few rows take weights from registers; for many rows a piece of a panel is written once.
#pragma once

#include "matrix/matrix.h"
#include "vectors/rows.h"

namespace baton {

// Integers of 4 bits, without a sign.
struct Nibbles {
  static constexpr int kPerWord = 8;
  static constexpr float kFactor = 1.0f;
  static Floats number(Words words, int place, Words) {
    return __builtin_convertvector(reinterpret_cast<Ints>(words >> (4 * place) & 15u), Floats);
  }
  static Ints zero(Bytes zeros) { return reinterpret_cast<Ints>(widen_bytes(zeros)); }
};

// Integers of 8 bits. A number is 2^24 times its code: the other bytes of the word are cleared, not moved.
struct SignedBytes {
  static constexpr int kPerWord = 4;
  static constexpr float kFactor = 0x1p-24f;
  static Floats number(Words words, int place, Words) {
    const Words top = words << (24 - 8 * place) & 0xff000000u;
    return __builtin_convertvector(reinterpret_cast<Ints>(top), Floats);
  }
  static Ints zero(Bytes zeros) { return widen_signed_bytes(zeros); }
};

// Places of 4 bits in a table of integers of 8 bits.
struct LookedBytes {
  static constexpr int kPerWord = 8;
  static constexpr float kFactor = SignedBytes::kFactor;
  static Floats number(Words words, int place, Words table) {
    const Words places = (place % 2 ? words >> 4 : words) & 0x0f0f0f0fu;
    return SignedBytes::number(look_up(table, places), place / 2, table);
  }
  static Ints zero(Bytes) { return Ints{}; }
};

// E4M3. A number is 2^-120 times its code: exponent and mantissa are where those of float32 are, and the
// exponents count from another one. Small codes are denormal numbers then, as they are in E4M3.
struct Floats8 {
  static constexpr int kPerWord = 4;
  static constexpr float kFactor = 0x1p120f;
  static Floats number(Words words, int place, Words) {
    const Ints top = reinterpret_cast<Ints>(words << (24 - 8 * place));
    return bits_as<Floats>(reinterpret_cast<Words>(top >> 4) & 0x87f00000u);
  }
  static Ints zero(Bytes) { return Ints{}; }
};

// Numbers of a piece: its weights and those of the rows stay in the first-level cache.
constexpr int kPieceNumbers = 64;

// Fetches the line that begins `v` columns behind `from`, if one does, of the piece after the next one.
template <class Code>
inline void fetch_codes(const uint32_t* from, int v) {
  if (v % kLineWords == 0) prefetch(from + 2 * kPieceNumbers / Code::kPerWord * kPanel + v);
}

// The scales of a vector of columns, and what is added to a product of code and scale.
template <class Code>
struct ColumnScale {
  Floats scale;
  Floats plus;
  Words table;

  ColumnScale() = default;
  ColumnScale(const GroupScales& from, int panel, int group, int column) : table(load<Words>(from.table)) {
    const size_t at = (size_t(panel) * from.num_groups + group) * kPanel + column;
    scale = from.scales.at(at);
    if (!from.offsets.empty()) {
      // Nibbles are stored from 0 on.
      plus = float(-from.zero) * scale - from.offsets.at(at);
    } else {
      const Floats zero =
          from.zeros.size() > 0
              ? __builtin_convertvector(Code::zero(load<Bytes>(from.zeros.data() + at)), Floats)
              : splat(float(from.zero));
      plus = -zero * scale;
    }
    scale *= Code::kFactor;
  }

  // Of the code at `place` of each word.
  Floats weight(Words words, int place) const { return Code::number(words, place, table) * scale + plus; }
};

// Rows of float32 numbers that lie `stride` apart.
struct WideRows {
  const float* data;
  size_t stride;

  const float* row(int index) const { return data + index * stride; }
};

// Calls body(group, first, end) for the words from `word` on, by group; they count from 0.
template <class Body>
inline void for_groups(const GroupScales& groups, int word, int count, Body&& body) {
  for (int w = 0; w < count;) {
    const int group = (word + w) / groups.group_words;
    const int end = std::min(count, (group + 1) * groups.group_words - word);
    body(group, w, end);
    w = end;
  }
}

// sums [kRows][kPanelVectors] += rows . words of a panel. A word's columns come before the
// next word: the sums of one vector wait for each other, those of several do not.
template <class Code, int kRows>
__attribute__((noinline)) void multiply_codes_tile(WideRows rows, const Matrix& matrix, int panel,
                                int word, int count, Floats* sums) {
  const uint32_t* from = matrix.panel(panel) + size_t(word) * kPanel;
  Floats acc[kRows][kPanelVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = sums[r * kPanelVectors + v];
  for_groups(matrix.groups, word, count, [&](int group, int first, int end) {
    ColumnScale<Code> scales[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v)
      scales[v] = ColumnScale<Code>(matrix.groups, panel, group, v * kLanes);
    for (int w = first; w < end; ++w, from += kPanel)
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVectors; ++v) {
        fetch_codes<Code>(from, v * kLanes);
        const Words words = load<Words>(from + v * kLanes);
#pragma GCC unroll 8
        for (int place = 0; place < Code::kPerWord; ++place) {
          const Floats weight = scales[v].weight(words, place);
          for (int r = 0; r < kRows; ++r)
            acc[r][v] += splat(rows.row(r)[w * Code::kPerWord + place]) * weight;
        }
      }
  });
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kPanelVectors; ++v) sums[r * kPanelVectors + v] = acc[r][v];
}

template <class Code, int kRows = kTileRows>
inline void multiply_codes_rows(int num_rows, WideRows rows, const Matrix& matrix, int panel, int word, int count, Floats* sums) {
  if (num_rows == kRows) {
    multiply_codes_tile<Code, kRows>(rows, matrix, panel, word, count, sums);
  } else if constexpr (kRows > 1) {
    multiply_codes_rows<Code, kRows - 1>(num_rows, rows, matrix, panel, word, count, sums);
  }
}

// Writes the weights of `count` words of a panel: [number][kPanel].
template <class Code>
__attribute__((noinline)) void unpack_codes(const Matrix& matrix, int panel, int word, int count, float* to) {
  const uint32_t* from = matrix.panel(panel) + size_t(word) * kPanel;
  for_groups(matrix.groups, word, count, [&](int group, int first, int end) {
    for (int v = 0; v < kPanel; v += kLanes) {
      const ColumnScale<Code> scale(matrix.groups, panel, group, v);
      for (int w = first; w < end; ++w) {
        fetch_codes<Code>(from + size_t(w) * kPanel, v);
        const Words words = load<Words>(from + size_t(w) * kPanel + v);
#pragma GCC unroll 8
        for (int place = 0; place < Code::kPerWord; ++place)
          store(to + size_t(w * Code::kPerWord + place) * kPanel + v, scale.weight(words, place));
      }
    }
  });
}

// Numbers of `count` rows of elements from `first` on, in float32.
template <class Element>
inline WideRows widen_rows(const Element* rows, size_t stride, int count, int first, int size,
                           float* memory) {
  if constexpr (std::is_same_v<Element, float>) return {rows + first, stride};
  for (int r = 0; r < count; ++r)
    widen_row(memory + r * kPieceNumbers, rows + r * stride + first, size);
  return {memory, kPieceNumbers};
}

// sums: [count][kPanelVectors] of rows of elements, `stride` apart, against the whole panel.
template <class Code, class Element>
void multiply_codes(const Element* rows, size_t stride, int count, const Matrix& matrix, int panel,
                    Floats* sums) {
  alignas(64) float memory[kTaskRows * kPieceNumbers];
  alignas(64) float weights[kPieceNumbers * kPanel];
  constexpr int kWords = kPieceNumbers / Code::kPerWord;
  std::fill(sums, sums + size_t(count) * kPanelVectors, Floats{});
  for (int word = 0; word < matrix.words; word += kWords) {
    const int piece = std::min(kWords, matrix.words - word), numbers = piece * Code::kPerWord;
    const WideRows wide =
        widen_rows(rows, stride, count, word * Code::kPerWord, numbers, memory);
    if (count <= kTileRows) {
      multiply_codes_rows<Code>(count, wide, matrix, panel, word, piece, sums);
      continue;
    }
    unpack_codes<Code>(matrix, panel, word, piece, weights);
    for_row_groups(count, [&](int row, int n) {
      multiply_rows<Float32Dot, 0>(n, reinterpret_cast<const uint32_t*>(wide.row(row)), wide.stride,
                                   reinterpret_cast<const uint32_t*>(weights), numbers,
                                   sums + size_t(row) * kPanelVectors, false);
    });
  }
}

}  // namespace baton
