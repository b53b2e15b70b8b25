// Work on single rows of activations: norms, nonlinear functions, rotation, quantisation.
#pragma once

#include <cmath>

#include "vectors/memory.h"
#include "vectors/row_numbers.h"
#include "vectors/tile.h"

namespace baton {

// Rows of activations: float32, an element type, or quantised for a product with int8.
template <class T>
struct Activations {
  Buffer<T> data;
  int stride;

  // Never a power of two: rows of a tile would share the same few sets of the cache.
  explicit Activations(int size) : stride(round_up(size, 64) + 64) {}
  // Rows that are no operands, one close behind the other, in whole panels.
  static Activations close(int size) { return Activations(Close{round_up(size, kPanel)}); }
  void resize(int rows) { data.reserve(size_t(rows) * stride); }
  T* row(int index) { return data.data() + size_t(index) * stride; }

 private:
  struct Close {
    int stride;
  };
  explicit Activations(Close own) : stride(own.stride) {}
};

// Rows from a number on.
template <class T>
struct RowsFrom {
  Activations<T>& rows;
  int first;

  T* row(int index) { return rows.row(first + index); }
};

// Rows are padded to whole vectors with zeros; sizes below are rounded up by the loops. Loops whose pointers may be
// equal are written in vectors: compilers would look for overlaps in each call.

inline float sum_of_squares(const float* x, int size) {
  Floats total{};
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats v = load<Floats>(x + i);
    total += v * v;
  }
  float result = sum(total);
  for (; i < size; ++i) result += x[i] * x[i];
  return result;
}

// What numbers are multiplied with, so that the mean of the squares of `count` of them, whose sum is `total`,
// becomes 1.
inline float norm_factor(float total, int count, float eps) {
  return 1.0f / std::sqrt(total / float(count) + eps);
}

// to = x * factor * weight, in place if wanted.
inline void weigh_row(const float* x, float factor, const float* weight, int size, float* to) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) store(to + i, load<Floats>(x + i) * factor * load<Floats>(weight + i));
  for (; i < size; ++i) to[i] = x[i] * factor * weight[i];
}

// to = x / rms(x) * weight, in place if wanted.
inline void normalize(const float* x, const float* weight, int size, float eps, float* to) {
  weigh_row(x, norm_factor(sum_of_squares(x, size), size, eps), weight, size, to);
}

// to = x less its mean, in place if wanted. What is left has its variance as the mean of its squares.
inline void center(const float* x, int size, float* to) {
  Floats total{};
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) total += load<Floats>(x + i);
  float mean = sum(total);
  for (; i < size; ++i) mean += x[i];
  mean /= float(size);
  for (i = 0; i < size; ++i) to[i] = x[i] - mean;
}

// x += factor * other
inline void add_row(float* x, float factor, const float* other, int size) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) store(x + i, load<Floats>(x + i) + factor * load<Floats>(other + i));
  for (; i < size; ++i) x[i] += factor * other[i];
}

inline void scale_row(float* x, float factor, int size) {
  for (int i = 0; i < size; ++i) x[i] *= factor;
}

// x between -limit and limit; NaN stays NaN.
inline void clamp_row(float* x, float limit, int size) {
  for (int i = 0; i < size; ++i) x[i] = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];
}

// The nonlinear function of a feed-forward.
enum class Activation : int {
  kSilu = 0,
  kGelu = 1,
  kGeluTanh = 2,
  kRelu = 3,
  kRelu2 = 4,
  kClamped = 5,  // of a gate g and an up u, see `gated`
};

inline Floats silu(Floats x) { return x / (1.0f + exp2(x * -kLog2E)); }

// x times the normal distribution's share below x. The share below -|x| is t * p(t) * e^(-x^2 / 2) with
// t = 1 / (1 + 0.3 |x|); p is fitted to the relative error, which is under 2e-7.
inline Floats gelu(Floats x) {
  const Floats t = 1.0f / (1.0f + 0.3f * max(x, -x));
  Floats p = splat(3.5674806684e-2f);
  p = p * t - 1.5720321238e-1f;
  p = p * t + 2.0635372400e-1f;
  p = p * t - 5.3683839738e-2f;
  p = p * t + 1.2856172025e-1f;
  p = p * t + 9.9913462996e-2f;
  p = p * t + 1.2075395882e-1f;
  p = p * t + 1.1962930113e-1f;
  const Floats below = p * t * exp2(x * x * (-0.5f * kLog2E));
  return x * (x < 0.0f ? below : 1.0f - below);
}

