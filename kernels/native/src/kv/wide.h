// Products of many rows with the keys and values of a chunk, which become float32 once for all of them.
//
// Keys are turned: a vector has one number of each of several keys, so that no score is a sum over lanes. A
// row gets the bits that `RowChunk` gives it: the numbers that share a lane there are summed in the same
// order, and those sums are added as the same tree.
#pragma once

#include "kv/chunk.h"

namespace baton {

// The lane whose sum is the i-th leaf of the tree: see `sums_of`.
constexpr int tree_lane(int i) {
#if defined(__AVX__) && !defined(__AVX512F__)
  return i;
#else
  int lane = 0;
  for (int bit = 1; bit < kLanes; bit *= 2) lane = 2 * lane + (i & bit ? 1 : 0);
  return lane;
#endif
}

// Number l of vector i becomes number i of vector l.
inline void turn(Floats (&x)[kLanes]) {
#if defined(__AVX__) && !defined(__AVX512F__)
  __m256 r[8], t[8];
  for (int i = 0; i < 8; i += 2) {
    r[i] = _mm256_unpacklo_ps((__m256)x[i], (__m256)x[i + 1]);
    r[i + 1] = _mm256_unpackhi_ps((__m256)x[i], (__m256)x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    t[i] = _mm256_shuffle_ps(r[i], r[i + 2], 0x44);
    t[i + 1] = _mm256_shuffle_ps(r[i], r[i + 2], 0xee);
    t[i + 2] = _mm256_shuffle_ps(r[i + 1], r[i + 3], 0x44);
    t[i + 3] = _mm256_shuffle_ps(r[i + 1], r[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = (Floats)_mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
    x[i + 4] = (Floats)_mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
  }
#else
  for (int i = 0; i < kLanes; ++i)
    for (int l = 0; l < i; ++l) {
      const float kept = x[i][l];
      x[i][l] = x[l][i];
      x[l][i] = kept;
    }
#endif
}

class WideChunk {
  // Values of each run that all panels take before the next ones, so that they find them in the cache.
  static constexpr int kSomeValues = 4;

 public:
  // vectors: of a head's query and of its key.
  WideChunk(int vectors, int panels)
      : vectors_(vectors),
        panels_(panels),
        keys_(size_t(kChunk) * vectors * kLanes),
        values_(size_t(kChunk) * panels * kPanel) {}

  // Only the first `num_keys` keys and values take part.
  template <class Stored>
  void read(const ChunkRows& here, const ChunkRows& next, size_t row_bytes, int head_dim, int num_keys) {
    num_keys_ = num_keys;
    apart_ = Stored::kApart;
    for (int i = 0; i < kChunk; ++i)
      for (size_t at = 0; at < row_bytes; at += 64) {
        fetch_line(next.keys[i] + at);
        fetch_line(next.values[i] + at);
      }
    for (int key = 0; key < num_panels() * kPanel; key += kLanes)
      turn_keys<Stored>(here.keys + key, head_dim, keys_at(key / kPanel) + key % kPanel);
    const int runs = num_runs();
    for (int run = 0; run < runs; ++run)
      for (int key = 0; key < kRunKeys; ++key)
        widen<Stored>(here.values[run * kRunKeys + key], head_dim, values_at(key * runs + run));
  }

  // scores [2 panels][rows, `rows_apart` apart][kPanel keys] = query [rows][vectors] . keys
  void multiply_keys(int num_rows, const float* query, float* scores, int rows_apart) const {
    for (int panel = 0; panel < num_panels(); ++panel)
      for_row_groups(num_rows, [&](int row, int count) {
        score<kTileRows>(count, query + size_t(row) * vectors_ * kLanes, keys_at(panel),
                         scores + (size_t(panel) * rows_apart + row) * kPanel);
      });
  }

  // out [panel of the head][rows][kPanel] += weights [rows][kChunk] . values
  void add_values(int num_rows, const float* weights, float* out) const {
    for_row_groups(num_rows, [&](int row, int count) {
      for (int key = 0; key < kRunKeys; key += kSomeValues)
        for (int panel = 0; panel < panels_; ++panel)
          weigh<kTileRows>(count, weights + size_t(row) * kChunk + key, values_at(key * num_runs()) + panel * kPanel,
                           out + (size_t(panel) * num_rows + row) * kPanel);
    });
  }

 private:
  int num_panels() const { return (num_keys_ + kPanel - 1) / kPanel; }
  // Runs with keys that rows see: those of the others have no weight.
  int num_runs() const { return (num_keys_ + kRunKeys - 1) / kRunKeys; }
  float* values_at(int place) { return values_.data() + size_t(place) * panels_ * kPanel; }
  const float* values_at(int place) const { return values_.data() + size_t(place) * panels_ * kPanel; }
  float* keys_at(int panel) { return keys_.data() + size_t(panel) * vectors_ * kLanes * kPanel; }
  const float* keys_at(int panel) const {
    return keys_.data() + size_t(panel) * vectors_ * kLanes * kPanel;
  }

  // A vector of a row; of numbers behind its end zeros.
  template <class Stored>
  static Floats vector_of(const uint8_t* row, int vector, int head_dim) {
    const bool is_whole = (vector / Stored::kApart + 1) * Stored::kApart * kLanes <= head_dim;
    return is_whole ? Stored::load(row, vector) : Stored::load_some(row, vector, head_dim);
  }

  // to [lane of the tree][vectors in their order][kPanel keys]
  template <class Stored>
  void turn_keys(const uint8_t* const* keys, int head_dim, float* to) const {
    int place = 0;
    for (int part = 0; part < Stored::kApart; ++part)
      for (int v = part; v < vectors_; v += Stored::kApart, ++place) {
        Floats x[kLanes];
        for (int i = 0; i < kLanes; ++i) x[i] = vector_of<Stored>(keys[i], v, head_dim);
        turn(x);
        for (int i = 0; i < kLanes; ++i)
          store(to + (size_t(i) * vectors_ + place) * kPanel, x[tree_lane(i)]);
      }
  }

  template <class Stored>
  void widen(const uint8_t* row, int head_dim, float* to) const {
    for (int v = 0; v < panels_ * kPanelVectors; ++v)
      store(to + v * kLanes, v < vectors_ ? vector_of<Stored>(row, v, head_dim) : Floats{});
  }

  // A tile of rows, or fewer if `count` says so, with a panel of keys.
  template <int kRows>
  __attribute__((noinline)) void score(int count, const float* query, const float* keys,
                                       float* scores) const {
    if constexpr (kRows > 1)
      if (count < kRows) return score<kRows - 1>(count, query, keys, scores);
    // Sums of lanes that wait for their neighbours.
    Floats waiting[kLanes][kRows][kPanelVectors];
    int depth = 0;
    for (int i = 0; i < kLanes; ++i, keys += size_t(vectors_) * kPanel) {
      Floats sums[kRows][kPanelVectors] = {};
      add_lane(query + tree_lane(i), keys, sums);
      for (int bit = 1; i & bit; bit *= 2) {
        --depth;
        for (int r = 0; r < kRows; ++r)
          for (int v = 0; v < kPanelVectors; ++v) sums[r][v] += waiting[depth][r][v];
      }
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kPanelVectors; ++v) waiting[depth][r][v] = sums[r][v];
      ++depth;
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kPanelVectors; ++v)
        store(scores + r * kPanel + v * kLanes, waiting[0][r][v]);
  }

  // Adds the products of the numbers that share a lane.
  template <int kRows>
  __attribute__((always_inline)) void add_lane(const float* query, const float* keys,
                                               Floats (&sums)[kRows][kPanelVectors]) const {
    const size_t stride = size_t(vectors_) * kLanes;
    for (int part = 0; part < apart_; ++part)
#pragma GCC unroll 2
      for (int v = part; v < vectors_; v += apart_, keys += kPanel) {
        Floats held[kRows];
        for (int r = 0; r < kRows; ++r) held[r] = splat(query[r * stride + v * kLanes]);
        add_products(held, keys, sums);
      }
  }

  template <int kRows>
  __attribute__((always_inline)) static void add_products(const Floats (&rows)[kRows], const float* panel,
                                                          Floats (&sums)[kRows][kPanelVectors]) {
    for (int v = 0; v < kPanelVectors; ++v) {
      const Floats now = load<Floats>(panel + v * kLanes);
      for (int r = 0; r < kRows; ++r) sums[r][v] += rows[r] * now;
    }
  }

  // The same with some values.
  template <int kRows>
  __attribute__((noinline)) void weigh(int count, const float* weights, const float* values, float* out) const {
    if constexpr (kRows > 1)
      if (count < kRows) return weigh<kRows - 1>(count, weights, values, out);
    Floats sums[kRows][kPanelVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = load<Floats>(out + r * kPanel + v * kLanes);
    const int end = num_runs() * kRunKeys;
    for (int of_run = 0; of_run < kSomeValues; ++of_run)
      for (int k = of_run; k < end; k += kRunKeys, values += size_t(panels_) * kPanel) {
        Floats held[kRows];
        for (int r = 0; r < kRows; ++r) held[r] = splat(weights[size_t(r) * kChunk + k]);
        add_products(held, values, sums);
      }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kPanelVectors; ++v) store(out + r * kPanel + v * kLanes, sums[r][v]);
  }

  int vectors_;
  int panels_;
  int num_keys_ = 0;
  int apart_ = 1;
  Buffer<float> keys_;    // [2 panels][lane of the tree][vectors][kPanel keys]
  Buffer<float> values_;  // [key of a run][runs][panels][kPanel]
};

}  // namespace baton
