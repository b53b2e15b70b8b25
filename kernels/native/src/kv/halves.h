// Products with int8 keys and values of a chunk as sums of integers of 16 bits, which are exact.
//
// A query and a chunk's weights become integers of 16 bits, each row by its own factor; keys and values are theirs. One
// instruction multiplies two pairs of halves in a lane and adds them: twice as many products as float32 has. Sums of
// integers have no order, so few rows, which take keys and values where they lie, get the bits of many rows, for
// which a chunk becomes panels.
#pragma once

#include "kv/wide.h"

namespace baton {

#if defined(__AVX2__) && !defined(__AVX512F__)

constexpr bool kHasHalves = true;

class HalfChunk {
  // A score of the longest head fits 32 bits, and so does a value of a chunk.
  static constexpr int kMostDim = 512;
  static constexpr float kLargestHalf = 32767.0f;
  static constexpr double kLargestByte = 128.0;  // -128, with scales that are given
  static_assert(kMostDim * kLargestHalf * kLargestByte < 0x1p31 && kChunk * kLargestHalf * kLargestByte < 0x1p31);
  static constexpr float kLeastNumber = 1e-30f;  // less counts as nothing
  // Tiles: of few rows, which have a vector of each of four keys or two of a value; and of many rows.
  static constexpr int kFewRows = 3, kManyRows = 6, kManyVectors = 2;
  static constexpr int kWeightWords = kChunk / 2;

 public:
  // query_words: how far rows of queries lie apart.
  HalfChunk(int head_dim, int query_words)
      : head_dim_(head_dim),
        query_words_(query_words),
        keys_(size_t(kChunk) * head_dim / 2),
        values_(size_t(kChunk) * head_dim / 2) {}

  static bool takes(int head_dim) { return head_dim % kPanel == 0 && head_dim <= kMostDim; }

  // A row has its numbers, two to a word, and then what one of their products stands for.
  static void put_query(uint32_t* to, const uint16_t* from, int head_dim) {
    Floats largest{}, strange{};
    for (int i = 0; i < head_dim; i += kLanes) take_largest(widen(from + i), largest, strange);
    const Unit unit(largest, strange);
    for (int i = 0; i < head_dim; i += 2 * kLanes)
      store(to + i / 2, halves_of(widen(from + i) * unit.factor, widen(from + i + kLanes) * unit.factor));
    std::memcpy(to + head_dim / 2, &unit.size, sizeof(float));
  }

  // Makes panels of a chunk; only its first `num_keys` keys and values take part.
  void read(const ChunkRows& here, const ChunkRows& next, int num_keys) {
    num_panels_ = (num_keys + kPanel - 1) / kPanel;
    for (int i = 0; i < kChunk; ++i)
      for (int at = 0; at < head_dim_; at += 64) {
        fetch_line(next.keys[i] + at);
        fetch_line(next.values[i] + at);
      }
    for (int key = 0; key < num_panels_ * kPanel; key += kLanes)
      for (int dim = 0; dim < head_dim_; dim += 2 * kLanes) {
        Floats x[kLanes];
        for (int i = 0; i < kLanes; ++i) x[i] = bits_as<Floats>(widen_16(here.keys[key + i] + dim));
        turn(x);
        for (int i = 0; i < kLanes; ++i) store(keys_at(key / kPanel, dim / 2 + i) + key % kPanel, x[i]);
      }
    for (int pair = 0; pair < num_panels_ * kPanel / 2; ++pair)
      for (int dim = 0; dim < head_dim_; dim += 2 * kLanes) {
        const __m128i first = load_16(here.values[2 * pair] + dim), second = load_16(here.values[2 * pair + 1] + dim);
        uint32_t* to = values_at(dim / kPanel, pair) + dim % kPanel;
        store(to, pairs_of(first, second, false));
        store(to + kLanes, pairs_of(first, second, true));
      }
  }

  // scores [2 panels][rows, `rows_apart` apart][kPanel keys] = query . keys
  void multiply_keys(int num_rows, const uint32_t* query, float* scores, int rows_apart) const {
    for (int panel = 0; panel < num_panels_; ++panel)
      multiply_panel(num_rows, query, query_words_, keys_at(panel, 0), head_dim_ / 2, [&](int row, int v, Ints sums) {
        store(scores + (size_t(panel) * rows_apart + row) * kPanel + v * kLanes,
              __builtin_convertvector(sums, Floats) * unit_of(query_row(query, row)));
      });
  }

  // out [panel of the head][rows][kPanel] += weights [rows][kChunk] . values
  void add_values(int num_rows, const float* weights, float* out) {
    put_weights(num_rows, weights);
    for (int panel = 0; panel < head_dim_ / kPanel; ++panel)
      multiply_panel(num_rows, weights_.data(), kWeightWords, values_at(panel, 0), num_panels_ * kPanel / 2,
                     [&](int row, int v, Ints sums) {
                       float* to = out + (size_t(panel) * num_rows + row) * kPanel + v * kLanes;
                       store(to, load<Floats>(to) + __builtin_convertvector(sums, Floats) * units_[row]);
                     });
  }

