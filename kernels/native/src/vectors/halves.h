// float16 numbers as float32 ones, and back.
#pragma once

#include "vectors/simd.h"

namespace baton {

// A number of this type is stored in 16 bits like bfloat16, so it needs a name of its own.
struct Float16 {
  uint16_t bits;
};

inline Floats widen(const Float16* from) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps((__m256i)load<Halves>(from));
#elif defined(__F16C__) && defined(__AVX__)
  return (Floats)_mm256_cvtph_ps((__m128i)load<Halves>(from));
#else
  Floats lanes;
  for (int i = 0; i < kLanes; ++i) {
    _Float16 half;
    std::memcpy(&half, from + i, sizeof(half));
    lanes[i] = float(half);
  }
  return lanes;
#endif
}

// Rounds to nearest, ties to even.
inline void narrow(Float16* to, Floats v) {
#if defined(__AVX512F__)
  store(to, (Halves)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__) && defined(__AVX__)
  store(to, (Halves)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) {
    const _Float16 half = _Float16(v[i]);
    std::memcpy(to + i, &half, sizeof(half));
  }
#endif
}

}  // namespace baton
