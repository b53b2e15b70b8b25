// Products of few rows with the keys and values of a chunk, by the processor's matrix unit.
//
// Keys are a tile as they lie in the cache, of which rows of queries are the columns, so no key is turned: its scores
// are, which are fewer. A sum has the order that it has in `PanelChunk`, so a row gets the same bits. What is
// fetched for the next chunk is so in the order of memory, which the hardware guesses, in small parts beside the
// products: few lines can be on their way at once.
#pragma once

#include "amx.h"
#include "kv_pairs.h"

namespace baton {

#if defined(BATON_HAS_AMX)

// Fetches the rows of a chunk, line after line, keys first.
class ChunkFetch {
 public:
  void begin(const ChunkRows& rows, size_t row_bytes) {
    rows_ = &rows;
    row_bytes_ = row_bytes;
    at_ = 0;
  }

  // Of the next `count` rows; of none behind the last one.
  void rows(int count) {
    for (const int end = std::min(at_ + count, 2 * kChunk); at_ < end; ++at_) {
      const uint8_t* row = at_ < kChunk ? rows_->keys[at_] : rows_->values[at_ - kChunk];
      for (size_t at = 0; at < row_bytes_; at += 64) fetch_line(row + at);
    }
  }

 private:
  const ChunkRows* rows_ = nullptr;
  size_t row_bytes_ = 0;
  int at_ = 0;
};

class TileChunk {
  static constexpr int kKeys = amx::kRows;                  // of a tile
  static constexpr int kGroups = kChunk / kKeys;
  static constexpr int kNumbers = 2 * amx::kWords;          // of a line of 32 elements
  static constexpr int kWeightWords = kChunk / 2;
  static constexpr int kNarrow = 4;                         // columns where there are few

 public:
  // Of a task that is computed here.
  static constexpr int kMostRows = amx::kRows;
  static bool takes(int num_rows, int head_dim) { return num_rows <= kMostRows && head_dim % kNumbers == 0; }

  explicit TileChunk(int head_dim)
      : words_(head_dim / 2),
        query_(size_t(words_) * kMostRows),
        keys_(size_t(2) * kKeys * words_),
        values_(size_t(kWeightWords) * round_up(head_dim, kPanel)) {}

  // query: [rows][words]
  void begin(int num_rows, const uint32_t* query) {
    rows_ = num_rows;
    columns_ = num_rows <= kNarrow ? kNarrow : kMostRows;
    for (int word = 0; word < words_; ++word)
      for (int row = 0; row < columns_; ++row)
        query_[size_t(word) * columns_ + row] = row < num_rows ? query[size_t(row) * words_ + word] : 0;
    // Tiles 0 and 1 have scores, 2 queries: a column for each row of the task. Tiles 4 and 5 have sums, 6 weights: a row
    // for each. Tiles 3 and 7 have keys or values.
    amx::Shapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.rows[tile] = uint8_t(tile >= 4 && tile <= 6 ? num_rows : kKeys);
      shapes.row_bytes[tile] = uint16_t(tile <= 2 ? 4 * columns_ : 64);
    }
    amx::load_shapes(shapes);
  }
  static void end() { _tile_release(); }

  void read(const ChunkRows& here, const ChunkRows& next, size_t row_bytes) {
    here_ = &here;
    row_bytes_ = row_bytes;
    next_.begin(next, row_bytes);
  }

  // scores [2 panels][rows, `rows_apart` apart][kPanel keys] = query . keys
  template <class Stored>
  void multiply_keys(float* scores, int rows_apart) {
    alignas(64) float turned[kGroups][kKeys * kMostRows];
    const size_t apart = 4 * size_t(columns_);
    for (int group = 0; group < kGroups; group += 2) {
      _tile_zero(0);
      _tile_zero(1);
      size_t stride[2];
      const uint8_t* keys[2];
      for (int i = 0; i < 2; ++i) keys[i] = tile_of<Stored>(group + i, stride[i], i);
      asm volatile("" ::: "memory");
      for (int word = 0; word < words_; word += amx::kWords) {
        _tile_loadd(2, query_.data() + size_t(word) * columns_, apart);
        _tile_loadd(3, keys[0] + 4 * word, stride[0]);
        _tile_dpbf16ps(0, 3, 2);
        _tile_loadd(7, keys[1] + 4 * word, stride[1]);
        _tile_dpbf16ps(1, 7, 2);
        next_.rows(4);
      }
      _tile_stored(0, turned[group], apart);
      _tile_stored(1, turned[group + 1], apart);
    }
    asm volatile("" ::: "memory");
    for (int group = 0; group < kGroups; ++group) {
      const int key = group * kKeys;
      put_scores(turned[group], scores + size_t(key / kPanel) * rows_apart * kPanel + key % kPanel);
      next_.rows(4);
    }
  }

