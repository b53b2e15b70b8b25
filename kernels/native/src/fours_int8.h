// Products of codes of 4 bits with rows of 8 bits.
//
// The sum of a piece of 32 numbers is one of integers, so it is exact; the sums of pieces are float32, in
// the order of the inner dimension. So a row's result does not depend on the rows beside it.
#pragma once

#include "matrix.h"
#include "operands.h"

namespace baton {

// Words of a piece: of codes, and of a row. Each word of codes is two of a row: the lower halves of its
// bytes, then the upper ones.
constexpr int kCodeWords = kPiece / 8;
constexpr int kRowWords = kPiece / 4;
// Pieces that are unpacked at a time for many rows: they and the rows' stay in the first-level cache.
constexpr int kUnpackedPieces = 4;
constexpr int kUnpackedWords = kRowWords * kPanel;

// Four codes times four numbers of a row, added in each lane. `Sum` holds those of one piece.
struct CodeDot {
#if defined(__AVX512VNNI__)
  using Sum = Ints;
  static Sum add(Sum sum, Words codes, Words row) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)row);
  }
  static Ints total(Sum sum) { return sum; }
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
  using Sum = Ints;
  static Sum add(Sum sum, Words codes, Words row) {
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)codes, (__m256i)row);
  }
  static Ints total(Sum sum) { return sum; }
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
  // Of 16 bits: 16 products of a piece, of 15 * 127 at most, are below 2^15.
  typedef int16_t Sum __attribute__((vector_size(4 * kLanes)));
#if defined(__AVX512BW__)
  static Sum add(Sum sum, Words codes, Words row) {
    return sum + (Sum)_mm512_maddubs_epi16((__m512i)codes, (__m512i)row);
  }
  static Ints total(Sum sum) {
    return (Ints)_mm512_madd_epi16((__m512i)sum, _mm512_set1_epi16(1));
  }
#else
  static Sum add(Sum sum, Words codes, Words row) {
    return sum + (Sum)_mm256_maddubs_epi16((__m256i)codes, (__m256i)row);
  }
  static Ints total(Sum sum) {
    return (Ints)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
  }
#endif
#else
  using Sum = Ints;
  static Sum add(Sum sum, Words codes, Words row) {
    for (int byte = 0; byte < 4; ++byte) {
      const Ints code = reinterpret_cast<Ints>(codes >> (8 * byte) & 0xffu);
      sum += code * (reinterpret_cast<Ints>(row << (24 - 8 * byte)) >> 24);
    }
    return sum;
  }
  static Ints total(Sum sum) { return sum; }
#endif
};

// Of a vector of columns: what the sums of a piece are multiplied with, and what they are too large by.
// kVaries: zeros differ, or there are offsets.
template <bool kVaries>
struct PieceScale {
  Floats scale;
  Ints zeros;
  Floats offsets;

  PieceScale(const GroupScales& from, size_t at) : scale(from.scales.at(at)) {
    if constexpr (kVaries) {
      zeros = from.zeros.size() > 0 ? (Ints)widen_bytes(load<Bytes>(from.zeros.data() + at))
                                    : Ints{} + from.zero;
      offsets = from.offsets.empty() ? Floats{} : from.offsets.at(at);
    }
  }

  // zero: of all columns, times the row's sum.
  Floats add(Floats sum, Ints exact, const Piece& piece, int zero) const {
    exact -= kVaries ? zeros * piece.sum : Ints{} + zero;
    sum += __builtin_convertvector(exact, Floats) * scale * splat(piece.scale);
    if constexpr (kVaries) sum -= offsets * splat(piece.scale * float(piece.sum));
    return sum;
  }
};

// The codes of one half of each byte of packed words, or words that hold them alone.
template <bool kIsPacked>
inline Words codes_of(const uint32_t* piece, int word, int column) {
  if constexpr (kIsPacked) {
    const Words words = load<Words>(piece + word / 2 * kPanel + column);
    return (word % 2 ? words >> 4 : words) & 0x0f0f0f0fu;
  } else {
    return load<Words>(piece + word * kPanel + column);
  }
}

struct PieceRows {
  const uint32_t* words;
  size_t stride;
  const Piece* pieces;
  size_t pieces_stride;
};

