// Numbers as integers of two digits that the matrix unit multiplies with bytes, and bytes in the order that it takes.
#pragma once

#include "vectors/simd.h"

namespace baton {

#if defined(__AVX512BW__)

constexpr float kLargestQuery = 127 * 128;
constexpr float kLargestWeight = 65535.0f;
constexpr float kLeastNumber = 1e-30f;  // less counts as nothing

// A query's numbers become integers by `factor`; one of their products is `unit`.
struct QueryScale {
  float factor;
  float unit;

  QueryScale(const uint16_t* numbers, int size) {
    Floats largest{}, strange{};
    for (int i = 0; i < size; i += kLanes) {
      const Floats x = widen(numbers + i);
      largest = max(largest, max(x, -x));
      strange += x * 0.0f;  // NaN, if a number is not finite
    }
    const float peak = max_lane(largest);
    const bool is_some = peak > kLeastNumber;
    factor = is_some ? kLargestQuery / peak : 0.0f;
    unit = (is_some ? peak * (1.0f / kLargestQuery) : 1.0f) + sum(strange);
  }
};

// 128 times the first digit, -127 to 127, and the second one, -64 to 63.
inline void split_query(Floats scaled, Bytes (&digits)[2]) {
  const __m512i whole = _mm512_cvtps_epi32((__m512)scaled);
  const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(64)), 7);
  digits[0] = low_bytes((Words)upper);
  digits[1] = low_bytes((Words)_mm512_sub_epi32(whole, _mm512_slli_epi32(upper, 7)));
}
inline __m512i join_scores(__m512i upper, __m512i lower) {
  return _mm512_add_epi32(_mm512_slli_epi32(upper, 7), lower);
}

// 256 times the first digit and the second one, 0 to 255, of 64 weights. Quad w has those of vector w % 4 from number
// w / 4 * 4 on: instructions that pack go by quarters.
inline void split_weights(const float* from, Floats factor, uint8_t* upper, uint8_t* lower) {
  __m512i x[4];
  for (int i = 0; i < 4; ++i) x[i] = _mm512_cvtps_epi32((__m512)(load<Floats>(from + i * kLanes) * factor));
  const __m512i a = _mm512_packus_epi32(x[0], x[1]), b = _mm512_packus_epi32(x[2], x[3]);
  const __m512i low = _mm512_set1_epi16(255);
  _mm512_store_si512(upper, _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8)));
  _mm512_store_si512(lower, _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low)));
}
inline __m512i join_values(__m512i upper, __m512i lower) {
  return _mm512_add_epi32(_mm512_slli_epi32(upper, 8), lower);
}

// 64 dims of a quad of tokens become lines of four tiles: dim 16 L + 4 j + i is word 4 L + i of line j.
inline void interleave(const uint8_t* from, size_t row_bytes, int8_t* to, size_t apart) {
  const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + row_bytes);
  const __m512i c = _mm512_loadu_si512(from + 2 * row_bytes), d = _mm512_loadu_si512(from + 3 * row_bytes);
  const __m512i ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, d);
  const __m512i ab_behind = _mm512_unpackhi_epi8(a, b), cd_behind = _mm512_unpackhi_epi8(c, d);
  _mm512_store_si512(to, _mm512_unpacklo_epi16(ab, cd));
  _mm512_store_si512(to + apart, _mm512_unpackhi_epi16(ab, cd));
  _mm512_store_si512(to + 2 * apart, _mm512_unpacklo_epi16(ab_behind, cd_behind));
  _mm512_store_si512(to + 3 * apart, _mm512_unpackhi_epi16(ab_behind, cd_behind));
}
// Four lines in that order become one behind the other.
inline void order_dims(__m512i (&x)[4]) {
  const __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
  const __m512i c = _mm512_shuffle_i32x4(x[0], x[1], 0xee), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
  x[0] = _mm512_shuffle_i32x4(a, b, 0x88);
  x[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
  x[2] = _mm512_shuffle_i32x4(c, d, 0x88);
  x[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

#endif

}  // namespace baton