inline Floats activate(Activation kind, Floats x) {
  const Floats positive = x < 0.0f ? Floats{} : x;
  switch (kind) {
    case Activation::kSilu:
      return silu(x);
    case Activation::kGelu:
      return gelu(x);
    case Activation::kGeluTanh:  // x / 2 * (1 + tanh(y)) = x / (1 + e^(-2y))
      return x / (1.0f + exp2((x + 0.044715f * x * x * x) * (-2.0f * 0.79788456f * kLog2E)));
    case Activation::kRelu:
      return positive;
    case Activation::kRelu2:
      return positive * positive;
    case Activation::kClamped:
      break;
  }
  return x;
}

// The function of a gate and an up: act(gate) * up, or for kClamped, with g <= 7 and u in [-7, 7],
// (u + 1) * g * sigmoid(1.702 * g).
inline Floats gated(Activation kind, Floats gate, Floats up) {
  if (kind != Activation::kClamped) return activate(kind, gate) * up;
  const Floats g = gate > 7.0f ? splat(7.0f) : gate;
  const Floats u = up > 7.0f ? splat(7.0f) : up < -7.0f ? splat(-7.0f) : up;
  return (u + 1.0f) * g / (1.0f + exp2(g * (-1.702f * kLog2E)));
}

// Rotates the pairs (i, i + half) by the angles whose cosines and sines come one after the other.
inline void rotate(float* x, const float* cos_sin, int head_dim) {
  const int half = head_dim / 2;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats a = load<Floats>(x + i), b = load<Floats>(x + i + half);
    const Floats c = load<Floats>(cos_sin + i), s = load<Floats>(cos_sin + i + half);
    store(x + i, a * c - b * s);
    store(x + i + half, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[i + half], c = cos_sin[i], s = cos_sin[i + half];
    x[i] = a * c - b * s;
    x[i + half] = b * c + a * s;
  }
}

template <class Element>
inline void narrow_row(Element* to, const float* from, int size) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) narrow(to + i, load<Floats>(from + i));
  if (i == size) return;
  float rest[kLanes] = {};
  Element narrowed[kLanes];
  std::memcpy(rest, from + i, (size - i) * sizeof(float));
  narrow(narrowed, load<Floats>(rest));
  std::memcpy(to + i, narrowed, (size - i) * sizeof(Element));
}

template <class Element>
inline void widen_row(float* to, const Element* from, int size) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) store(to + i, widen(from + i));
  for (; i < size; ++i) to[i] = widen_one(from[i]);
}

// The first `count` numbers of a vector, then zeros.
template <class Element>
inline Floats widen_some(const Element* from, int count) {
  if (count >= kLanes) return widen(from);
  float some[kLanes] = {};
  for (int i = 0; i < count; ++i) some[i] = widen_one(from[i]);
  return load<Floats>(some);
}

// How far numbers reach from 0.
struct Range {
  float below;
  float above;

  float peak() const { return std::fmax(below, above); }
  void add(const Range& other) {
    below = std::fmax(below, other.below);
    above = std::fmax(above, other.above);
  }
};

template <class From>
inline Range range_of(const From* x, int count) {
  Floats below{}, above{};
  for (int i = 0; i < count; i += kLanes) {
    const Floats v = widen_some(x + i, count - i);
    above = max(above, v);
    below = max(below, -v);
  }
  return {max_lane(below), max_lane(above)};
}

// Symmetric int8 with one scale for the row, stored with 128 added, in whole vectors. range: of the whole row, of
// which this is a part; or null.
template <class Number, class Element>
inline float quantize_row(Number* to, const Element* from, int size, const Range* range) {
  const float peak = range ? range->peak() : range_of(from, size).peak();
  const float scale = std::fmax(peak, 1e-20f) / 127.0f;
  const float inverse = 1.0f / scale;
  for (int i = 0; i < size; i += kLanes) {
    // Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the low bits.
    const Floats shifted = widen_some(from + i, size - i) * inverse + (12582912.0f + 128.0f);
    const Words bits = reinterpret_cast<Words>(shifted) & 0xffu;
    store_numbers(to, i, bits);
  }
  return scale;
}

}  // namespace baton
