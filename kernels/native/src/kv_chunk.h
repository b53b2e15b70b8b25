// A chunk of tokens of one head: where its keys and values lie, and how their numbers are read.
#pragma once

#include "kv_format.h"
#include "tile.h"

namespace baton {

constexpr int kChunk = 2 * kPanel;

// Where the keys and values of a chunk are, and what products with them are multiplied by.
struct ChunkRows {
  const uint8_t* keys[kChunk];
  const uint8_t* values[kChunk];
  const float* key_scales[kChunk];
  const float* value_scales[kChunk];
};

inline void fetch_line(const uint8_t* address) { __builtin_prefetch(address, 0, 2); }

// A row of elements. `load` returns kLanes numbers from `dim` on, `load_some` so many of them before zeros.
template <class T>
struct ElementRow {
  using Element = T;
  static constexpr bool kHasScales = false;

  static Floats load(const uint8_t* row, int dim) {
    return widen(reinterpret_cast<const Element*>(row) + dim);
  }
  static Floats load_some(const uint8_t* row, int dim, int count) {
    Element lanes[kLanes] = {};
    std::memcpy(lanes, reinterpret_cast<const Element*>(row) + dim, count * sizeof(Element));
    return widen(lanes);
  }
};

// A row of bytes with a scale, which the caller applies to scores and weights.
template <class T>
struct ByteRow {
  using Kv = T;
  static constexpr bool kHasScales = true;

  static Floats load(const uint8_t* row, int dim) { return Kv::decode(baton::load<Bytes>(row + dim)); }
  static Floats load_some(const uint8_t* row, int dim, int count) {
    Bytes stored{};
    std::memcpy(&stored, row + dim, count);
    return Kv::decode(stored);
  }
};

}  // namespace baton
