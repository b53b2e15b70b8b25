// How the 8-bit numbers of a row lie in memory for Int8Dot: bytes, or halves in the order of a word's parts.
#pragma once

#include "vectors/simd.h"

namespace baton {

// Writes numbers `place`.. of a row that begins at `to`; `place` is a multiple of kLanes.
inline void store_numbers(uint8_t* to, int place, Words numbers) { store(to + place, low_bytes(numbers)); }

// Halves: of four numbers the first and the third, then the others.
inline void store_numbers(int16_t* to, int place, Words numbers) {
#if defined(__AVX2__)
  const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
#if defined(__AVX512F__)
  const __m256i halves = _mm512_cvtepi32_epi16((__m512i)numbers);
  store(to + place, _mm256_shuffle_epi8(halves, _mm256_broadcastsi128_si256(order)));
#else
  const __m256i all = (__m256i)numbers;
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  store(to + place, _mm_shuffle_epi8(halves, order));
#endif
#else
  constexpr int kPlaces[4] = {0, 2, 1, 3};
  for (int i = 0; i < kLanes; ++i) to[place + i / 4 * 4 + kPlaces[i % 4]] = int16_t(numbers[i]);
#endif
}

}  // namespace baton