  // The same with keys and values where they lie; rows of `out` lie `out_apart` apart. next: what is fetched meanwhile.
  void multiply_keys_in_place(int num_rows, const uint32_t* query, const uint8_t* const* keys, float* scores,
                              int rows_apart, ChunkFetch& next) const {
    for_row_groups<kFewRows>(num_rows, [&](int row, int count) {
      score<kFewRows>(count, query_row(query, row), keys, scores + size_t(row) * kPanel, rows_apart, next);
    });
  }
  void add_values_in_place(int num_rows, const float* weights, const uint8_t* const* values, float* out,
                           int out_apart, ChunkFetch& next) {
    put_weights(num_rows, weights);
    for_row_groups<kFewRows>(num_rows, [&](int row, int count) {
      weigh<kFewRows>(count, row, values, out + size_t(row) * kPanel, out_apart, next);
    });
  }

 private:
  // Numbers become integers by `factor`; one of those stands for `size`.
  struct Unit {
    float factor, size;

    // strange: NaN, if a number is not finite.
    Unit(Floats largest, Floats strange) {
      const float peak = max_lane(largest);
      const bool is_some = peak > kLeastNumber;
      factor = is_some ? kLargestHalf / peak : 0.0f;
      size = (is_some ? peak * (1.0f / kLargestHalf) : 1.0f) + sum(strange);
    }
  };

  static void take_largest(Floats x, Floats& largest, Floats& strange) {
    largest = max(largest, max(x, -x));
    strange += x * 0.0f;
  }
  const uint32_t* query_row(const uint32_t* query, int row) const { return query + size_t(row) * query_words_; }
  float unit_of(const uint32_t* query) const {
    float unit;
    std::memcpy(&unit, query + head_dim_ / 2, sizeof(float));
    return unit;
  }

