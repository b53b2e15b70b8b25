// Products with the keys and values of a chunk of tokens, row by row, in float32.
//
// A score's sum has a part for each lane, which takes the head's vectors in their order, of those that are
// taken apart first all that come first; the parts are added as a tree. A value's sum takes keys in their
// order. Keys and values of a task with few rows are read where they lie, or become float32 first if they do
// not fill panels; many rows are those of `WideChunk`. Either way a row gets the same bits. The hardware cannot
// guess where the next chunk is, so that it is fetched line for line while this one is read, in the order of
// memory: then the hardware guesses the next lines. A core waits for few lines at once, and drops what is fetched
// beyond them.
#pragma once

#include "kv/wide.h"

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

// Fetches the rows of a chunk, `row_bytes` each, line after line.
class RowFetch {
 public:
  RowFetch(const uint8_t* const* rows, size_t row_bytes) : row_(rows), row_bytes_(row_bytes) {}

  // The share of a step that reads kBytes; with less than a line only some steps have one.
  template <int kBytes>
  void step(int number) {
    if constexpr (kBytes < kLineBytes)
      if (number % (kLineBytes / kBytes) != 0) return;
    for (int at = 0; at < kBytes; at += kLineBytes) line();
  }

 private:
  static constexpr int kLineBytes = 64;

  void line() {
    fetch_line(*row_ + at_);
    for (at_ += kLineBytes; at_ >= row_bytes_; at_ -= row_bytes_) ++row_;
  }

  const uint8_t* const* row_;
  size_t row_bytes_;
  size_t at_ = 0;  // in the row
};

// A row of `Stored` whose vectors were made float32.
template <class Stored>
struct WideRow {
  static constexpr int kApart = Stored::kApart;
  static constexpr int kVectorBytes = sizeof(Floats);