// sums [kRows][kPanelVectors] += rows . one piece of a panel; at: where its scales begin.
template <int kRows, bool kIsPacked, bool kVaries>
__attribute__((always_inline)) inline void add_piece(const PieceRows rows, const uint32_t* piece,
                                                     const GroupScales& scales, size_t at,
                                                     Floats* sums) {
  CodeDot::Sum acc[kRows][kPanelVectors] = {};
  auto add_word = [&](int word) {
    Words held[kRows];
    for (int r = 0; r < kRows; ++r) held[r] = splat(rows.words[r * rows.stride + word]);
    for (int v = 0; v < kPanelVectors; ++v) {
      const Words codes = codes_of<kIsPacked>(piece, word, v * kLanes);
      for (int r = 0; r < kRows; ++r) acc[r][v] = CodeDot::add(acc[r][v], codes, held[r]);
    }
  };
  // Of several rows, unrolled, compilers keep products in memory until they add them.
  if constexpr (kRows == 1) {
#pragma GCC unroll 8
    for (int word = 0; word < kRowWords; ++word) add_word(word);
  } else {
#pragma GCC unroll 1
    for (int word = 0; word < kRowWords; ++word) add_word(word);
  }
  const Piece* own[kRows];
  int zeros[kRows];
  for (int r = 0; r < kRows; ++r) {
    own[r] = rows.pieces + r * rows.pieces_stride;
    zeros[r] = scales.zero * own[r]->sum;
  }
  for (int v = 0; v < kPanelVectors; ++v) {
    const PieceScale<kVaries> scale(scales, at + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      Floats& sum = sums[r * kPanelVectors + v];
      sum = scale.add(sum, CodeDot::total(acc[r][v]), *own[r], zeros[r]);
    }
  }
}

// The same for `count` pieces from `first` on.
template <int kRows, bool kIsPacked, bool kVaries>
__attribute__((noinline)) void add_pieces(PieceRows rows, const uint32_t* from, const Matrix& matrix,
                                          int panel, int first, int count, Floats* sums) {
  const GroupScales& scales = matrix.groups;
  constexpr int kWords = (kIsPacked ? kCodeWords : kRowWords) * kPanel;
  const int per_group = (scales.group_words + kCodeWords - 1) / kCodeWords;
  size_t at = (size_t(panel) * scales.num_groups + first / per_group) * kPanel;
  for (int i = 0, left = per_group - first % per_group; i < count; ++i, from += kWords) {
    if (left == 0) {
      at += kPanel;
      left = per_group;
    }
    --left;
    if constexpr (kIsPacked) {
      for (int w = 0; w < kWords; w += kLineWords) prefetch(from + 8 * kWords + w);
    }
    add_piece<kRows, kIsPacked, kVaries>(rows, from, scales, at, sums);
    rows.words += kRowWords;
    ++rows.pieces;
  }
}

template <bool kIsPacked, int kRows = kTileRows>
inline void add_pieces_of(int num_rows, const PieceRows& rows, const uint32_t* from,
                          const Matrix& matrix, int panel, int first, int count, Floats* sums) {
  if (num_rows == kRows) {
    if (matrix.groups.varies())
      add_pieces<kRows, kIsPacked, true>(rows, from, matrix, panel, first, count, sums);
    else
      add_pieces<kRows, kIsPacked, false>(rows, from, matrix, panel, first, count, sums);
  } else if constexpr (kRows > 1) {
    add_pieces_of<kIsPacked, kRows - 1>(num_rows, rows, from, matrix, panel, first, count, sums);
  }
}

__attribute__((noinline)) inline void unpack_pieces(const uint32_t* from, int count, uint32_t* to) {
  for (int i = 0; i < count; ++i, from += kCodeWords * kPanel)
    for (int word = 0; word < kRowWords; ++word, to += kPanel)
      for (int v = 0; v < kPanel; v += kLanes) store(to + v, codes_of<true>(from, word, v));
}

// sums: [count][kPanelVectors] of the rows from `first` on against the whole panel.
inline void multiply_fours_int8(const Rows& rows, int first, int count, const Matrix& matrix,
                                int panel, Floats* sums) {
  auto part = [&](int row, int piece) {
    const size_t at = size_t(first + row);
    return PieceRows{rows.words + at * rows.stride + piece * kRowWords, rows.stride,
                     rows.pieces + at * rows.pieces_stride + piece, rows.pieces_stride};
  };
  const int pieces = matrix.words / kCodeWords;
  std::fill(sums, sums + size_t(count) * kPanelVectors, Floats{});
  if (count <= kTileRows) {
    add_pieces_of<true>(count, part(0, 0), matrix.panel(panel), matrix, panel, 0, pieces, sums);
    return;
  }
  alignas(64) uint32_t unpacked[kUnpackedPieces * kUnpackedWords];
  for (int piece = 0; piece < pieces; piece += kUnpackedPieces) {
    const int now = std::min(kUnpackedPieces, pieces - piece);
    const uint32_t* from = matrix.panel(panel) + size_t(piece) * kCodeWords * kPanel;
    unpack_pieces(from, now, unpacked);
    for (int w = 0; w < now * kCodeWords * kPanel; w += kLineWords)
      prefetch(from + kUnpackedPieces * kCodeWords * kPanel + w);
    for_row_groups(count, [&](int row, int n) {
      add_pieces_of<false>(n, part(row, piece), unpacked, matrix, panel, piece, now,
                           sums + size_t(row) * kPanelVectors);
    });
  }
}

}  // namespace baton