  static Words halves_of(Floats low, Floats high) {
    const __m256i both = _mm256_packs_epi32(_mm256_cvtps_epi32((__m256)low), _mm256_cvtps_epi32((__m256)high));
    return (Words)_mm256_permute4x64_epi64(both, 0xd8);
  }
  static __m128i load_16(const uint8_t* bytes) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)); }
  static Words widen_16(const uint8_t* bytes) {
    return (Words)_mm256_cvtepi8_epi16(load_16(bytes));
  }
  // Eight numbers of a value and of the next one, side by side, from the first or the last half of sixteen.
  static Words pairs_of(__m128i first, __m128i second, bool is_last) {
    return (Words)_mm256_cvtepi8_epi16(is_last ? _mm_unpackhi_epi8(first, second) : _mm_unpacklo_epi8(first, second));
  }
  // The row's words stay in memory: sums take all registers of a tile.
  static void add_products(Ints& sum, Words numbers, const uint32_t* row) {
    Ints products;
    asm("vpmaddwd %2, %1, %0" : "=x"(products) : "x"(numbers), "m"(*reinterpret_cast<const Words*>(row)));
    sum += products;
    hold(sum);
  }
  // Of each of four vectors the sum.
  static __m128i sums_of_ints(const Ints* x) {
    auto add = [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); };
    const __m256i a = (__m256i)x[0], b = (__m256i)x[1], c = (__m256i)x[2], d = (__m256i)x[3];
    const __m256i ab = add(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    const __m256i cd = add(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    const __m256i all = add(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
    return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  }

  const uint32_t* keys_at(int panel, int word) const { return keys_.data() + (panel * head_dim_ / 2 + word) * kPanel; }
  uint32_t* keys_at(int panel, int word) { return keys_.data() + (panel * head_dim_ / 2 + word) * kPanel; }
  const uint32_t* values_at(int panel, int pair) const {
    return values_.data() + (panel * kWeightWords + pair) * kPanel;
  }
  uint32_t* values_at(int panel, int pair) { return values_.data() + (panel * kWeightWords + pair) * kPanel; }

  // Weights of some rows of a chunk become integers.
  void put_weights(int num_rows, const float* from) {
    weights_.reserve(size_t(num_rows) * kWeightWords);
    units_.reserve(num_rows);
    for (int row = 0; row < num_rows; ++row, from += kChunk) {
      Floats largest{}, strange{};
      for (int i = 0; i < kChunk; i += kLanes) take_largest(load<Floats>(from + i), largest, strange);
      const Unit unit(largest, strange);
      uint32_t* to = weights_.data() + size_t(row) * kWeightWords;
      for (int i = 0; i < kChunk; i += 2 * kLanes)
        store(to + i / 2, halves_of(load<Floats>(from + i) * unit.factor, load<Floats>(from + i + kLanes) * unit.factor));
      units_[row] = unit.size;
    }
  }

  // Calls put(row, vector, sums) for rows times a panel of `size` words.
  template <class Put>
  static void multiply_panel(int num_rows, const uint32_t* rows, int words, const uint32_t* panel, int size, Put&& put) {
    for_row_groups<kManyRows>(num_rows, [&](int row, int count) {
      Ints sums[kManyRows * kPanelVectors];
      for (int v = 0; v < kPanelVectors; v += kManyVectors)
        multiply_rows<Int16Dot, 0, kManyRows, kManyVectors>(count, rows + size_t(row) * words, words,
                                                            panel + v * kLanes, size, sums + v, true);
      for (int r = 0; r < count; ++r)
        for (int v = 0; v < kPanelVectors; ++v) put(row + r, v, sums[r * kPanelVectors + v]);
    });
  }

  // One tile of rows with all keys, or with fewer rows if `count` says so: four neighbours at a time.
  template <int kRows>
  __attribute__((noinline, flatten)) void score(int count, const uint32_t* query, const uint8_t* const* keys,
                                                float* scores, int rows_apart, ChunkFetch& next) const {
    if constexpr (kRows > 1)
      if (count < kRows) return score<kRows - 1>(count, query, keys, scores, rows_apart, next);
    const int lines = 4 * ((head_dim_ + 63) / 64) + 1;  // those of scales are fetched, too
    for (int key = 0; key < kChunk; key += 4) {
      next.lines(lines);
      Ints sums[kRows][4];
      unrolled<kRows>([&](auto r) BATON_INLINE { unrolled<4>([&](auto k) BATON_INLINE { sums[r][k] = Ints{}; }); });
      for (int dim = 0; dim < head_dim_; dim += 2 * kLanes)
        unrolled<4>([&](auto k) BATON_INLINE {
          const Words numbers = widen_16(keys[key + k] + dim);
          unrolled<kRows>([&](auto r) BATON_INLINE { add_products(sums[r][k], numbers, query_row(query, r) + dim / 2); });
        });
      unrolled<kRows>([&](auto r) BATON_INLINE {
        const __m128 wide = _mm_cvtepi32_ps(sums_of_ints(sums[r]));
        float* to = scores + size_t(key / kPanel) * rows_apart * kPanel + r * kPanel + key % kPanel;
        _mm_storeu_ps(to, _mm_mul_ps(wide, _mm_set1_ps(unit_of(query_row(query, r)))));
      });
    }
  }

  // The same with values: two vectors of all of them before the next ones.
  template <int kRows>
  __attribute__((noinline, flatten)) void weigh(int count, int row, const uint8_t* const* values, float* out, int out_apart,
                                       ChunkFetch& next) const {
    if constexpr (kRows > 1)
      if (count < kRows) return weigh<kRows - 1>(count, row, values, out, out_apart, next);
    constexpr int kPairs = 4;
    const uint32_t* weights = weights_.data() + size_t(row) * kWeightWords;
    for (int dim = 0; dim < head_dim_; dim += 2 * kLanes) {
      Ints sums[kRows][2];
      unrolled<kRows>([&](auto r) BATON_INLINE { unrolled<2>([&](auto v) BATON_INLINE { sums[r][v] = Ints{}; }); });
      for (int pair = 0; pair < kChunk / 2; pair += kPairs) {
        next.lines(kPairs / 2);  // a line has four vectors of one value
        unrolled<kPairs>([&](auto i) BATON_INLINE {
          const __m128i first = load_16(values[2 * (pair + i)] + dim), second = load_16(values[2 * (pair + i) + 1] + dim);
          const Words low = pairs_of(first, second, false), high = pairs_of(first, second, true);
          unrolled<kRows>([&](auto r) BATON_INLINE {
            const Words weight = splat(weights[size_t(r) * kWeightWords + pair + i]);
            sums[r][0] = Int16Dot::add(sums[r][0], weight, low);
            hold(sums[r][0]);
            sums[r][1] = Int16Dot::add(sums[r][1], weight, high);
            hold(sums[r][1]);
          });
        });
      }
      unrolled<kRows>([&](auto r) BATON_INLINE {
        unrolled<2>([&](auto v) BATON_INLINE {
          float* to = out + (size_t(dim / kPanel) * out_apart + r) * kPanel + dim % kPanel + v * kLanes;
          store(to, load<Floats>(to) + __builtin_convertvector(sums[r][v], Floats) * units_[row + r]);
        });
      });
    }
  }

  int head_dim_;
  int query_words_;
  int num_panels_ = 0;        // of the chunk's keys that take part
  Buffer<uint32_t> keys_;     // [2 panels][head dim / 2][kPanel keys]
  Buffer<uint32_t> values_;   // [panels of the head][pairs of values][kPanel]
  Buffer<uint32_t> weights_;  // [rows][pairs of values]
  Buffer<float> units_;       // of the weights, by row
};

#else

constexpr bool kHasHalves = false;
struct HalfChunk {
  HalfChunk(int, int) {}
};

#endif

}  // namespace baton
