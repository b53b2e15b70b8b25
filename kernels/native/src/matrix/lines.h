// Columns of a weight on their way into panels, in which words of a column lie kPanel words apart.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vectors/tile.h"

namespace baton {

// Writes `inner` codes, each `least` or more, to words of 32 bits: `bits` (4 or 8) for a code, the first
// one the lowest. What is left of the last word is zero.
inline void join_codes(const int8_t* from, int inner, int least, int bits, uint32_t* to) {
  constexpr int kAtOnce = 256;
  uint8_t own[kAtOnce];
  for (int start = 0; start < inner; start += kAtOnce) {
    const int count = std::min(kAtOnce, inner - start);
    for (int i = 0; i < count; ++i) own[i] = uint8_t(from[start + i] - least);
    if (bits == 4) {
      if (count % 8 != 0) std::memset(own + count, 0, 8 - count % 8);
      uint16_t pairs[kAtOnce / 2];
      std::memcpy(pairs, own, sizeof(own));
      for (int i = 0; i < kAtOnce / 2; ++i) own[i] = uint8_t(pairs[i] | pairs[i] >> 4);
    } else if (count % 4 != 0) {
      std::memset(own + count, 0, 4 - count % 4);
    }
    const int codes_per_word = 32 / bits;
    const int words = (count + codes_per_word - 1) / codes_per_word;
    std::memcpy(to + start / codes_per_word, own, size_t(words) * 4);
  }
}

constexpr int kSixesNumbers = 32, kSixesWords = 6;

// Makes 6 words of each 32 codes, below 64. In place of 16 codes there are two words of the lower 4 bits of bytes
// 0 to 7 and 8 to 15, as halves of bytes, and one of the upper 2 bits of each four bytes.
inline void join_sixes(const uint8_t* codes, int pieces, uint32_t* to) {
  for (int half = 0; half < 2 * pieces; ++half, codes += kSixesNumbers / 2, to += kSixesWords / 2) {
    uint32_t words[4];
    std::memcpy(words, codes, sizeof(words));
    for (int i = 0; i < 2; ++i)
      to[i] = (words[2 * i] & 0x0f0f0f0fu) | (words[2 * i + 1] & 0x0f0f0f0fu) << 4;
    to[2] = 0;
    for (int i = 0; i < 4; ++i) to[2] |= (words[i] >> 4 & 0x03030303u) << (2 * i);
  }
}

// Writes words of a column to its place in a panel.
inline void put_words(const uint32_t* words, int count, uint32_t* to) {
  for (int w = 0; w < count; ++w) to[size_t(w) * kPanel] = words[w];
}

#if defined(__AVX2__)
// Writes 8 words of each of 8 columns, that lie `row_bytes` apart, to neighbouring places of a panel.
inline void put_square(const char* from, size_t row_bytes, uint32_t* to) {
  __m256i rows[8], pairs[8], fours[8];
  for (int i = 0; i < 8; ++i)
    rows[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * row_bytes));
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int half = 0; half < 2; ++half) {
      fours[i + 2 * half] = _mm256_unpacklo_epi64(pairs[i + half], pairs[i + 2 + half]);
      fours[i + 2 * half + 1] = _mm256_unpackhi_epi64(pairs[i + half], pairs[i + 2 + half]);
    }
  for (int i = 0; i < 4; ++i) {
    const __m256i first = _mm256_permute2x128_si256(fours[i], fours[4 + i], 0x20);
    const __m256i second = _mm256_permute2x128_si256(fours[i], fours[4 + i], 0x31);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + size_t(i) * kPanel), first);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + size_t(4 + i) * kPanel), second);
  }
}
#endif

// The same for columns [0, num_columns) of words that lie `row_bytes` apart; place(c) is that of column c.
template <class Place>
void put_columns(const char* from, size_t row_bytes, int num_columns, Place&& place) {
  const int whole = int(row_bytes / 4), rest = int(row_bytes % 4);
  // Of all columns so few words that what they are written to stays in the cache.
  for (int start = 0; start < whole; start += kLineWords) {
    const int count = std::min(kLineWords, whole - start);
    int c = 0;
#if defined(__AVX2__)
    while (count == kLineWords && c + 8 <= num_columns && place(c + 7) == place(c) + 7) {
      for (int w = start; w < start + kLineWords; w += 8)
        put_square(from + c * row_bytes + size_t(w) * 4, row_bytes, place(c) + size_t(w) * kPanel);
      c += 8;
    }
#endif
    for (; c < num_columns; ++c) {
      uint32_t words[kLineWords];
      std::memcpy(words, from + c * row_bytes + size_t(start) * 4, size_t(count) * 4);
      put_words(words, count, place(c) + size_t(start) * kPanel);
    }
  }
  if (rest == 0) return;
  for (int c = 0; c < num_columns; ++c) {
    uint32_t word = 0;
    std::memcpy(&word, from + c * row_bytes + size_t(whole) * 4, rest);
    place(c)[size_t(whole) * kPanel] = word;
  }
}

}  // namespace baton
