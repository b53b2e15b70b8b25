// Keys and values of a chunk of tokens, from what the cache keeps to panels that the register tile takes.
//
// Keys are transposed, and values of neighbouring tokens paired, so that each is read and packed once for
// all rows of a task. Blocks lie anywhere, so the hardware cannot guess where the next chunk is: what is
// packed here is fetched there, line for line, since a burst of fetches would only wait for itself.
#pragma once

#include "kv_format.h"
#include "tile.h"

namespace baton {

constexpr int kChunk = 2 * kPanel;

// What products of elements that one instruction multiplies, or of float32 numbers that elements are
// made.
template <class Dot>
using PackedDot = std::conditional_t<Dot::kIsWider, Float32Dot, Dot>;

// Where the keys and values of a chunk are, and what products with them are multiplied by.
struct ChunkRows {
  const uint8_t* keys[kChunk];
  const uint8_t* values[kChunk];
  const float* key_scales[kChunk];
  const float* value_scales[kChunk];
};

inline void fetch_line(const uint8_t* address) { __builtin_prefetch(address, 0, 2); }

// Calls body(word, columns) for the first `words` words of kLanes rows, and fetches as much of `next`.
template <class Body>
inline void for_columns(const uint8_t* const* rows, const uint8_t* const* next, int words,
                        Body&& body) {
  int word = 0;
#if defined(__AVX__)
  for (; word + kLanes <= words; word += kLanes) {
    const uint32_t* from[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      from[i] = reinterpret_cast<const uint32_t*>(rows[i]) + word;
      fetch_line(next[i] + 4 * word);
    }
    transpose_words(from, [&](int i, Words columns) { body(word + i, columns); });
  }
#endif
  for (; word < words; ++word) {
    uint32_t columns[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      std::memcpy(columns + i, rows[i] + 4 * word, 4);
      if (word % kLineWords == 0) fetch_line(next[i] + 4 * word);
    }
    body(word, load<Words>(columns));
  }
}

// A cache of elements.
template <class Dot>
struct ElementRows {
  using Element = typename Dot::Element;
  using Packed = PackedDot<Dot>;
  static constexpr bool kHasScales = false;

  // kLanes keys, to words kPanel apart.
  static void pack_keys(const uint8_t* const* keys, const uint8_t* const* next, int head_dim,
                        uint32_t* to) {
    for_columns(keys, next, round_up(head_dim, Dot::kElements) / Dot::kElements,
                [&](int word, Words columns) {
                  if constexpr (Dot::kIsWider)
                    for (int part = 0; part < 2; ++part)
                      store(to + size_t(2 * word + part) * kPanel,
                            Dot::column_part(columns, part));
                  else
                    store(to + size_t(word) * kPanel, columns);
                });
  }

  // The values of one word of tokens, `count` of each from `dim` on.
  static void pack_values(const uint8_t* const* values, int dim, int count, uint32_t* to) {
    const Element* first = reinterpret_cast<const Element*>(values[0]) + dim;
    if constexpr (Packed::kElements == 1) {
      widen_row(reinterpret_cast<float*>(to), first, count);
    } else {
      const Element* second = reinterpret_cast<const Element*>(values[1]) + dim;
      if (count == kLanes) {
        store(to, widen_halves(load<Halves>(first)) | widen_halves(load<Halves>(second)) << 16);
      } else {
        for (int i = 0; i < count; ++i) to[i] = uint32_t(first[i]) | uint32_t(second[i]) << 16;
      }
    }
  }
};

// A cache of bytes with scales, which the caller applies to scores and weights: the numbers that bytes
// stand for are elements without rounding.
template <class Dot, class Kv>
struct ByteRows {
  using Packed = PackedDot<Dot>;
  static constexpr bool kHasScales = true;

  static void pack_keys(const uint8_t* const* keys, const uint8_t* const* next, int head_dim,
                        uint32_t* to) {
    const int words = round_up(head_dim, Packed::kElements) / Packed::kElements;
    constexpr int kWords = 4 / Packed::kElements;  // that one word of bytes becomes
    auto unpack = [&](int word, Words columns) {
      for (int i = 0; i < kWords; ++i) {
        const int at = word * kWords + i;
        if (at < words)
          store(to + size_t(at) * kPanel, element_word([&](int part) {
                  return Kv::decode(columns >> (8 * (i * Packed::kElements + part)) & 0xffu);
                }));
      }
    };
    for_columns(keys, next, head_dim / 4, unpack);
    if (const int rest = head_dim % 4) {
      uint32_t columns[kLanes] = {};
      for (int i = 0; i < kLanes; ++i)
        std::memcpy(columns + i, keys[i] + head_dim - rest, rest);
      unpack(head_dim / 4, load<Words>(columns));
    }
  }

  static void pack_values(const uint8_t* const* values, int dim, int count, uint32_t* to) {
    store(to, element_word([&](int part) {
            Bytes stored{};
            if (count == kLanes)
              stored = load<Bytes>(values[part] + dim);
            else
              std::memcpy(&stored, values[part] + dim, count);
            return Kv::decode(widen_bytes(stored));
          }));
  }

 private:
  // The words of elements that are one or two vectors of numbers.
  template <class Part>
  static Words element_word(Part&& part) {
    if constexpr (Packed::kElements == 1) return reinterpret_cast<Words>(part(0));
    else
      return reinterpret_cast<Words>(part(0)) >> 16 |
             (reinterpret_cast<Words>(part(1)) & 0xffff0000u);
  }
};

}  // namespace baton
