// Products with the keys and values of a chunk of tokens, row by row, in float32.
//
// A score's sum has a part for each lane, which takes the head's dimensions from lane to lane; the parts
// are added as a tree. A value's sum takes keys in their order. Keys and values of a task with few
// rows are read where they lie; for many rows they become float32 first, once for all. Either way
// a row gets the same bits. The hardware cannot guess where the next chunk is, so that it is fetched
// line for line while this one is read.
#pragma once

#include "kv_chunk.h"

namespace baton {

// Of a score and its three neighbours: lane i of the result is the sum of x[i].
typedef float FourFloats __attribute__((vector_size(16)));
inline FourFloats sums_of(const Floats* x) {
#if defined(__AVX__) && !defined(__AVX512F__)
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps((__m256)x[0], (__m256)x[1]),
                                      _mm256_hadd_ps((__m256)x[2], (__m256)x[3]));
  return (FourFloats)_mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
#else
  return FourFloats{sum(x[0]), sum(x[1]), sum(x[2]), sum(x[3])};
#endif
}

// Keeps a vector in a register: compilers would load it again for each product.
inline void hold(Floats& x) {
#if defined(__x86_64__)
  asm("" : "+x"(x));
#endif
}

// Numbers of a row that were made float32.
struct WideRow {
  static Floats load(const uint8_t* row, int dim) {
    Floats x = baton::load<Floats>(row + dim * sizeof(float));
    hold(x);
    return x;
  }
};

template <class Dot>
class RowChunk {
  // Of a tile that converts what it reads: one more, with half of the sums of each.
  static constexpr int kMostRows = kTileRows + 1;
  // Up to so many rows it is cheaper to convert keys and values for each tile than to store them.
  static constexpr int kFewRows = 2 * kMostRows;

 public:
  // What a query or a weight is in a product.
  using Operand = float;
  static constexpr int kWeightWords = kChunk;

  explicit RowChunk(int head_dim)
      : head_dim_(head_dim),
        panels_(panels_of(head_dim)),
        stride_(panels_ * kPanel + kLineWords),
        keys_(size_t(kChunk) * stride_),
        values_(size_t(kChunk) * stride_) {
    for (int i = 0; i < kChunk; ++i) {
      wide_keys_[i] = reinterpret_cast<const uint8_t*>(keys_.data() + size_t(i) * stride_);
      wide_values_[i] = reinterpret_cast<const uint8_t*>(values_.data() + size_t(i) * stride_);
    }
  }

  // Words of a head's query, those behind its end zero.
  static int query_words(int head_dim) { return round_up(head_dim, kLanes); }

  static void put_query(uint32_t* to, const typename Dot::Element* from, int head_dim) {
    widen_row(reinterpret_cast<float*>(to), from, head_dim);
  }

  // Reads a chunk for `num_rows` rows. It must outlive the products.
  template <class Stored>
  void read(const ChunkRows& here, const ChunkRows& next, size_t row_bytes, int num_rows) {
    here_ = &here;
    next_ = &next;
    row_bytes_ = row_bytes;
    is_wide_ = num_rows > kFewRows || head_dim_ % kPanel != 0;
    if (is_wide_) {
      widen<Stored>(here.keys, next.keys, keys_.data());
      widen<Stored>(here.values, next.values, values_.data());
    }
  }

  // scores [2 panels][rows, `rows_apart` apart][kPanel keys] = query [rows][query words] . keys
  template <class Stored>
  void multiply_keys(int num_rows, const uint32_t* query, float* scores, int rows_apart) const {
    const float* rows = reinterpret_cast<const float*>(query);
    for_tiles(num_rows, [&](auto tile, int row, int count) {
      using Tile = decltype(tile);
      score<typename Tile::template Row<Stored>, Tile::kRows, Tile::kFetches>(
          count, rows + size_t(row) * query_words(head_dim_), is_wide_ ? wide_keys_ : here_->keys,
          scores + size_t(row) * kPanel, rows_apart);
    });
  }

  // out [panel of the head][rows][kPanel] += weights [rows][kChunk] . values
  template <class Stored>
  void add_values(int num_rows, const uint32_t* weights, float* out) const {
    const float* rows = reinterpret_cast<const float*>(weights);
    for_tiles(num_rows, [&](auto tile, int row, int count) {
      using Tile = decltype(tile);
      weigh<typename Tile::template Row<Stored>, Tile::kRows, Tile::kFetches>(
          count, rows + size_t(row) * kChunk, is_wide_ ? wide_values_ : here_->values,
          out + size_t(row) * kPanel, num_rows);
    });
  }

 private:
  // Tiles of up to kRows rows, of what is stored or was made float32; the first one fetches the next chunk.
  struct WideTile {
    template <class Stored>
    using Row = WideRow;
    static constexpr int kRows = kTileRows;
    static constexpr bool kFetches = false;
  };
  template <bool kFirst>
  struct StoredTile {
    template <class Stored>
    using Row = Stored;
    static constexpr int kRows = kMostRows;
    static constexpr bool kFetches = kFirst;
  };

