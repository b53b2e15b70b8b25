// What keys and values are kept as: elements, or 8 bits with a scale per token and head, or with the
// checkpoint's scales.
//
// The 8 bits are those of kernels/quantize_rows in Python: the largest of a row becomes the largest
// number of the type, or the row is divided by a scale. Everything is rounded to the nearest, ties to
// even.
#pragma once

#include <cmath>
#include <type_traits>

#include "vectors/rows.h"

namespace baton {

enum class KvFormat { kElements = 0, kInt8 = 1, kFloat8 = 2 };

inline Floats round_even(Floats v) {
#if defined(__AVX512F__)
  return (Floats)_mm512_roundscale_ps((__m512)v, 0);
#else
  const Floats shifted = v + 12582912.0f;  // 1.5 * 2^23 leaves no bits for a fraction
  return shifted - 12582912.0f;
#endif
}

inline Floats limited(Floats v, float least, float largest) {
  return max(-max(-v, splat(-largest)), splat(least));
}

// `decode` takes bytes, or lanes of which each is a byte: numbers that bfloat16 has, too. `encode` rounds.
//
// -127 to 127 with a scale of the row's own; a given one can lead to -128.
struct Int8Kv {
  static constexpr float kLargest = 127.0f;
  static Floats decode(Words stored) {
    return __builtin_convertvector(reinterpret_cast<Ints>(stored << 24) >> 24, Floats);
  }
  static Floats decode(Bytes stored) {
    return __builtin_convertvector(widen_signed_bytes(stored), Floats);
  }
  static Bytes encode(Floats scaled) {
    const Ints whole = __builtin_convertvector(limited(round_even(scaled), -128.0f, kLargest), Ints);
    return low_bytes(reinterpret_cast<Words>(whole));
  }
};

// float8_e4m3fn: a sign, 4 bits of exponent with bias 7, 3 of mantissa; multiples of 2^-9 below 2^-6.
struct Float8Kv {
  static constexpr float kLargest = 448.0f;
  static Floats decode(Words stored) {
    // The exponent's bias is that of float32 with a factor of 2^-120, which small numbers have, too.
    const Floats magnitude = bits_as<Floats>((stored & 0x7fu) << 20) * 0x1p120f;
    return bits_as<Floats>(reinterpret_cast<Words>(magnitude) | (stored & 0x80u) << 24);
  }
  static Floats decode(Bytes stored) { return decode(widen_bytes(stored)); }
  static Bytes encode(Floats scaled) {
    const Words bits = reinterpret_cast<Words>(limited(scaled, -kLargest, kLargest));
    const Words magnitude = bits & 0x7fffffffu;
    const Words normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
    const Floats steps = round_even(bits_as<Floats>(magnitude) * 512.0f);
    const Words small = reinterpret_cast<Words>(__builtin_convertvector(steps, Ints));
    const Words code = magnitude < (121u << 23) ? small : normal;
    return low_bytes(code | (bits >> 24 & 0x80u));
  }
};

// Calls body(first, count) for the parts of `size` that fill a vector, and for what is left. A full
// count is a constant: copies of it are one instruction.
template <class Body>
inline void for_vectors(int size, Body&& body) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) body(i, std::integral_constant<int, kLanes>{});
  if (i < size) body(i, size - i);
}

inline Floats load_some(const float* from, int count) {
  if (count == kLanes) return load<Floats>(from);
  float lanes[kLanes] = {};
  std::memcpy(lanes, from, count * sizeof(float));
  return load<Floats>(lanes);
}

// Stores a row of `size`, and the scale by which its values are to be multiplied.
template <class Kv>
inline void quantize_kv(uint8_t* values, float* scale, const float* from, int size) {
  constexpr float kLeast = 1e-30f;  // the factor of a smaller row would be infinite
  Floats largest{};
  for_vectors(size, [&](int i, auto count) {
    const Floats v = load_some(from + i, count);
    largest = max(largest, max(v, -v));
  });
  const float peak = max_lane(largest);
  const float factor = peak > kLeast ? Kv::kLargest / peak : 0.0f;
  for_vectors(size, [&](int i, auto count) {
    const Bytes stored = Kv::encode(load_some(from + i, count) * factor);
    std::memcpy(values + i, &stored, count);
  });
  *scale = peak * (1.0f / Kv::kLargest);
}

