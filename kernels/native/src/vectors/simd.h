// The processor's vectors of 32-bit lanes, and the few operations on them that the kernels need.
//
// GCC's and Clang's vector extensions do the plain arithmetic, so that everything compiles for any
// processor. A vector is one register: compilers keep sums of longer ones in memory. Intrinsics stand
// where one instruction replaces many.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace baton {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
// 32-bit words of a cache line.
constexpr int kLineWords = 16;

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

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

// Keeps a vector in a register, and what it is made of in its order: compilers would load an operand again for
// each product, or add up products that they keep in memory.
template <class Vector>
inline void hold(Vector& x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#elif defined(__x86_64__)
  asm("" : "+x"(x));
#endif
}

#define BATON_INLINE __attribute__((always_inline))

// Calls body(i) for i from 0 to kCount - 1, each a constant. GCC puts an array into registers only where its places are
// constants before it unrolls loops, and where the body is inlined as early: bodies are BATON_INLINE.
template <int kCount, class Body>
BATON_INLINE inline void unrolled(Body&& body) {
  [&]<int... kPlaces>(std::integer_sequence<int, kPlaces...>) BATON_INLINE {
    (body(std::integral_constant<int, kPlaces>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

inline Floats splat(float x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_set1_ps(x);
#elif defined(__AVX__)
  return (Floats)_mm256_set1_ps(x);
#else
  return Floats{} + x;
#endif
}
inline Words splat(uint32_t x) { return Words{} + x; }

template <class Vector>
inline Vector bits_as(Words v) {
  return reinterpret_cast<Vector>(v);
}

inline Floats max(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

inline Floats min(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

// Lanes in a fixed order, so that a sum never depends on what was computed beside it.
inline float sum(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#elif defined(__AVX__)
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
#endif
}

inline float max_lane(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#elif defined(__AVX__)
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
#endif
}

// Of each of kLanes vectors the largest lane.
inline Floats max_of_each(const Floats* vectors) {
#if defined(__AVX512F__)
  __m512 v[kLanes];
  for (int i = 0; i < kLanes; ++i) v[i] = (__m512)vectors[i];
  for (int i = 0; i < kLanes / 2; ++i)
    v[i] = _mm512_max_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
  for (int i = 0; i < kLanes / 4; ++i) {
    const __m512d a = (__m512d)v[2 * i], b = (__m512d)v[2 * i + 1];
    v[i] = _mm512_max_ps((__m512)_mm512_unpacklo_pd(a, b), (__m512)_mm512_unpackhi_pd(a, b));
  }
  for (int count = kLanes / 8; count > 0; count /= 2)
    for (int i = 0; i < count; ++i)
      v[i] = _mm512_max_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x88),
                           _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xdd));
  return (Floats)v[0];
#else
  Floats largest;
  for (int i = 0; i < kLanes; ++i) largest[i] = max_lane(vectors[i]);
  return largest;
#endif
}

// A bit for each lane in which a comparison holds, the first lane's the lowest.
inline uint32_t lanes_where(Ints holds) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)holds, (__m512i)holds);
#elif defined(__AVX__)
  return uint32_t(_mm256_movemask_ps((__m256)holds));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= uint32_t(holds[i] != 0) << i;
  return bits;
#endif
}

constexpr float kLog2E = 1.44269504f;

// 2^x with a relative error under 2e-7: 2^n times a minimax polynomial (fitted to the relative error,
// exact at 0) on [-0.5, 0.5]. Zero far below -126; above 127 infinite or next to it.
__attribute__((always_inline)) inline Floats exp2(Floats x) {
#if defined(__AVX512F__)
  x = max(x, splat(-200.0f));  // minus infinity less itself would be NaN
  const Floats n = (Floats)_mm512_roundscale_ps((__m512)x, 0);
#else
  const auto vanishes = x < -126.0f;
  x = max(x, splat(-126.0f));
  x = min(splat(127.0f), x);
  const Floats shifted = x + 12582912.0f;  // 1.5 * 2^23 rounds, and leaves n in the low bits
  const Floats n = shifted - 12582912.0f;
#endif
  const Floats r = x - n;
  Floats p = splat(1.3264727267e-3f);
  p = p * r + 9.6715127685e-3f;
  p = p * r + 5.5507337443e-2f;
  p = p * r + 2.4022242083e-1f;
  p = p * r + 6.9314697760e-1f;
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  return (Floats)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  // From -126 on the product with 2^n is a normal number: n is added to the exponent.
  const Words result = reinterpret_cast<Words>(p) + (reinterpret_cast<Words>(shifted) << 23);
  return vanishes ? Floats{} : bits_as<Floats>(result);
#endif
}

