// Products with the keys and values of a chunk of tokens, as panels that the register tile takes.
//
// Keys are transposed, and values of neighbouring tokens paired, so that each is read and packed once for
// all rows of a task. Blocks lie anywhere, so the hardware cannot guess where the next chunk is: what is
// packed here is fetched there, line for line, since a burst of fetches would only wait for itself.
#pragma once

#include "kv/chunk.h"
#include "vectors/amx.h"

namespace baton {

// What products of elements that one instruction multiplies, or of float32 numbers that elements are
// made.
template <class Dot>
using PackedDot = std::conditional_t<Dot::kIsWider, Float32Dot, Dot>;

// Calls body(word, columns) for the first `words` words of kLanes rows, and fetches as much of `next`.
template <class Body>
inline void for_columns(const uint8_t* const* rows, const uint8_t* const* next, int words,
                        Body&& body) {
  int word = 0;
#if defined(__AVX512F__)
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

template <class Dot, class Stored>
struct Packing;

template <class Dot>
struct Packing<Dot, ElementRow<typename Dot::Element>> {
  using Element = typename Dot::Element;
  using Packed = PackedDot<Dot>;

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

// The numbers that bytes stand for are elements without rounding.
template <class Dot, class Kv>
struct Packing<Dot, ByteRow<Kv>> {
  using Packed = PackedDot<Dot>;

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
            const int vector = dim / kLanes;
            return count == kLanes ? ByteRow<Kv>::load(values[part], vector)
                                   : ByteRow<Kv>::load_some(values[part], vector, dim + count);
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

template <class Dot>
class PanelChunk {
  using Packed = PackedDot<Dot>;
  static constexpr int kElements = Packed::kElements;  // of a word

 public:
  // Whether the matrix unit can compute the products.
#if defined(BATON_HAS_AMX)
  static constexpr bool kHasTiles = std::is_same_v<Packed, BFloat16Dot>;
#else
  static constexpr bool kHasTiles = false;
#endif
  // What a query or a weight is in a product.
  using Operand = typename Packed::Element;
  static constexpr int kWeightWords = kChunk / kElements;

  explicit PanelChunk(int head_dim)
      : head_dim_(head_dim),
        words_(query_words(head_dim)),
        panels_(panels_of(head_dim)),
        keys_(size_t(2) * round_up(words_, 2) * kPanel),
        values_(size_t(panels_) * kWeightWords * kPanel) {}

  // See `RowChunk`: nothing is taken apart.
  template <class Stored>
  static constexpr int kApart = 1;

  // Words of a head's query.
  static int query_words(int head_dim) {
    const int words = round_up(head_dim, kElements) / kElements;
    return kHasTiles ? round_up(words, kLineWords) : words;
  }

  template <class Stored>
  static void put_query(uint32_t* to, const typename Dot::Element* from, int head_dim) {
    if constexpr (Dot::kIsWider)
      widen_row(reinterpret_cast<float*>(to), from, head_dim);
    else
      std::memcpy(to, from, head_dim * sizeof(*from));
  }

  // Packs a chunk, and fetches the next one.
  template <class Stored>
  void read(const ChunkRows& here, const ChunkRows& next, size_t row_bytes, int, int) {
    using Pack = Packing<Dot, Stored>;
    for (int i = 0; i < kChunk; i += kLanes)
      Pack::pack_keys(here.keys + i, next.keys + i, head_dim_,
                      keys_.data() + size_t(i / kPanel) * words_ * kPanel + i % kPanel);
    uint32_t* to = values_.data();
    for (int token = 0; token < kChunk; token += kElements, to += kPanel) {
      for (int i = 0; i < kElements; ++i)
        for (size_t at = 0; at < row_bytes; at += 64) fetch_line(next.values[token + i] + at);
      for (int dim = 0; dim < head_dim_; dim += kLanes)
        Pack::pack_values(here.values + token, dim, std::min(kLanes, head_dim_ - dim),
                          to + size_t(dim / kPanel) * kWeightWords * kPanel + dim % kPanel);
    }
  }

  // scores [2 panels][rows, `rows_apart` apart][kPanel keys] = query [rows][query words] . keys
  template <class Stored>
  void multiply_keys(int num_rows, const uint32_t* query, float* scores, int rows_apart) {
    multiply(num_rows, query, words_, keys_.data(), kChunk / kPanel, scores, rows_apart, true);
  }

  // out [panel of the head][rows][kPanel] += weights [rows][words of keys] . values
  template <class Stored>
  void add_values(int num_rows, const uint32_t* weights, float* out) {
    multiply(num_rows, weights, kWeightWords, values_.data(), panels_, out, num_rows, false);
  }

 private:
  // sums [panel][row] (+)= rows [num_rows][words] . panels [panel][words]; panels of sums are
  // `rows_apart` rows apart.
  static void multiply(int num_rows, const uint32_t* rows, int words, const uint32_t* panels,
                       int num_panels, float* sums, int rows_apart, bool first) {
    auto* vectors = reinterpret_cast<Floats*>(sums);
    for (int panel = 0; panel < num_panels; ++panel)
      for_row_groups(num_rows, [&](int row, int n) {
        multiply_rows<Packed, 0>(n, rows + size_t(row) * words, words,
                                 panels + size_t(panel) * words * kPanel, words,
                                 vectors + (size_t(panel) * rows_apart + row) * kPanelVectors,
                                 first);
      });
  }

  int head_dim_;
  int words_;   // of a head
  int panels_;  // of a head
  Buffer<uint32_t> keys_;    // [2 panels][words][32 keys]
  Buffer<uint32_t> values_;  // [panel of the head][words of keys][32 dims]
};

}  // namespace baton
