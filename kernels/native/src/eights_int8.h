// Products of integers of 8 bits with rows of 8 bits. As those of codes of 4 bits (fours_int8.h): sums of
// a piece, or of its half if that is a group, are exact; the sums of pieces are float32, in one order.
#pragma once

#include "fours_int8.h"

namespace baton {

// Four codes times four numbers of a row, added in each lane.
struct ByteDot {
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
  // Codes are multiplied without a sign.
  static constexpr int kAdded = 128;
  static Words codes(Words words) { return words ^ 0x80808080u; }
  static Ints add(Ints sum, Words codes, Words, Words row) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)row);
#else
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)codes, (__m256i)row);
#endif
  }
#elif defined(__AVX2__) && !defined(__AVX512F__)
  // Magnitudes times the row's numbers with the codes' signs: two products are below 2^15.
  static constexpr int kAdded = 0;
  static Words codes(Words words) { return (Words)_mm256_abs_epi8((__m256i)words); }
  static Ints add(Ints sum, Words codes, Words words, Words row) {
    const __m256i signed_row = _mm256_sign_epi8((__m256i)row, (__m256i)words);
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)codes, signed_row);
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
#else
  static constexpr int kAdded = 0;
  static Words codes(Words words) { return words; }
  static Ints add(Ints sum, Words codes, Words, Words row) {
    for (int byte = 0; byte < 4; ++byte) {
      const Ints code = reinterpret_cast<Ints>(codes << (24 - 8 * byte)) >> 24;
      sum += code * (reinterpret_cast<Ints>(row << (24 - 8 * byte)) >> 24);
    }
    return sum;
  }
#endif
};

// sums [kRows][kPanelVectors] += rows . one piece of a panel; at: where its scales begin. An exact sum is
// one of kWords words of the piece: of all, or of a half.
template <int kRows, int kWords, bool kVaries>
__attribute__((always_inline)) inline void add_byte_piece(const PieceRows& rows,
                                                          const uint32_t* piece,
                                                          const GroupScales& scales, size_t at,
                                                          Floats* sums) {
  for (int start = 0; start < kRowWords; start += kWords, at += kPanel) {
    Ints acc[kRows][kPanelVectors] = {};
#pragma GCC unroll 1
    for (int word = start; word < start + kWords; ++word) {
      Words held[kRows];
      for (int r = 0; r < kRows; ++r) held[r] = splat(rows.words[r * rows.stride + word]);
      for (int v = 0; v < kPanelVectors; ++v) {
        const Words words = load<Words>(piece + word * kPanel + v * kLanes);
        const Words codes = ByteDot::codes(words);
        for (int r = 0; r < kRows; ++r) acc[r][v] = ByteDot::add(acc[r][v], codes, words, held[r]);
      }
    }
    Piece own[kRows];
    for (int r = 0; r < kRows; ++r) {
      own[r] = rows.pieces[r * rows.pieces_stride];
      if (kWords < kRowWords) own[r].sum = start == 0 ? own[r].low : own[r].sum - own[r].low;
    }
    for (int v = 0; v < kPanelVectors; ++v) {
      const PieceScale<SignedBytes, kVaries> scale(scales, at + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        Floats& sum = sums[r * kPanelVectors + v];
        const Ints exact = acc[r][v] - ByteDot::kAdded * own[r].sum;
        sum = scale.add(sum, exact, own[r], scales.zero * own[r].sum);
      }
    }
  }
}

// The same for `count` pieces from `first` on.
template <int kRows, int kWords, bool kVaries>
__attribute__((noinline)) void add_byte_pieces(PieceRows rows, const Matrix& matrix, int panel,
                                               int first, int count, Floats* sums) {
  const GroupScales& scales = matrix.groups;
  constexpr int kPieceSize = kRowWords * kPanel;
  const uint32_t* from = matrix.panel(panel) + size_t(first) * kPieceSize;
  const size_t start = size_t(panel) * scales.num_groups * kPanel;
  for (int piece = first; piece < first + count; ++piece, from += kPieceSize) {
    for (int w = 0; w < kPieceSize; w += kLineWords) prefetch(from + 4 * kPieceSize + w);
    const size_t at = start + size_t(piece * kRowWords / scales.group_words) * kPanel;
    add_byte_piece<kRows, kWords, kVaries>(rows, from, scales, at, sums);
    rows.words += kRowWords;
    ++rows.pieces;
  }
}

template <int kRows = kTileRows>
inline void add_byte_pieces_of(int num_rows, const PieceRows& rows, const Matrix& matrix, int panel,
                               int first, int count, Floats* sums) {
  if (num_rows == kRows) {
    const bool varies = matrix.groups.varies();
    if (matrix.groups.group_words < kRowWords && matrix.groups.num_groups > 1) {
      if (varies)
        add_byte_pieces<kRows, kRowWords / 2, true>(rows, matrix, panel, first, count, sums);
      else
        add_byte_pieces<kRows, kRowWords / 2, false>(rows, matrix, panel, first, count, sums);
    } else if (varies) {
      add_byte_pieces<kRows, kRowWords, true>(rows, matrix, panel, first, count, sums);
    } else {
      add_byte_pieces<kRows, kRowWords, false>(rows, matrix, panel, first, count, sums);
    }
  } else if constexpr (kRows > 1) {
    add_byte_pieces_of<kRows - 1>(num_rows, rows, matrix, panel, first, count, sums);
  }
}

// Pieces that groups of rows go through before the next ones: they stay in the first-level cache.
constexpr int kSharedPieces = 8;

// sums: [count][kPanelVectors] of the rows from `first` on against the whole panel.
inline void multiply_eights_int8(const Rows& rows, int first, int count, const Matrix& matrix,
                                 int panel, Floats* sums) {
  const int pieces = matrix.words / kRowWords;
  std::fill(sums, sums + size_t(count) * kPanelVectors, Floats{});
  const int step = count <= kTileRows ? pieces : kSharedPieces;
  for (int piece = 0; piece < pieces; piece += step) {
    for_row_groups(count, [&](int row, int n) {
      add_byte_pieces_of(n, rows_from(rows, first + row, piece), matrix, panel, piece,
                         std::min(step, pieces - piece), sums + size_t(row) * kPanelVectors);
    });
  }
}

}  // namespace baton
