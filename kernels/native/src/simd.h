// Vectors of sixteen 32-bit lanes, and the few operations on them that the kernels need.
//
// GCC's and Clang's vector extensions do the plain arithmetic, so that everything also compiles
// without AVX-512, only slower. Intrinsics stand where one instruction replaces many.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace baton {

typedef float F32x16 __attribute__((vector_size(64)));
typedef int32_t I32x16 __attribute__((vector_size(64)));
typedef uint32_t U32x16 __attribute__((vector_size(64)));
typedef uint16_t U16x16 __attribute__((vector_size(32)));

constexpr int kLanes = 16;

template <class Vector, class T>
inline Vector load(const T* from) {
  Vector v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

template <class Vector, class T>
inline void store(T* to, Vector v) {
  std::memcpy(to, &v, sizeof(v));
}

inline F32x16 splat(float x) { return F32x16{} + x; }
inline U32x16 splat(uint32_t x) { return U32x16{} + x; }

template <class Vector>
inline Vector bits_as(U32x16 v) {
  return reinterpret_cast<Vector>(v);
}

inline F32x16 max(F32x16 a, F32x16 b) {
#if defined(__AVX512F__)
  return (F32x16)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

// Lanes in a fixed order, so that a sum never depends on what was computed beside it.
inline float sum(F32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
#endif
}

inline float max_lane(F32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
#endif
}

constexpr float kLog2E = 1.44269504f;

// 2^x with a relative error under 2e-7: 2^n times a minimax polynomial (fitted to the relative error,
// exact at 0) on [-0.5, 0.5]. Zero far below -126; above 127 infinite or next to it.
__attribute__((always_inline)) inline F32x16 exp2(F32x16 x) {
#if defined(__AVX512F__)
  x = max(x, splat(-200.0f));  // minus infinity less itself would be NaN
  const F32x16 n = (F32x16)_mm512_roundscale_ps((__m512)x, 0);
#else
  const auto vanishes = x < -126.0f;
  x = max(x, splat(-126.0f));
  x = x > 127.0f ? splat(127.0f) : x;
  const F32x16 n = (x + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23 rounds
#endif
  const F32x16 r = x - n;
  F32x16 p = splat(1.3264727267e-3f);
  p = p * r + 9.6715127685e-3f;
  p = p * r + 5.5507337443e-2f;
  p = p * r + 2.4022242083e-1f;
  p = p * r + 6.9314697760e-1f;
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  return (F32x16)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  const I32x16 exponent = __builtin_convertvector(n, I32x16) + 127;
  return vanishes ? F32x16{} : p * reinterpret_cast<F32x16>(exponent << 23);
#endif
}

// With an absolute error of some 1e-7. Far from 0 it is -1 or 1; NaN stays NaN.
inline F32x16 tanh(F32x16 x) {
  const F32x16 result = 1.0f - 2.0f / (1.0f + exp2(x * (2.0f * kLog2E)));
  return x == x ? result : x;
}

// bfloat16 is the upper half of a float32.
inline F32x16 widen(const uint16_t* from) {
  const U16x16 narrow = load<U16x16>(from);
  return bits_as<F32x16>(__builtin_convertvector(narrow, U32x16) << 16);
}
inline F32x16 widen(const float* from) { return load<F32x16>(from); }

// Rounds to nearest, ties to even; NaN stays NaN.
inline void narrow(uint16_t* to, F32x16 v) {
#if defined(__AVX512BF16__)
  const __m256bh half = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &half, sizeof(half));
#else
  const U32x16 bits = reinterpret_cast<U32x16>(v);
  const U32x16 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U32x16 nan = (bits >> 16) | 0x40u;
  const U32x16 result = (v == v) ? rounded : nan;
  store(to, __builtin_convertvector(result, U16x16));
#endif
}
inline void narrow(float* to, F32x16 v) { store(to, v); }

inline float widen_one(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline float widen_one(float x) { return x; }

inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }

}  // namespace baton
