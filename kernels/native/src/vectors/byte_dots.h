// Four codes of a column times four numbers of a row, bytes all, added in each lane.
//
// A sum begins with what the zero of the codes makes of it: less `zero` times the sum of the row's numbers. That
// is the same for all columns, a word of the row: `start` makes it, `begin` puts it into each lane.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "vectors/simd.h"

namespace baton {

// Of the numbers of a row, sums of those that meet the lower two bytes of words of codes, and the upper two.
struct RowSums {
  int32_t lower = 0;
  int32_t upper = 0;
  int32_t total() const { return lower + upper; }
};

#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
// codes: without a sign.
inline Ints dot_bytes(Ints sum, Words codes, Words row) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)row);
#else
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)codes, (__m256i)row);
#endif
}
#endif

// Codes without a sign, of few bits: see `fits_dot`.
struct CodeDot {
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
  using Sum = Ints;
  static uint32_t start(int zero, const RowSums& sums) { return uint32_t(-zero * sums.total()); }
  static Sum begin(uint32_t start) { return Ints{} + int32_t(start); }
  static Sum add(Sum sum, Words codes, Words row) { return dot_bytes(sum, codes, row); }
  static Ints total(Sum sum) { return sum; }
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
  // Of 16 bits, and modulo 2^16: only the last of them has to fit.
  typedef uint16_t Sum __attribute__((vector_size(4 * kLanes)));
  static uint32_t start(int zero, const RowSums& sums) {
    return uint32_t(uint16_t(-zero * sums.lower)) | uint32_t(uint16_t(-zero * sums.upper)) << 16;
  }
  static Sum begin(uint32_t start) { return (Sum)splat(start); }
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
  static uint32_t start(int zero, const RowSums& sums) { return uint32_t(-zero * sums.total()); }
  static Sum begin(uint32_t start) { return Ints{} + int32_t(start); }
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

// Whether CodeDot has the sum of `words` words of codes up to `most`, less `zero`, times numbers up to `row`:
// two products without their zero fit 16 bits, and so does what each half of a lane is at the end.
inline bool fits_dot(int most, int zero, int words, int row) {
  const int largest = std::max(std::abs(zero), std::abs(most - zero));
  return 2 * most * row < 1 << 15 && 2 * words * largest * row < 1 << 15;
}

// Codes with a sign, times numbers from -127 on.
struct ByteDot {
  using Sum = Ints;
  static Sum begin(uint32_t start) { return Ints{} + int32_t(start); }
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
  static uint32_t start(int zero, const RowSums& sums) { return uint32_t((-128 - zero) * sums.total()); }
  // Codes are multiplied without a sign.
  static Sum add(Sum sum, Words codes, Words row) {
    return dot_bytes(sum, codes ^ 0x80808080u, row);
  }
#else
  static uint32_t start(int zero, const RowSums& sums) { return uint32_t(-zero * sums.total()); }
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Magnitudes times the row's numbers with the codes' signs: two products are below 2^15.
  static Sum add(Sum sum, Words codes, Words row) {
    const __m256i signed_row = _mm256_sign_epi8((__m256i)row, (__m256i)codes);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)codes), signed_row);
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
#else
  static Sum add(Sum sum, Words codes, Words row) {
    for (int byte = 0; byte < 4; ++byte) {
      const Ints code = reinterpret_cast<Ints>(codes << (24 - 8 * byte)) >> 24;
      sum += code * (reinterpret_cast<Ints>(row << (24 - 8 * byte)) >> 24);
    }
    return sum;
  }
#endif
#endif
  static Ints total(Sum sum) { return sum; }
};

}  // namespace baton
