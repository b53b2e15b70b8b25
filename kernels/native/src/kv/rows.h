// Products with the keys and values of a chunk of tokens, row by row, in float32.
//
// A score's sum has a part for each lane, which takes the head's vectors in their order, of those that are
// taken apart first all that come first; the parts are added as a tree. A value's sum takes keys in their
// order by runs (`kv/chunk.h`). Keys and values of a task with few rows are read where they lie, or become float32
// first if they do not fill panels; many rows are those of `WideChunk`. Either way a row gets the same bits. What
// `HalfChunk` takes of int8 is multiplied as integers instead.
//
// Where they lie, keys and values of all runs are read at once: a core of Zen 3 waits for few lines of one
// stream, and for more of four, which its hardware guesses. With bytes there is so much to compute that what
// comes next can be fetched meanwhile, which is faster then.
#pragma once

#include "kv/halves.h"
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

// A row of `Stored` whose vectors were made float32.
template <class Stored>
struct WideRow {
  static constexpr bool kHasScales = false;
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
  // Of a tile that converts the values that it reads: one more, with half of the sums of each.
  static constexpr int kMostRows = kTileRows + 1;
  // Up to so many rows it is cheaper to convert keys and values for each tile than to store them.
  static constexpr int kFewRows = 2 * kMostRows;
  static constexpr int kMostApart = 2;
  // Values of each run that all panels take before the next ones, so that they find them in the cache.
  static constexpr int kSomeValues = 4;
  // How far ahead the lines of a run are fetched from the second-level cache.
  static constexpr int kKeyBytesAhead = 512, kValueBytesAhead = 256;
  // Whether keys and values are multiplied as integers, if the head is one that `HalfChunk` takes.
  template <class Stored>
  static constexpr bool kMayBeHalves =
      kHasHalves && std::is_same_v<Stored, ByteRow<Int8Kv>> && std::is_same_v<typename Dot::Element, uint16_t>;
  template <class Stored>
  using Halves = std::conditional_t<kMayBeHalves<Stored>, HalfChunk, void>;

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
        wide_(query_words(head_dim) / kLanes, panels_),
        halves_(head_dim, query_words(head_dim)) {
    for (int i = 0; i < kChunk; ++i) {
      wide_keys_[i] = reinterpret_cast<const uint8_t*>(keys_.data() + size_t(i) * stride_);
      wide_values_[i] = reinterpret_cast<const uint8_t*>(values_.data() + size_t(i) * stride_);
    }
  }

  // How vectors of queries and of weighted values are taken apart.
  template <class Stored>
  static constexpr int kApart = Stored::kApart;

  // Words of a head's query, those behind its end zero. One of halves has no more.
  static int query_words(int head_dim) { return round_up(head_dim, kMostApart * kLanes); }

  template <class Stored>
  static void put_query(uint32_t* to, const typename Dot::Element* from, int head_dim) {
    if constexpr (kMayBeHalves<Stored>)
      if (Halves<Stored>::takes(head_dim)) return Halves<Stored>::put_query(to, from, head_dim);
    if constexpr (Stored::kHasScales)
      widen_row(reinterpret_cast<float*>(to), from, head_dim);
    else
      widen<Stored>(reinterpret_cast<const uint8_t*>(from), reinterpret_cast<float*>(to), head_dim);
  }

  // Whether so many rows take keys and values where they lie: `read` is for the others.
  static bool reads_in_place(int num_rows, int head_dim) { return num_rows <= kFewRows && head_dim % kPanel == 0; }

  // Reads a chunk for `num_rows` rows, of which all see only the first `num_keys` keys.
  template <class Stored>
  void read(const ChunkRows& here, const ChunkRows& next, size_t row_bytes, int num_rows, int num_keys) {
    has_many_rows_ = num_rows > kFewRows;
    if (by_halves<Stored>([&](auto& halves) { halves.read(here, next, num_keys); })) return;
    if (has_many_rows_) {
      wide_.read<Stored>(here, next, row_bytes, head_dim_, num_keys);
      return;
    }
    widen_all<Stored>(here.keys, next.keys, row_bytes, keys_.data());
    widen_all<Stored>(here.values, next.values, row_bytes, values_.data());
  }

