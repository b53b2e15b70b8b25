// Numbers of groups of codes, as small as they can be kept without a loss.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "vectors/memory.h"
#include "vectors/tile.h"

namespace baton {

#if defined(__F16C__)
// Float16 numbers.
inline Floats widen_half(const uint16_t* from) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps((__m256i)load<Halves>(from));
#else
  return (Floats)_mm256_cvtph_ps((__m128i)load<Halves>(from));
#endif
}
#endif

// Numbers by [panel][group][kPanel], in one of three forms: float16; float32; or factors of a number that
// kSpan neighbouring groups of a column share, as llama.cpp's K-quants have them.
struct GroupFloats {
  HugeBuffer<uint16_t> halves;
  HugeBuffer<float> floats;
  HugeBuffer<int8_t> factors;
  HugeBuffer<float> shared;  // [panel][group >> span_bits][kPanel]
  int span_bits = 0;     // kSpan is 1 << span_bits

  size_t bytes() const {
    return halves.size() * 2 + (floats.size() + shared.size()) * 4 + factors.size();
  }
  bool empty() const { return bytes() == 0; }

  // Where the number lies that the one at `index` is a factor of.
  size_t shared_at(size_t index) const {
    return (index / kPanel >> span_bits) * kPanel + index % kPanel;
  }

  Floats at(size_t index) const {
#if defined(__F16C__)
    if (halves.size() > 0) return widen_half(halves.data() + index);
#endif
    if (factors.size() > 0) {
      const Ints factor = widen_signed_bytes(load<Bytes>(factors.data() + index));
      return __builtin_convertvector(factor, Floats) * load<Floats>(shared.data() + shared_at(index));
    }
    return load<Floats>(floats.data() + index);
  }

  // Writes `count` numbers from `index` on, both multiples of kPanel.
  void read(size_t index, int count, float* to) const {
#if defined(__F16C__)
    if (halves.size() > 0) {
      for (int i = 0; i < count; i += kLanes) store(to + i, widen_half(halves.data() + index + i));
      return;
    }
#endif
    if (factors.size() == 0) {
      for (int i = 0; i < count; i += kLanes) store(to + i, at(index + i));
      return;
    }
    for (int start = 0; start < count; start += kPanel) {
      const float* own = shared.data() + shared_at(index + start);
      for (int v = 0; v < kPanel; v += kLanes) {
        const Ints factor = widen_signed_bytes(load<Bytes>(factors.data() + index + start + v));
        store(to + start + v, __builtin_convertvector(factor, Floats) * load<Floats>(own + v));
      }
    }
  }

  // Fetches what `read` needs.
  void fetch(size_t index, int count) const {
    fetch_of(halves, index, count);
    fetch_of(floats, index, count);
    fetch_of(factors, index, count);
    if (shared.size() > 0) fetch_of(shared, shared_at(index), std::max(count >> span_bits, kPanel));
  }

  float one(size_t index) const {
#if defined(__F16C__)
    if (halves.size() > 0) return _cvtsh_ss(halves[index]);
#endif
    if (factors.size() > 0) return float(factors[index]) * shared[shared_at(index)];
    return floats[index];
  }

 private:
  template <class Number>
  static void fetch_of(const HugeBuffer<Number>& numbers, size_t index, int count) {
    if (numbers.size() == 0) return;
    const char* from = reinterpret_cast<const char*>(numbers.data() + index);
    for (size_t at = 0; at < count * sizeof(Number); at += kLineWords * sizeof(uint32_t)) prefetch(from + at);
  }
};

inline bool is_half(float value) {
#if defined(__F16C__)
  return _cvtsh_ss(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)) == value;
#else
  return false;
#endif
}

inline uint16_t half_of(float value) {
#if defined(__F16C__)
  return uint16_t(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
  return uint16_t(value);  // no number is_half
#endif
}

constexpr int kMostSpan = 16;

// Writes numbers as factors of one, exactly; false: they are none. Numbers are multiples of the smallest
// float16, whose greatest common divisor is a multiple of what a writer has chosen.
inline bool split_factors(const float* numbers, int count, int8_t* factors, float* shared) {
  constexpr double kUnit = 0x1p24, kMost = 0x1p53;
  int64_t units[kMostSpan], divisor = 0;
  for (int i = 0; i < count; ++i) {
    const double scaled = double(numbers[i]) * kUnit;
    if (!(std::fabs(scaled) < kMost)) return false;
    units[i] = int64_t(scaled);
    if (double(units[i]) != scaled) return false;
    for (int64_t rest = std::llabs(units[i]); rest != 0;) {
      const int64_t next = divisor % rest;
      divisor = rest;
      rest = next;
    }
  }
  *shared = float(double(divisor) / kUnit);
  if (double(*shared) * kUnit != double(divisor)) return false;
  for (int i = 0; i < count; ++i) {
    const int64_t factor = divisor == 0 ? 0 : units[i] / divisor;
    if (factor < -128 || factor > 127) return false;
    factors[i] = int8_t(factor);
  }
  return true;
}

}  // namespace baton