  // Calls body(tile, first_row, num_rows) for the tiles of `num_rows` rows.
  template <class Body>
  void for_tiles(int num_rows, Body&& body) const {
    if (is_wide_) {
      for_row_groups(num_rows, [&](int row, int count) { body(WideTile{}, row, count); });
      return;
    }
    for_row_groups<kMostRows>(num_rows, [&](int row, int count) {
      if (row == 0)
        body(StoredTile<true>{}, row, count);
      else
        body(StoredTile<false>{}, row, count);
    });
  }

  void fetch(const uint8_t* const* rows, int count) const {
    for (int i = 0; i < count; ++i)
      for (size_t at = 0; at < row_bytes_; at += 64) fetch_line(rows[i] + at);
  }

  // Behind the head's last number stay zeros.
  template <class Stored>
  void widen(const uint8_t* const* from, const uint8_t* const* next, float* to) const {
    for (int i = 0; i < kChunk; ++i, to += stride_) {
      fetch(next + i, 1);
      int dim = 0;
      for (; dim + kLanes <= head_dim_; dim += kLanes) store(to + dim, Stored::load(from[i], dim));
      if (dim < head_dim_) {
        const Floats rest = Stored::load_some(from[i], dim, head_dim_ - dim);
        std::memcpy(to + dim, &rest, (head_dim_ - dim) * sizeof(float));
      }
    }
  }

  // One tile of rows with all keys, or with fewer rows if `count` says so. Of few rows more keys are
  // taken at a time: enough sums that none waits for its last addition.
  template <class Row, int kRows, bool kFetches>
  void score(int count, const float* query, const uint8_t* const* keys, float* scores,
             int rows_apart) const {
    if constexpr (kRows > 1)
      if (count < kRows)
        return score<Row, kRows - 1, kFetches>(count, query, keys, scores, rows_apart);
    constexpr int kKeys = kRows == 1 ? 8 : 4;  // that are summed together
    constexpr int kStep = kRows > kTileRows ? kKeys / 2 : kKeys;
    const int words = query_words(head_dim_);
    for (int key = 0; key < kChunk; key += kKeys) {
      if constexpr (kFetches) fetch(next_->keys + key, kKeys);
      Floats parts[kRows][kKeys];
      for (int first = 0; first < kKeys; first += kStep) {
        Floats sums[kRows][kStep] = {};
        for (int dim = 0; dim < words; dim += kLanes) {
          Floats held[kRows];
          for (int r = 0; r < kRows; ++r) {
            held[r] = load<Floats>(query + size_t(r) * words + dim);
            hold(held[r]);
          }
          for (int k = 0; k < kStep; ++k) {
            const Floats now = Row::load(keys[key + first + k], dim);
            for (int r = 0; r < kRows; ++r) sums[r][k] += held[r] * now;
          }
        }
        for (int r = 0; r < kRows; ++r)
          for (int k = 0; k < kStep; ++k) parts[r][first + k] = sums[r][k];
      }
      float* to = scores + size_t(key / kPanel) * rows_apart * kPanel + key % kPanel;
      for (int r = 0; r < kRows; ++r)
        for (int k = 0; k < kKeys; k += 4) store(to + r * kPanel + k, sums_of(parts[r] + k));
    }
  }

  template <class Row, int kRows, bool kFetches>
  void weigh(int count, const float* weights, const uint8_t* const* values, float* out,
             int rows_apart) const {
    if constexpr (kRows > 1)
      if (count < kRows)
        return weigh<Row, kRows - 1, kFetches>(count, weights, values, out, rows_apart);
    constexpr int kVectors = kRows > kTileRows ? kPanelVectors / 2 : kPanelVectors;
    const size_t bytes = row_bytes_ / panels_;
    for (int panel = 0; panel < panels_; ++panel, out += size_t(rows_apart) * kPanel)
      for (int first = 0; first < kPanelVectors; first += kVectors) {
        float* to = out + first * kLanes;
        Floats sums[kRows][kVectors];
        for (int r = 0; r < kRows; ++r)
          for (int v = 0; v < kVectors; ++v) sums[r][v] = load<Floats>(to + r * kPanel + v * kLanes);
        for (int key = 0; key < kChunk; ++key) {
          if (kFetches && first == 0) fetch_line(next_->values[key] + panel * bytes);
          Floats held[kRows];
          for (int r = 0; r < kRows; ++r) held[r] = splat(weights[size_t(r) * kChunk + key]);
          for (int v = 0; v < kVectors; ++v) {
            const Floats now = Row::load(values[key], panel * kPanel + (first + v) * kLanes);
            for (int r = 0; r < kRows; ++r) sums[r][v] += held[r] * now;
          }
        }
        for (int r = 0; r < kRows; ++r)
          for (int v = 0; v < kVectors; ++v) store(to + r * kPanel + v * kLanes, sums[r][v]);
      }
  }

  int head_dim_;
  int panels_;  // of a head
  int stride_;  // of wide rows; no power of two, so that they lie in all sets of the cache
  Buffer<float> keys_;    // [kChunk][stride]
  Buffer<float> values_;  // the same
  const uint8_t* wide_keys_[kChunk];
  const uint8_t* wide_values_[kChunk];
  // Of the chunk that is read now:
  const ChunkRows* here_ = nullptr;
  const ChunkRows* next_ = nullptr;
  size_t row_bytes_ = 0;
  bool is_wide_ = false;
};

}  // namespace baton