  // Of what was read:
  // scores [2 panels][rows, `rows_apart` apart][kPanel keys] = query [rows][query words] . keys
  template <class Stored>
  void multiply_keys(int num_rows, const uint32_t* query, float* scores, int rows_apart) {
    if (by_halves<Stored>([&](auto& halves) { halves.multiply_keys(num_rows, query, scores, rows_apart); })) return;
    if (has_many_rows_)
      return wide_.multiply_keys(num_rows, reinterpret_cast<const float*>(query), scores, rows_apart);
    ChunkFetch none;
    multiply_keys_at<WideRow<Stored>>(num_rows, query, wide_keys_, scores, rows_apart, none);
  }

  // out [panel of the head][rows][kPanel] += weights [rows][kChunk] . values
  template <class Stored>
  void add_values(int num_rows, const uint32_t* weights, float* out) {
    auto add = [&](auto& halves) { halves.add_values(num_rows, reinterpret_cast<const float*>(weights), out); };
    if (by_halves<Stored>(add)) return;
    if (has_many_rows_) return wide_.add_values(num_rows, reinterpret_cast<const float*>(weights), out);
    ChunkFetch none;
    add_values_at<WideRow<Stored>, kTileRows>(num_rows, weights, wide_values_, out, num_rows, none);
  }

  // The same with keys and values where they lie; rows of `out` lie `out_apart` apart. next: what is fetched meanwhile.
  template <class Stored>
  void multiply_keys_in_place(int num_rows, const uint32_t* query, const ChunkRows& here, float* scores,
                              int rows_apart, ChunkFetch& next) {
    auto multiply = [&](auto& halves) {
      halves.multiply_keys_in_place(num_rows, query, here.keys, scores, rows_apart, next);
    };
    if (by_halves<Stored>(multiply)) return;
    multiply_keys_at<Stored>(num_rows, query, here.keys, scores, rows_apart, next);
  }
  template <class Stored>
  void add_values_in_place(int num_rows, const uint32_t* weights, const ChunkRows& here, float* out,
                           int out_apart, ChunkFetch& next) {
    auto add = [&](auto& halves) {
      halves.add_values_in_place(num_rows, reinterpret_cast<const float*>(weights), here.values, out, out_apart, next);
    };
    if (by_halves<Stored>(add)) return;
    add_values_at<Stored, kMostRows>(num_rows, weights, here.values, out, out_apart, next);
  }

 private:
  // Calls body(halves) if they are what multiplies these keys and values, and returns whether they are.
  template <class Stored, class Body>
  bool by_halves([[maybe_unused]] Body&& body) {
    if constexpr (kMayBeHalves<Stored>) {
      if (Halves<Stored>::takes(head_dim_)) {
        body(halves_);
        return true;
      }
    }
    return false;
  }

  template <class Row>
  void multiply_keys_at(int num_rows, const uint32_t* query, const uint8_t* const* keys, float* scores,
                        int rows_apart, ChunkFetch& next) const {
    const float* rows = reinterpret_cast<const float*>(query);
    for_row_groups(num_rows, [&](int row, int count) {
      score<Row, kTileRows>(count, rows + size_t(row) * query_words(head_dim_), keys, scores + size_t(row) * kPanel,
                        rows_apart, next);
    });
  }