// Stores a row of `size` with a scale that is given.
template <class Kv>
inline void quantize_kv_by(uint8_t* values, float scale, const float* from, int size) {
  const Floats divisor = splat(scale);
  for_vectors(size, [&](int i, auto count) {
    const Bytes stored = Kv::encode(load_some(from + i, count) / divisor);
    std::memcpy(values + i, &stored, count);
  });
}

// The blocks of all groups of layers, as Python has them.
struct KvMemory {
  void* data;
  size_t block_stride;  // in elements
  int block_size;
  KvFormat format;
  // By group of layers, [layers][kinds][kv heads][block size] float32: the checkpoint's scales, which
  // are the same for all tokens of a head. Null: there are none.
  const float* const* scales;
};

// The cache [blocks, layers, kinds, kv heads, block size, head dim]; strides in elements. The kinds are
// keys and values, or with one kind rows that are both. In 8 bits an
// element is a byte, and behind the values [block size, head dim] of a head come its scales
// [block size] in float32, unless they are given.
template <class Element>
struct Cache {
  Element* data;
  KvFormat format;
  size_t block_stride;
  int kinds;
  int num_kv_heads;
  int block_size;
  int head_dim;
  const float* given_scales;  // [kinds][kv heads][block size]; null: they are in the blocks, if any

  bool is_quantized() const { return format != KvFormat::kElements; }
  bool holds_scales() const { return is_quantized() && given_scales == nullptr; }
  // Elements of one head's keys or values in a block.
  size_t head_stride() const {
    return size_t(block_size) * (head_dim + (holds_scales() ? sizeof(float) : 0));
  }
  size_t layer_stride() const { return kinds * num_kv_heads * head_stride(); }
  size_t head_offset(int block, int layer, int kind, int head) const {
    return block * block_stride + layer * layer_stride() +
           (size_t(kind) * num_kv_heads + head) * head_stride();
  }

  // Where a head's keys or values in a block begin, and the bytes of one token.
  const uint8_t* bytes(int block, int layer, int kind, int head) const {
    const size_t unit = is_quantized() ? 1 : sizeof(Element);
    return reinterpret_cast<const uint8_t*>(data) + head_offset(block, layer, kind, head) * unit;
  }
  size_t row_bytes() const { return head_dim * (is_quantized() ? 1 : sizeof(Element)); }

  // With elements only.
  Element* row(int block, int layer, int kind, int head, int slot) const {
    return data + head_offset(block, layer, kind, head) + size_t(slot) * head_dim;
  }

  // In 8 bits only: the values of a head, and its scales.
  uint8_t* values(int block, int layer, int kind, int head) const {
    return reinterpret_cast<uint8_t*>(data) + head_offset(block, layer, kind, head);
  }
  float* scales(uint8_t* values) const {
    return reinterpret_cast<float*>(values + size_t(block_size) * head_dim);
  }
  const float* scales(int kind, int head, const uint8_t* values) const {
    if (given_scales) return given_scales + (size_t(kind) * num_kv_heads + head) * block_size;
    return reinterpret_cast<const float*>(values + size_t(block_size) * head_dim);
  }
};

template <class Kv, class Element>
inline void store_codes(const Cache<Element>& cache, int block, int layer, int kind, int head,
                        int slot, const float* x) {
  uint8_t* head_values = cache.values(block, layer, kind, head);
  uint8_t* values = head_values + size_t(slot) * cache.head_dim;
  if (cache.holds_scales())
    quantize_kv<Kv>(values, cache.scales(head_values) + slot, x, cache.head_dim);
  else
    quantize_kv_by<Kv>(values, *cache.scales(kind, head, head_values), x, cache.head_dim);
}

// Fetches what `store_row` will write.
template <class Element>
inline void fetch_row(const Cache<Element>& cache, int block, int layer, int kind, int head, int slot) {
  const uint8_t* row = cache.bytes(block, layer, kind, head) + slot * cache.row_bytes();
  for (size_t at = 0; at < cache.row_bytes(); at += 64) __builtin_prefetch(row + at, 1, 2);
}

// Keeps a head's key or value.
template <class Element>
inline void store_row(const Cache<Element>& cache, int block, int layer, int kind, int head, int slot,
                      const float* x) {
  switch (cache.format) {
    case KvFormat::kElements:
      return narrow_row(cache.row(block, layer, kind, head, slot), x, cache.head_dim);
    case KvFormat::kInt8:
      return store_codes<Int8Kv>(cache, block, layer, kind, head, slot, x);
    case KvFormat::kFloat8:
      return store_codes<Float8Kv>(cache, block, layer, kind, head, slot, x);
  }
}

}  // namespace baton