// 2^x with a relative error under 1.1e-4, exact at whole numbers: a twentieth of what rounding to bfloat16 loses.
__attribute__((always_inline)) inline Floats exp2_to_round(Floats x) {
#if defined(__AVX512DQ__)
  const Floats r = (Floats)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);  // above the next whole number below
  Floats p = splat(7.8267961e-2f);
  p = p * r + 2.2630769e-1f;
  p = p * r + 6.9542435e-1f;
  p = p * r + 1.0f;
  return (Floats)_mm512_scalef_ps((__m512)p, (__m512)x);
#else
  return exp2(x);
#endif
}

// With an absolute error of some 1e-7. Far from 0 it is -1 or 1; NaN stays NaN.
inline Floats tanh(Floats x) {
  const Floats result = 1.0f - 2.0f / (1.0f + exp2(x * (2.0f * kLog2E)));
  return x == x ? result : x;
}

// Narrow lanes as wide ones. GCC 12 would convert bytes one by one, and halves in two steps.
inline Words widen_bytes(Bytes bytes) {
#if defined(__AVX512F__)
  return (Words)_mm512_cvtepu8_epi32((__m128i)bytes);
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)bytes));
#else
  return __builtin_convertvector(bytes, Words);
#endif
}
inline Ints widen_signed_bytes(Bytes bytes) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepi8_epi32((__m128i)bytes);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((int64_t)bytes));
#else
  return reinterpret_cast<Ints>(widen_bytes(bytes) << 24) >> 24;
#endif
}
inline Words widen_halves(Halves halves) {
#if defined(__AVX512F__)
  return (Words)_mm512_cvtepu16_epi32((__m256i)halves);
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu16_epi32((__m128i)halves);
#else
  return __builtin_convertvector(halves, Words);
#endif
}

// In place of each byte, which is below 16, the byte of the table at that place. A table is sixteen bytes,
// again and again.
inline Words look_up(Words table, Words bytes) {
#if defined(__AVX512BW__)
  return (Words)_mm512_shuffle_epi8((__m512i)table, (__m512i)bytes);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return (Words)_mm256_shuffle_epi8((__m256i)table, (__m256i)bytes);
#else
  uint8_t numbers[4 * kLanes], places[4 * kLanes];
  store(numbers, table);
  store(places, bytes);
  for (uint8_t& place : places) place = numbers[place];
  return load<Words>(places);
#endif
}

// The lowest byte of each lane.
inline Bytes low_bytes(Words lanes) {
#if defined(__AVX512F__)
  return (Bytes)_mm512_cvtepi32_epi8((__m512i)lanes);
#else
  return __builtin_convertvector(lanes & 0xffu, Bytes);
#endif
}

// bfloat16 is the upper half of a float32.
inline Floats widen(const uint16_t* from) {
  return bits_as<Floats>(widen_halves(load<Halves>(from)) << 16);
}
inline Floats widen(const float* from) { return load<Floats>(from); }

// Rounds to nearest, ties to even; NaN stays NaN.
inline void narrow(uint16_t* to, Floats v) {
#if defined(__AVX512BF16__)
  const __m256bh half = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &half, sizeof(half));
#else
  const Words bits = reinterpret_cast<Words>(v);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words nan = (bits >> 16) | 0x40u;
  const Words result = (v == v) ? rounded : nan;
  store(to, __builtin_convertvector(result, Halves));
#endif
}
inline void narrow(float* to, Floats v) { store(to, v); }
// Two vectors, one behind the other.
template <class T>
inline void narrow_both(T* to, Floats first, Floats second) {
#if defined(__AVX512BF16__)
  if constexpr (sizeof(T) == 2) return store(to, _mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#endif
  narrow(to, first);
  narrow(to + kLanes, second);
}

inline float widen_one(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline float widen_one(float x) { return x; }

inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }

}  // namespace baton