  // out [panel of the head][rows][kPanel] += weights [rows][words of keys] . values
  template <class Stored>
  void add_values(const uint32_t* weights, float* out) {
    const int panels = 2 * words_ / kPanel;
    for (int word = 0; word < kWeightWords; ++word) {
      const uint8_t* const* values = here_->values + 2 * word;
      uint32_t* to = values_.data() + size_t(word) * kPanel;
      for (int panel = 0; panel < panels; ++panel)
        pair_values<Stored>(values[0], values[1], panel, to + size_t(panel) * kWeightWords * kPanel);
      next_.rows(2);
    }
    asm volatile("" ::: "memory");
    for (int panel = 0; panel < panels; ++panel) {
      float* own = out + size_t(panel) * rows_ * kPanel;
      const uint32_t* from = values_.data() + size_t(panel) * kWeightWords * kPanel;
      _tile_loadd(4, own, 4 * kPanel);
      _tile_loadd(5, own + kHalfPanel, 4 * kPanel);
      for (int word = 0; word < kWeightWords; word += amx::kWords, from += amx::kWords * kPanel) {
        _tile_loadd(6, weights + word, 4 * kWeightWords);
        _tile_loadd(3, from, 4 * kPanel);
        _tile_dpbf16ps(4, 6, 3);
        _tile_loadd(7, from + kHalfPanel, 4 * kPanel);
        _tile_dpbf16ps(5, 6, 7);
        next_.rows(8);
      }
      _tile_stored(4, own, 4 * kPanel);
      _tile_stored(5, own + kHalfPanel, 4 * kPanel);
    }
    asm volatile("" ::: "memory");
  }

 private:
  // Elements of a tile's keys, and the bytes from one to the next: where they lie, if that is one behind the other.
  template <class Stored>
  const uint8_t* tile_of(int group, size_t& stride, int place) {
    const uint8_t* const* keys = here_->keys + group * kKeys;
    stride = 4 * size_t(words_);
    if constexpr (!Stored::kHasScales) {
      bool is_whole = true;
      for (int i = 1; i < kKeys; ++i) is_whole &= keys[i] == keys[0] + i * row_bytes_;
      if (is_whole) return keys[0];
    }
    uint32_t* to = keys_.data() + size_t(place) * kKeys * words_;
    for (int i = 0; i < kKeys; ++i)
      for (int line = 0; line < words_ / amx::kWords; ++line)
        _mm512_store_si512(to + size_t(i) * words_ + line * amx::kWords, line_of<Stored>(keys[i], line));
    return reinterpret_cast<const uint8_t*>(to);
  }

  // from: [keys][columns]; to: rows, kPanel apart.
  void put_scores(const float* from, float* to) const {
    if (columns_ != kNarrow) {
      const uint32_t* keys[kKeys];
      for (int i = 0; i < kKeys; ++i) keys[i] = reinterpret_cast<const uint32_t*>(from) + i * kMostRows;
      transpose_words(keys, [&](int row, Words columns) {
        if (row < rows_) store(to + size_t(row) * kPanel, columns);
      });
      return;
    }
    const __m512i order = _mm512_set_epi32(29, 25, 21, 17, 13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i behind = _mm512_add_epi32(order, _mm512_set1_epi32(2));
    __m512 x[kNarrow];
    for (int i = 0; i < kNarrow; ++i) x[i] = _mm512_load_ps(from + i * kLanes);
    for (int pair = 0; pair < (rows_ + 1) / 2; ++pair) {
      const __m512i own = pair == 0 ? order : behind;
      const __m512 lower = _mm512_permutex2var_ps(x[0], own, x[1]), upper = _mm512_permutex2var_ps(x[2], own, x[3]);
      _mm512_store_ps(to + 2 * pair * kPanel, _mm512_shuffle_f32x4(lower, upper, 0x44));
      if (2 * pair + 1 < rows_)
        _mm512_store_ps(to + (2 * pair + 1) * kPanel, _mm512_shuffle_f32x4(lower, upper, 0xee));
    }
  }

  int words_;  // of a head
  int rows_ = 0;
  int columns_ = 0;
  Buffer<uint32_t> query_;   // [words][columns]
  Buffer<uint32_t> keys_;    // [2][kKeys][words]: of a chunk that does not lie as tiles take it
  Buffer<uint32_t> values_;  // [panel of the head][words of keys][32 dims]
  // Of the chunk that is read now:
  const ChunkRows* here_ = nullptr;
  size_t row_bytes_ = 0;
  ChunkFetch next_;
};

#endif

}  // namespace baton
