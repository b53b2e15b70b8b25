// Products of float32 by the matrix unit, which multiplies bfloat16: a number is the sum of three of these.
//
// The parts of a number x are x rounded, what is left of it rounded, and the rest, which is exact: 3 x 8 bits. Of
// the nine products of parts the six largest are added, in float32; the others are below 2^-24 of the whole. So a
// product is as exact as one of float32, and its bits do not depend on the other rows. Numbers that are no finite
// ones become NaN, and parts below 2^-126 become 0.
#pragma once

#include <algorithm>

#include "vectors/amx.h"

namespace baton {

constexpr int kParts = 3;
// Numbers of the inner dimension that a step takes: those of a tile of 16 words of two.
constexpr int kStepNumbers = 32;
constexpr int kTileWords = 16;
// Words of a row, or of a column, that a step has: those of each part.
constexpr int kStepWords = kParts * kTileWords;

inline int words_of_parts(int inner) { return (inner + kStepNumbers - 1) / kStepNumbers * kStepWords; }

// The place of a column's word among the words of its panel: tiles of 16 words of 16 columns.
inline size_t place_of_part(int word, int column) {
  const int tile = word / kTileWords * 2 + column / kHalfPanel;
  return (size_t(tile) * kTileWords + word % kTileWords) * kHalfPanel + column % kHalfPanel;
}

#if defined(BATON_HAS_AMX)
inline bool has_parts() { return may_use_amx(); }

// Writes the parts of kStepNumbers numbers to kStepWords words.
inline void split_step(const float* numbers, uint32_t* to) {
  __m512 low = _mm512_loadu_ps(numbers), high = _mm512_loadu_ps(numbers + kStepNumbers / 2);
  for (int part = 0; part < kParts; ++part, to += kTileWords) {
    const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    _mm512_storeu_si512(to, rounded);
    low -= (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(rounded)), 16);
    high -= (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(rounded, 1)), 16);
  }
}

// sums: [panel][count][kPanelVectors] of rows of parts, that are `stride` words apart, against whole panels of `words`;
// panels of sums are `apart` rows apart.
void multiply_parts(const uint32_t* rows, size_t stride, int count, const uint32_t* panels, int num_panels, int words,
                    Floats* sums, int apart);
#else
inline bool has_parts() { return false; }
inline void split_step(const float*, uint32_t*) {}  // no matrix is of parts
inline void multiply_parts(const uint32_t*, size_t, int, const uint32_t*, int, int, Floats*, int) {}
#endif

// Writes the parts of a row, or of a column: words_of_parts(inner) words. What is left of the last step is zero.
inline void split(const float* numbers, int inner, uint32_t* to) {
  for (; inner >= kStepNumbers; inner -= kStepNumbers, numbers += kStepNumbers, to += kStepWords)
    split_step(numbers, to);
  if (inner == 0) return;
  float rest[kStepNumbers] = {};
  std::copy_n(numbers, inner, rest);
  split_step(rest, to);
}

}  // namespace baton