  static Floats load(const uint8_t* row, int vector) {
    Floats x = baton::load<Floats>(row + vector * sizeof(Floats));
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
  static constexpr int kMostApart = 2;
  static constexpr int kSomeValues = 16;

 public:
  // What a query or a weight is in a product.
  using Operand = float;
  static constexpr int kWeightWords = kChunk;

  explicit RowChunk(int head_dim)
      : head_dim_(head_dim),
        panels_(panels_of(head_dim)),
        stride_(panels_ * kPanel + kLineWords),
        keys_(size_t(kChunk) * stride_),
        values_(size_t(kChunk) * stride_),
        wide_(query_words(head_dim) / kLanes, panels_) {
    for (int i = 0; i < kChunk; ++i) {
      wide_keys_[i] = reinterpret_cast<const uint8_t*>(keys_.data() + size_t(i) * stride_);
      wide_values_[i] = reinterpret_cast<const uint8_t*>(values_.data() + size_t(i) * stride_);
    }
  }

  // How vectors of queries and of weighted values are taken apart.
  template <class Stored>
  static constexpr int kApart = Stored::kApart;

  // Words of a head's query, those behind its end zero.
  static int query_words(int head_dim) { return round_up(head_dim, kMostApart * kLanes); }

  template <class Stored>
  static void put_query(uint32_t* to, const typename Dot::Element* from, int head_dim) {
    if constexpr (Stored::kHasScales)
      widen_row(reinterpret_cast<float*>(to), from, head_dim);
    else
      widen<Stored>(reinterpret_cast<const uint8_t*>(from), reinterpret_cast<float*>(to), head_dim);
  }

  // Reads a chunk for `num_rows` rows, of which all see only the first `num_keys` keys. It must outlive the
  // products.
  template <class Stored>
  void read(const ChunkRows& here, const ChunkRows& next, size_t row_bytes, int num_rows, int num_keys) {
    has_many_rows_ = num_rows > kFewRows;
    if (has_many_rows_) {
      wide_.read<Stored>(here, next, row_bytes, head_dim_, num_keys);
      return;
    }
    here_ = &here;
    next_ = &next;
    row_bytes_ = row_bytes;
    is_wide_ = head_dim_ % kPanel != 0;
    if (is_wide_) {
      widen_all<Stored>(here.keys, next.keys, keys_.data());
      widen_all<Stored>(here.values, next.values, values_.data());
    }
  }

  // scores [2 panels][rows, `rows_apart` apart][kPanel keys] = query [rows][query words] . keys
  template <class Stored>
  void multiply_keys(int num_rows, const uint32_t* query, float* scores, int rows_apart) const {
    const float* rows = reinterpret_cast<const float*>(query);
    if (has_many_rows_) {
      wide_.multiply_keys(num_rows, rows, scores, rows_apart);
      return;
    }
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
    if (has_many_rows_) {
      wide_.add_values(num_rows, rows, out);
      return;
    }
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
    using Row = WideRow<Stored>;
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

  // The vectors of a row. Numbers behind its end become zero where a vector has some.
  template <class Stored>
  static void widen(const uint8_t* from, float* to, int size) {
    const int vectors = round_up(size, Stored::kApart * kLanes) / kLanes;
    const int whole = size / (Stored::kApart * kLanes) * Stored::kApart;
    for (int v = 0; v < whole; ++v) store(to + v * kLanes, Stored::load(from, v));
    for (int v = whole; v < vectors; ++v) store(to + v * kLanes, Stored::load_some(from, v, size));
  }

  // Behind the head's last vector stay zeros.
  template <class Stored>
  void widen_all(const uint8_t* const* from, const uint8_t* const* next, float* to) const {
    for (int i = 0; i < kChunk; ++i, to += stride_) {
      for (size_t at = 0; at < row_bytes_; at += 64) fetch_line(next[i] + at);
      widen<Stored>(from[i], to, head_dim_);
    }
  }

  // One tile of rows with all keys, or with fewer rows if `count` says so. Of few rows more keys are
  // taken at a time: enough sums that none waits for its last addition.
  template <class Row, int kRows, bool kFetches>
  __attribute__((noinline)) void score(int count, const float* query, const uint8_t* const* keys, float* scores,
             int rows_apart) const {
    if constexpr (kRows > 1)
      if (count < kRows)
        return score<Row, kRows - 1, kFetches>(count, query, keys, scores, rows_apart);
    constexpr int kKeys = kRows == 1 ? 8 : 4;  // that are summed together
    constexpr int kStep = kRows > kTileRows ? kKeys / 2 : kKeys;
    RowFetch next(next_->keys, row_bytes_);
    for (int key = 0; key < kChunk; key += kKeys) {
      Floats parts[kRows][kKeys];
      for (int first = 0; first < kKeys; first += kStep) {
        Floats sums[kRows][kStep] = {};
        add_keys<Row, kFetches>(query, keys + key + first, next, sums);
        for (int r = 0; r < kRows; ++r)
          for (int k = 0; k < kStep; ++k) parts[r][first + k] = sums[r][k];
      }
      float* to = scores + size_t(key / kPanel) * rows_apart * kPanel + key % kPanel;
      for (int r = 0; r < kRows; ++r)
        for (int k = 0; k < kKeys; k += 4) store(to + r * kPanel + k, sums_of(parts[r] + k));
    }
  }

  // Adds the products of some rows with some keys, and fetches as many of the next chunk.
  template <class Row, bool kFetches, int kRows, int kStep>
  __attribute__((always_inline)) void add_keys(const float* query, const uint8_t* const* keys,
                                               RowFetch& next, Floats (&sums)[kRows][kStep]) const {
    const int words = query_words(head_dim_);
    auto add = [&](int vector) {
      Floats held[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        Floats row = load<Floats>(query + size_t(r) * words + vector * kLanes);
        hold(row);
        held[r] = row;
      }
#pragma GCC unroll 8
      for (int k = 0; k < kStep; ++k) {
        const Floats now = Row::load(keys[k], vector);
        for (int r = 0; r < kRows; ++r) sums[r][k] += held[r] * now;
      }
    };
    auto add_part = [&](auto part) {
#pragma GCC unroll 1
      for (int v = part; v < words / kLanes; v += Row::kApart) {
        if constexpr (kFetches) next.step<kStep * Row::kVectorBytes>(v / Row::kApart);
        add(v);
      }
    };
    add_part(std::integral_constant<int, 0>{});
    if constexpr (Row::kApart == 2) add_part(std::integral_constant<int, 1>{});
  }

  // The same with values. So few of them are taken at a time that all panels find them in the cache.
  template <class Row, int kRows, bool kFetches>
  __attribute__((noinline)) void weigh(int count, const float* weights, const uint8_t* const* values, float* out,
             int rows_apart) const {
    if constexpr (kRows > 1)
      if (count < kRows)
        return weigh<Row, kRows - 1, kFetches>(count, weights, values, out, rows_apart);
    constexpr int kVectors = kRows > kTileRows ? kPanelVectors / 2 : kPanelVectors;
    RowFetch next(next_->values, row_bytes_);
    for (int key = 0; key < kChunk; key += kSomeValues)
      for (int panel = 0; panel < panels_; ++panel)
        for (int first = 0; first < kPanelVectors; first += kVectors) {
          float* to = out + size_t(panel) * rows_apart * kPanel + first * kLanes;
          Floats sums[kRows][kVectors];
          for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVectors; ++v) sums[r][v] = load<Floats>(to + r * kPanel + v * kLanes);
          for (int k = key; k < key + kSomeValues; ++k) {
            if constexpr (kFetches) next.step<kVectors * Row::kVectorBytes>(k);
            Floats held[kRows];
            for (int r = 0; r < kRows; ++r) held[r] = splat(weights[size_t(r) * kChunk + k]);
            for (int v = 0; v < kVectors; ++v) {
              const Floats now = Row::load(values[k], panel * kPanelVectors + first + v);
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
  WideChunk wide_;
  bool has_many_rows_ = false;
};

}  // namespace baton
