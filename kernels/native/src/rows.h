// Work on single rows of activations: norms, rotation, quantisation.
#pragma once

#include <cmath>

#include "dot.h"

namespace baton {

// Rows are padded to whole vectors with zeros; sizes below are rounded up by the loops.

inline float sum_of_squares(const float* x, int size) {
  F32x16 total{};
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const F32x16 v = load<F32x16>(x + i);
    total += v * v;
  }
  float result = sum(total);
  for (; i < size; ++i) result += x[i] * x[i];
  return result;
}

// to = x / rms(x) * weight, in place if wanted.
inline void normalize(const float* x, const float* weight, int size, float eps, float* to) {
  const float factor = 1.0f / std::sqrt(sum_of_squares(x, size) / float(size) + eps);
  for (int i = 0; i < size; ++i) to[i] = x[i] * factor * weight[i];
}

// Rotates the pairs (i, i + half) by the angles whose cosines and sines come one after the other.
inline void rotate(float* x, const float* cos_sin, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half], c = cos_sin[i], s = cos_sin[i + half];
    x[i] = a * c - b * s;
    x[i + half] = b * c + a * s;
  }
}

template <class Element>
inline void narrow_row(Element* to, const float* from, int size) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) narrow(to + i, load<F32x16>(from + i));
  if (i == size) return;
  float rest[kLanes] = {};
  Element narrowed[kLanes];
  std::memcpy(rest, from + i, (size - i) * sizeof(float));
  narrow(narrowed, load<F32x16>(rest));
  std::memcpy(to + i, narrowed, (size - i) * sizeof(Element));
}

template <class Element>
inline void widen_row(float* to, const Element* from, int size) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) store(to + i, widen(from + i));
  for (; i < size; ++i) to[i] = widen_one(from[i]);
}

// Symmetric int8 with one scale for the row, stored with 128 added. `size` is a multiple of kLanes.
inline float quantize_row(uint8_t* to, const float* from, int size) {
  F32x16 largest{};
  for (int i = 0; i < size; i += kLanes) {
    const F32x16 v = load<F32x16>(from + i);
    largest = max(largest, max(v, -v));
  }
  const float scale = std::fmax(max_lane(largest), 1e-20f) / 127.0f;
  const float inverse = 1.0f / scale;
  for (int i = 0; i < size; i += kLanes) {
    // Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the low bits.
    const F32x16 shifted = load<F32x16>(from + i) * inverse + (12582912.0f + 128.0f);
    const U32x16 bits = reinterpret_cast<U32x16>(shifted) & 0xffu;
    typedef uint8_t U8x16 __attribute__((vector_size(16)));
    store(to + i, __builtin_convertvector(bits, U8x16));
  }
  return scale;
}

}  // namespace baton