  template <class Row, int kRows>
  void add_values_at(int num_rows, const uint32_t* weights, const uint8_t* const* values, float* out,
                     int out_apart, ChunkFetch& next) const {
    const float* rows = reinterpret_cast<const float*>(weights);
    for_row_groups<kRows>(num_rows, [&](int row, int count) {
      weigh<Row, kRows>(count, rows + size_t(row) * kChunk, values, out + size_t(row) * kPanel, out_apart, next);
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
  void widen_all(const uint8_t* const* from, const uint8_t* const* next, size_t row_bytes, float* to) const {
    for (int i = 0; i < kChunk; ++i, to += stride_) {
      for (size_t at = 0; at < row_bytes; at += 64) fetch_line(next[i] + at);
      widen<Stored>(from[i], to, head_dim_);
    }
  }

  // One tile of rows with all keys, or with fewer rows if `count` says so: a key of each run at a time.
  template <class Row, int kRows>
  __attribute__((noinline, flatten)) void score(int count, const float* query, const uint8_t* const* keys,
                                                float* scores, int rows_apart, ChunkFetch& next) const {
    if constexpr (kRows > 1)
      if (count < kRows) return score<Row, kRows - 1>(count, query, keys, scores, rows_apart, next);
    const int words = query_words(head_dim_), vectors = words / kLanes;
    for (int key = 0; key < kRunKeys; ++key) {
      const uint8_t* its[kRuns];
      unrolled<kRuns>([&](auto run) BATON_INLINE {
        its[run] = keys[key + run * kRunKeys];
        if constexpr (Row::kHasScales)
          next.lines(lines_of_row());
        else
          fetch_row<Row>(its[run] + kKeyBytesAhead);
      });
      Floats sums[kRows][kRuns];
      unrolled<kRows>([&](auto r) BATON_INLINE { unrolled<kRuns>([&](auto run) BATON_INLINE { sums[r][run] = Floats{}; }); });
      unrolled<Row::kApart>([&](auto part) BATON_INLINE {
#pragma GCC unroll 1
        for (int v = part; v < vectors; v += Row::kApart) {
          Floats held[kRows];
          unrolled<kRows>([&](auto r) BATON_INLINE {
            held[r] = load<Floats>(query + size_t(r) * words + v * kLanes);
            hold(held[r]);
          });
          unrolled<kRuns>([&](auto run) BATON_INLINE {
            Floats now = Row::load(its[run], v);
            hold(now);
            unrolled<kRows>([&](auto r) BATON_INLINE {
              sums[r][run] += held[r] * now;
              hold(sums[r][run]);
            });
          });
        }
      });
      unrolled<kRows>([&](auto r) BATON_INLINE {
        const FourFloats four = sums_of(sums[r]);
        unrolled<kRuns>([&](auto run) BATON_INLINE {
          const int at = key + run * kRunKeys;
          scores[size_t(at / kPanel) * rows_apart * kPanel + r * kPanel + at % kPanel] = four[int(run)];
        });
      });
    }
  }

  int lines_of_row() const { return (head_dim_ + 63) / 64; }  // of bytes

  template <class Row>
  void fetch_row(const uint8_t* row) const {
    for (int at = 0; at < head_dim_ / kLanes * Row::kVectorBytes; at += 128) {
      prefetch(row + at);
      prefetch(row + at + 64);
    }
  }

  // The same with values.
  template <class Row, int kRows>
  __attribute__((noinline)) void weigh(int count, const float* weights, const uint8_t* const* values, float* out,
             int rows_apart, ChunkFetch& next) const {
    if constexpr (kRows > 1)
      if (count < kRows) return weigh<Row, kRows - 1>(count, weights, values, out, rows_apart, next);
    constexpr int kVectors = kRows > kTileRows ? kPanelVectors / 2 : kPanelVectors;
    for (int key = 0; key < kRunKeys; key += kSomeValues)
      for (int panel = 0; panel < panels_; ++panel)
        for (int first = 0; first < kPanelVectors; first += kVectors) {
          float* to = out + size_t(panel) * rows_apart * kPanel + first * kLanes;
          Floats sums[kRows][kVectors];
          for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVectors; ++v) sums[r][v] = load<Floats>(to + r * kPanel + v * kLanes);
          for (int of_run = key; of_run < key + kSomeValues; ++of_run)
            for (int k = of_run; k < kChunk; k += kRunKeys) {
              if constexpr (Row::kHasScales) {
                if (first == 0 && panel < lines_of_row()) next.lines(1);
              } else if (first == 0 && panel == 0) {
                fetch_row<Row>(values[k] + kValueBytesAhead);
              }
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
  WideChunk wide_;
  HalfChunk halves_;
  bool has_many_rows_ = false;
};

}  // namespace baton
