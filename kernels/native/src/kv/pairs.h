// Keys and values as elements of the matrix unit.
#pragma once

#include "kv/chunk.h"
#include "vectors/amx.h"

namespace baton {

#if defined(BATON_HAS_AMX)

// 32 numbers of a key or a value, as elements.
template <class Stored>
inline __m512i line_of(const uint8_t* row, int line) {
  if constexpr (Stored::kHasScales)
    return (__m512i)_mm512_cvtne2ps_pbh((__m512)Stored::load(row, 2 * line + 1), (__m512)Stored::load(row, 2 * line));
  else
    return _mm512_loadu_si512(row + 64 * line);
}

// A panel's line of words: number i of one value below that of the next one.
template <class Stored>
inline void pair_values(const uint8_t* first, const uint8_t* second, int panel, uint32_t* to) {
  if constexpr (Stored::kHasScales) {
    for (int half = 0; half < 2; ++half) {
      const Words below = reinterpret_cast<Words>(Stored::load(first, 2 * panel + half));
      const Words above = reinterpret_cast<Words>(Stored::load(second, 2 * panel + half));
      store(to + half * kHalfPanel, below >> 16 | (above & 0xffff0000u));
    }
  } else {
    // Instructions that pair halves take the lower and the upper half of each quarter.
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    const __m512i a = _mm512_permutexvar_epi64(order, line_of<Stored>(first, panel));
    const __m512i b = _mm512_permutexvar_epi64(order, line_of<Stored>(second, panel));
    _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
    _mm512_store_si512(to + kHalfPanel, _mm512_unpackhi_epi16(a, b));
  }
}

#endif

}  // namespace baton
