// Products that every matrix kernel is made of. A "word" is 32 bits that lie along the inner
// dimension: one float32, two bfloat16 or four int8. Each of them adds the product of one word of a
// row with a vector of words, one per column, to as many accumulators.
//
// Where the processor has no instruction for whole words, a word has several parts, and the product of
// words is the sum of their parts' products in that order. A row has kRowWords words in memory for a word of a
// panel: one, or one for each part.
//
// An accumulator takes its words in the order of the inner dimension, whatever else is computed
// beside it. So a row's result does not depend on the batch it is in: not on its size, not on how a
// prompt was cut into chunks.
#pragma once

#include "vectors/simd.h"

namespace baton {

struct Float32Dot {
  using Element = float;
  using Accumulator = Floats;
  static constexpr int kElements = 1;
  static constexpr bool kIsWider = false;
  static constexpr int kParts = 1, kRowWords = 1;
  static Words row_part(Words row, int) { return row; }
  static Words column_part(Words columns, int) { return columns; }
  static Accumulator add(Accumulator sum, Words row, Words columns) {
    return sum + bits_as<Floats>(row) * bits_as<Floats>(columns);
  }
};

struct BFloat16Dot {
  using Element = uint16_t;
  using Accumulator = Floats;
  static constexpr int kElements = 2;
#if defined(__AVX512BF16__)
  static constexpr bool kIsWider = false;
  static constexpr int kParts = 1, kRowWords = 1;
  static Words row_part(Words row, int) { return row; }
  static Words column_part(Words columns, int) { return columns; }
  static Accumulator add(Accumulator sum, Words row, Words columns) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)row, (__m512bh)columns);
  }
#else
  static constexpr bool kIsWider = true;
  using Wide = Float32Dot;
  static constexpr int kParts = 2, kRowWords = 1;
  static Words row_part(Words row, int part) { return column_part(row, part); }
  static Words column_part(Words columns, int part) {
    return part == 0 ? columns << 16 : columns & 0xffff0000u;
  }
  static Accumulator add(Accumulator sum, Words row, Words columns) {
    return Float32Dot::add(sum, row, columns);
  }
#endif
};

// A word is two integers of 16 bits.
struct Int16Dot {
  using Accumulator = Ints;
  static constexpr int kParts = 1, kRowWords = 1;
  static Words row_part(Words row, int) { return row; }
  static Words column_part(Words columns, int) { return columns; }
  static Accumulator add(Accumulator sum, Words row, Words columns) {
#if defined(__AVX512BW__)
    return sum + (Ints)_mm512_madd_epi16((__m512i)row, (__m512i)columns);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return sum + (Ints)_mm256_madd_epi16((__m256i)row, (__m256i)columns);
#else
    const Ints r = reinterpret_cast<Ints>(row), c = reinterpret_cast<Ints>(columns);
    return sum + ((r << 16) >> 16) * ((c << 16) >> 16) + (r >> 16) * (c >> 16);
#endif
  }
};

// Rows are unsigned (a signed value plus 128), columns signed.
struct Int8Dot {
  using Element = int8_t;
  using Accumulator = Ints;
  static constexpr int kElements = 4;
#if defined(__AVX512VNNI__)
  using RowNumber = uint8_t;
  static constexpr bool kIsWider = false;
  static constexpr int kParts = 1, kRowWords = 1;
  static Words row_part(Words row, int) { return row; }
  static Words column_part(Words columns, int) { return columns; }
  static Accumulator add(Accumulator sum, Words row, Words columns) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)row, (__m512i)columns);
  }
#else
  using RowNumber = int16_t;
  static constexpr bool kIsWider = true;
  using Wide = Int16Dot;
  // Bytes 0 and 2 of a word, then bytes 1 and 3, as two halves.
  static constexpr int kParts = 2, kRowWords = 2;
  static Words row_part(Words row, int) { return row; }
  static Words column_part(Words columns, int part) {
    typedef int16_t SignedHalves __attribute__((vector_size(4 * kLanes)));
    const SignedHalves halves = reinterpret_cast<SignedHalves>(columns);
    return reinterpret_cast<Words>((part == 0 ? halves << 8 : halves) >> 8);
  }
  static Accumulator add(Accumulator sum, Words row, Words columns) {
    return Int16Dot::add(sum, row, columns);
  }
#endif
};

}  // namespace baton
