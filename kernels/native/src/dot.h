// Products that every matrix kernel is made of. A "word" is 32 bits that lie along the inner
// dimension: one float32, two bfloat16 or four int8. Each of them adds the product of one word of a
// row with sixteen words, one per column, to sixteen accumulators.
//
// An accumulator takes its words in the order of the inner dimension, whatever else is computed
// beside it. So a row's result does not depend on the batch it is in: not on its size, not on how a
// prompt was cut into chunks.
#pragma once

#include "simd.h"

namespace baton {

struct Float32Dot {
  using Element = float;
  using Accumulator = F32x16;
  static constexpr int kElements = 1;
  static Accumulator add(Accumulator sum, U32x16 row, U32x16 columns) {
    return sum + bits_as<F32x16>(row) * bits_as<F32x16>(columns);
  }
};

struct BFloat16Dot {
  using Element = uint16_t;
  using Accumulator = F32x16;
  static constexpr int kElements = 2;
  static Accumulator add(Accumulator sum, U32x16 row, U32x16 columns) {
#if defined(__AVX512BF16__)
    return (F32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)row, (__m512bh)columns);
#else
    const F32x16 even = bits_as<F32x16>(row << 16) * bits_as<F32x16>(columns << 16);
    const F32x16 odd = bits_as<F32x16>(row & 0xffff0000u) * bits_as<F32x16>(columns & 0xffff0000u);
    return sum + even + odd;
#endif
  }
};

// Rows are unsigned (a signed value plus 128), columns signed.
struct Int8Dot {
  using Element = int8_t;
  using Accumulator = I32x16;
  static constexpr int kElements = 4;
  static Accumulator add(Accumulator sum, U32x16 row, U32x16 columns) {
#if defined(__AVX512VNNI__)
    return (I32x16)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)row, (__m512i)columns);
#else
    const I32x16 signed_columns = reinterpret_cast<I32x16>(columns);
    for (int byte = 0; byte < 4; ++byte) {
      const I32x16 r = reinterpret_cast<I32x16>((row >> (8 * byte)) & 0xffu);
      const I32x16 c = (signed_columns << (24 - 8 * byte)) >> 24;
      sum += r * c;
    }
    return sum;
#endif
  }
};

}  // namespace baton
