// llama.cpp's blocks taken apart. A type has
//   kValues, kBytes: of a block; kGroup: numbers that share a scale
//   kBits: 4 or 8, of a code in a panel; kLeast: what is added to one of 4 bits, negated
//   kTable: sixteen integers that codes of 4 bits stand for; null: they stand for themselves
//   kLow, kHigh: no number is below or above
//   codes(block, to): kValues codes as a panel has them, the first one the lowest bits
//   scales(block, to): float16 numbers, and the factors of them that groups have, if kFactors
//   scale(block): instead a float32 number, if kFloats
#pragma once

#include <cstdint>
#include <cstring>

namespace baton {

constexpr int kMostGroups = 16;

// A scale and a minimum, of which a group has the product with its factor, or all of it.
struct BlockScales {
  uint16_t scale;
  uint16_t offset;
  int8_t factors[kMostGroups];
  int8_t offset_factors[kMostGroups];
};

inline uint16_t half_at(const uint8_t* from) {
  uint16_t half;
  std::memcpy(&half, from, sizeof(half));
  return half;
}

typedef uint8_t Bytes8 __attribute__((vector_size(8)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint16_t Pairs8 __attribute__((vector_size(16)));

// Writes the low nibbles of kRun bytes, and their high ones behind these, two in a byte.
template <int kRun>
inline void join_nibbles(const uint8_t* __restrict from, uint8_t* __restrict to) {
  for (int start = 0; start < kRun; start += 16) {
    Pairs8 pairs;
    std::memcpy(&pairs, from + start, sizeof(pairs));
    const Pairs8 low = pairs & 0x0f0f, high = pairs >> 4 & 0x0f0f;
    const Pairs8 lows = (low | low >> 4) & 0xff, highs = (high | high >> 4) & 0xff;
    const Bytes8 first = __builtin_convertvector(lows, Bytes8);
    const Bytes8 second = __builtin_convertvector(highs, Bytes8);
    std::memcpy(to + start / 2, &first, sizeof(first));
    std::memcpy(to + (kRun + start) / 2, &second, sizeof(second));
  }
}

// The same, one in a byte.
template <int kRun>
inline void spread_nibbles(const uint8_t* from, uint8_t* to) {
  for (int start = 0; start < kRun; start += 16) {
    Bytes16 both;
    std::memcpy(&both, from + start, sizeof(both));
    const Bytes16 low = both & 15, high = both >> 4;
    std::memcpy(to + start, &low, sizeof(low));
    std::memcpy(to + kRun + start, &high, sizeof(high));
  }
}

// Writes the pairs of bits of each 32 bytes, the lowest of all first, `shift` bits up.
template <int kRuns>
inline void or_pairs(const uint8_t* __restrict from, int shift, uint8_t* __restrict to) {
  for (int run = 0; run < kRuns; ++run)
    for (int place = 0; place < 4; ++place)
      for (int i = 0; i < 32; ++i)
        to[(run * 4 + place) * 32 + i] |= uint8_t((from[run * 32 + i] >> (2 * place) & 3) << shift);
}

// Adds bit g of each of 32 bytes to the codes of the group g of 32, `shift` bits up.
inline void or_bits(const uint8_t* __restrict from, int shift, uint8_t* __restrict to) {
  for (int group = 0; group < 8; ++group)
    for (int i = 0; i < 32; ++i) to[group * 32 + i] |= uint8_t((from[i] >> group & 1) << shift);
}

// Adds bit i of 32 to code i as the fifth one.
inline void or_fifth(const uint8_t* __restrict from, uint8_t* __restrict to) {
  constexpr Bytes8 kEach = {1, 2, 4, 8, 16, 32, 64, 128};
  for (int byte = 0; byte < 4; ++byte) {
    Bytes8 own;
    std::memcpy(&own, to + 8 * byte, sizeof(own));
    own |= Bytes8((kEach & from[byte]) != 0) & 16;
    std::memcpy(to + 8 * byte, &own, sizeof(own));
  }
}

template <int kCount>
inline void join_pairs(const uint8_t* __restrict from, uint8_t* __restrict to) {
  for (int i = 0; i < kCount / 2; ++i) to[i] = uint8_t(from[2 * i] | from[2 * i + 1] << 4);
}

// Twice the numbers of E2M1. The negative zero counts as zero.
constexpr int8_t kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
// Numbers that are not equally far apart.
constexpr int8_t kUneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Scales and minima of eight groups with 6 bits: of the last four, two bits are beside the first four.
inline void six_bits(const uint8_t* __restrict from, BlockScales* to) {
  for (int i = 0; i < 4; ++i) {
    const int first = from[i], second = from[4 + i], nibbles = from[8 + i];
    to->factors[i] = int8_t(first & 63);
    to->factors[4 + i] = int8_t((nibbles & 15) | (first >> 2 & 48));
    to->offset_factors[i] = int8_t(second & 63);
    to->offset_factors[4 + i] = int8_t(nibbles >> 4 | (second >> 2 & 48));
  }
}

template <int kTheBits, int kTheLeast, bool kHasOffsets>
struct Small {
  static constexpr int kValues = 32, kGroup = 32, kBits = kTheBits, kLeast = kTheLeast;
  static constexpr const int8_t* kTable = nullptr;
  static constexpr bool kFactors = false, kFloats = false, kOffsets = kHasOffsets;
  static constexpr int kBegin = kHasOffsets ? 4 : 2;  // of what follows the scale
  static constexpr int kLow = kTheLeast, kHigh = kTheLeast + 15;
  static void scales(const uint8_t* block, BlockScales* to) {
    to->scale = half_at(block);
    if (kHasOffsets) to->offset = half_at(block + 2) ^ 0x8000u;  // a minimum is added
  }
};

template <int kTheGroup, int kTheBits, int kTheLeast, bool kHasOffsets>
struct Large {
  static constexpr int kValues = 256, kGroup = kTheGroup, kBits = kTheBits, kLeast = kTheLeast;
  static constexpr const int8_t* kTable = nullptr;
  static constexpr bool kFactors = true, kFloats = false, kOffsets = kHasOffsets;
  static constexpr int kLow = kTheLeast, kHigh = kTheLeast + 15;
};

template <bool kHasOffsets>
struct Q4 : Small<4, kHasOffsets ? 0 : -8, kHasOffsets> {
  static constexpr int kBegin = Small<4, 0, kHasOffsets>::kBegin, kBytes = kBegin + 16;
  static void codes(const uint8_t* block, uint8_t* to) { join_nibbles<16>(block + kBegin, to); }
};

template <bool kHasOffsets>
struct Q5 : Small<8, 0, kHasOffsets> {
  static constexpr int kBegin = Small<8, 0, kHasOffsets>::kBegin, kBytes = kBegin + 20;
  static constexpr int kLow = kHasOffsets ? 0 : -16, kHigh = kLow + 31;
  static void codes(const uint8_t* block, uint8_t* to) {
    spread_nibbles<16>(block + kBegin + 4, to);
    or_fifth(block + kBegin, to);
    if (!kHasOffsets)
      for (int i = 0; i < 32; ++i) to[i] -= 16;
  }
};

struct Q8 : Small<8, 0, false> {
  static constexpr int kBytes = 34, kLow = -128, kHigh = 127;
  static void codes(const uint8_t* block, uint8_t* to) { std::memcpy(to, block + kBegin, 32); }
};

struct Iq4Nl : Small<4, 0, false> {
  static constexpr int kBytes = 18, kLow = kUneven[0], kHigh = kUneven[15];
  static constexpr const int8_t* kTable = kUneven;
  static void codes(const uint8_t* block, uint8_t* to) { join_nibbles<16>(block + kBegin, to); }
};

struct Mxfp4 : Small<4, 0, false> {
  static constexpr int kBytes = 17, kLow = -12, kHigh = 12;
  static constexpr bool kFloats = true;
  static constexpr const int8_t* kTable = kE2m1;
  static void codes(const uint8_t* block, uint8_t* to) { join_nibbles<16>(block + 1, to); }
  // Half a power of two: 127 is added to its exponent. 255 is no number.
  static float scale(const uint8_t* block) {
    constexpr uint32_t kSmallest = 0x00200000u;  // of the exponent 0: no normal number, as that of 1
    const uint32_t exponent = block[0];
    const uint32_t bits = exponent == 255 ? 0x7fc00000u : exponent < 2 ? kSmallest << exponent : (exponent - 1) << 23;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
};

struct Q2K : Large<16, 4, 0, true> {
  static constexpr int kBytes = 84;
  static void codes(const uint8_t* block, uint8_t* to) {
    uint8_t own[kValues] = {};
    or_pairs<2>(block + 16, 0, own);
    join_pairs<kValues>(own, to);
  }
  static void scales(const uint8_t* block, BlockScales* to) {
    to->scale = half_at(block + 80);
    to->offset = half_at(block + 82);
    for (int i = 0; i < 16; ++i) {
      to->factors[i] = int8_t(block[i] & 15);
      to->offset_factors[i] = int8_t(block[i] >> 4);
    }
  }
};

struct Q3K : Large<16, 4, -4, false> {
  static constexpr int kBytes = 110;
  static void codes(const uint8_t* block, uint8_t* to) {
    uint8_t own[kValues] = {};
    or_pairs<2>(block + 32, 0, own);
    or_bits(block, 2, own);
    join_pairs<kValues>(own, to);
  }
  static void scales(const uint8_t* block, BlockScales* to) {
    const uint8_t *low = block + 96, *high = block + 104;
    to->scale = half_at(block + 108);
    for (int i = 0; i < 16; ++i) {
      const int nibble = i < 8 ? low[i] & 15 : low[i - 8] >> 4;
      to->factors[i] = int8_t((nibble | (high[i % 4] >> (i / 4 * 2) & 3) << 4) - 32);
    }
  }
};

struct Q4K : Large<32, 4, 0, true> {
  static constexpr int kBytes = 144;
  static void codes(const uint8_t* block, uint8_t* to) {
    for (int run = 0; run < 4; ++run) join_nibbles<32>(block + 16 + run * 32, to + run * 32);
  }
  static void scales(const uint8_t* block, BlockScales* to) {
    to->scale = half_at(block);
    to->offset = half_at(block + 2);
    six_bits(block + 4, to);
  }
};

struct Q5K : Large<32, 8, 0, true> {
  static constexpr int kBytes = 176, kLow = 0, kHigh = 31;
  static void codes(const uint8_t* block, uint8_t* to) {
    for (int run = 0; run < 4; ++run) spread_nibbles<32>(block + 48 + run * 32, to + run * 64);
    or_bits(block + 16, 4, to);
  }
  static void scales(const uint8_t* block, BlockScales* to) { Q4K::scales(block, to); }
};

struct Q6K : Large<16, 8, 0, false> {
  static constexpr int kBytes = 210, kLow = -32, kHigh = 31;
  static void codes(const uint8_t* block, uint8_t* to) {
    for (int run = 0; run < 2; ++run) spread_nibbles<64>(block + run * 64, to + run * 128);
    or_pairs<2>(block + 128, 4, to);
    for (int i = 0; i < kValues; ++i) to[i] -= 32;
  }
  static void scales(const uint8_t* block, BlockScales* to) {
    to->scale = half_at(block + 208);
    std::memcpy(to->factors, block + 192, 16);
  }
};

struct Iq4Xs : Large<32, 4, 0, false> {
  static constexpr int kBytes = 136, kLow = kUneven[0], kHigh = kUneven[15];
  static constexpr const int8_t* kTable = kUneven;
  static void codes(const uint8_t* block, uint8_t* to) {
    for (int run = 0; run < 8; ++run) join_nibbles<16>(block + 8 + run * 16, to + run * 16);
  }
  static void scales(const uint8_t* block, BlockScales* to) {
    const uint8_t *high = block + 2, *low = block + 4;
    to->scale = half_at(block);
    for (int group = 0; group < 8; ++group) {
      const int nibble = low[group / 2] >> (group % 2 * 4) & 15;
      to->factors[group] = int8_t((nibble | (high[group / 4] >> (group % 4 * 2) & 3) << 4) - 32);
    }
  }
};

}  // namespace baton
