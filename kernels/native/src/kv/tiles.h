// Products of few rows with the keys and values of a chunk, by the processor's matrix unit.
//
// Keys are a tile as they lie in the cache, of which rows of queries are the columns, so no key is turned: its scores
// are, which are fewer. A sum has the order that it has in `PanelChunk`, so a row gets the same bits. A task has several
// key/value heads of a sequence, which are neighbours in memory: what is fetched for its next chunk is so in the order of
// memory, in small parts beside the products, since few lines can be on their way at once.
#pragma once

#include "kv/pairs.h"
#include "vectors/amx.h"

namespace baton {

#if defined(BATON_HAS_AMX)

// The rows of keys or of values of a chunk: those of a tile one behind the other, or each anywhere.
struct TileRows {
  const uint8_t* tiles[kChunk / amx::kRows];
  const uint8_t* const* rows = nullptr;  // [kChunk]; null: those of `tiles`
};

class TileChunk {
  static constexpr int kKeys = amx::kRows;                  // of a tile
  static constexpr int kGroups = kChunk / kKeys;
  static constexpr int kNumbers = 2 * amx::kWords;          // of a line of elements
  static constexpr int kWeightWords = kChunk / 2;
  static constexpr int kNarrow = 4;                         // columns where there are few

 public:
  // Of a head of a task that is computed here.
  static constexpr int kMostRows = amx::kRows;
  static bool takes(int num_rows, int head_dim) { return num_rows <= kMostRows && head_dim % kNumbers == 0; }

  explicit TileChunk(int head_dim)
      : words_(head_dim / 2),
        panels_(head_dim / kPanel),
        query_(size_t(kMostHeads) * words_ * kMostRows),
        staged_(size_t(kChunk) * words_),
        values_(size_t(panels_) * kWeightWords * kPanel) {}

  // query: [heads][rows][words]
  void begin(int num_heads, int num_rows, const uint32_t* query) {
    rows_ = num_rows;
    columns_ = num_rows <= kNarrow ? kNarrow : kMostRows;
    uint32_t* to = query_.data();
    for (int head = 0; head < num_heads; ++head, query += size_t(num_rows) * words_)
      for (int word = 0; word < words_; ++word)
        for (int row = 0; row < columns_; ++row) *to++ = row < num_rows ? query[size_t(row) * words_ + word] : 0;
    // Tiles 0 and 1 have scores, 2 queries: a column for each row of the task. Tiles 4 and 5 have sums, 6 weights: a row
    // for each. Tile 3 has keys or values, 7 keys.
    amx::Shapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.rows[tile] = uint8_t(tile >= 4 && tile <= 6 ? num_rows : kKeys);
      shapes.row_bytes[tile] = uint16_t(tile <= 2 ? 4 * columns_ : 64);
    }
    amx::load_shapes(shapes);
  }
  static void end() { _tile_release(); }

  // Before the products with a chunk. next: a part of it is fetched beside each of them.
  void read(ChunkFetch& next, size_t row_bytes) {
    next_ = &next;
    row_bytes_ = row_bytes;
    lines_ = int(2 * kChunk * row_bytes / 64) / (4 * panels_ + 2 * kGroups) + 1;
  }

  // scores [2 panels][rows, `rows_apart` apart][kPanel keys] = query . keys
  template <class Stored>
  void multiply_keys(int head, const TileRows& keys, float* scores, int rows_apart) {
    alignas(64) float turned[kGroups][kKeys * kMostRows];
    const uint32_t* query = query_.data() + size_t(head) * words_ * columns_;
    const size_t apart = 4 * size_t(columns_), stride = 4 * size_t(words_);
    const uint8_t* tiles[kGroups];
    for (int group = 0; group < kGroups; ++group) tiles[group] = tile_of<Stored>(keys, group, group);
    asm volatile("" ::: "memory");
    for (int group = 0; group < kGroups; group += 2) {
      _tile_zero(0);
      _tile_zero(1);
      for (int word = 0; word < words_; word += amx::kWords) {
        _tile_loadd(2, query + size_t(word) * columns_, apart);
        _tile_loadd(3, tiles[group] + 4 * word, stride);
        _tile_dpbf16ps(0, 3, 2);
        _tile_loadd(7, tiles[group + 1] + 4 * word, stride);
        _tile_dpbf16ps(1, 7, 2);
        next_->lines(lines_);
      }
      _tile_stored(0, turned[group], apart);
      _tile_stored(1, turned[group + 1], apart);
    }
    asm volatile("" ::: "memory");
    for (int group = 0; group < kGroups; ++group) {
      const int key = group * kKeys;
      put_scores(turned[group], scores + size_t(key / kPanel) * rows_apart * kPanel + key % kPanel);
      next_->lines(lines_);
    }
  }

  // out [panel of the head][rows, `rows_apart` apart][kPanel] += weights [rows][words of keys] . values
  template <class Stored>
  void add_values(const TileRows& values, const uint32_t* weights, float* out, int rows_apart) {
    for (int word = 0; word < kWeightWords; ++word) {
      const uint8_t *first, *second;
      if (values.rows) {
        first = values.rows[2 * word];
        second = values.rows[2 * word + 1];
      } else {
        first = values.tiles[word / (kKeys / 2)] + 2 * word % kKeys * row_bytes_;
        second = first + row_bytes_;
      }
      uint32_t* to = values_.data() + size_t(word) * kPanel;
      for (int panel = 0; panel < panels_; ++panel)
        pair_values<Stored>(first, second, panel, to + size_t(panel) * kWeightWords * kPanel);
      if (word % 8 == 7) next_->lines(lines_);
    }
    asm volatile("" ::: "memory");
    for (int panel = 0; panel < panels_; ++panel) {
      float* own = out + size_t(panel) * rows_apart * kPanel;
      const uint32_t* from = values_.data() + size_t(panel) * kWeightWords * kPanel;
      _tile_loadd(4, own, 4 * kPanel);
      _tile_loadd(5, own + kHalfPanel, 4 * kPanel);
      for (int word = 0; word < kWeightWords; word += amx::kWords, from += amx::kWords * kPanel) {
        _tile_loadd(6, weights + word, 4 * kWeightWords);
        _tile_loadd(3, from, 4 * kPanel);
        _tile_dpbf16ps(4, 6, 3);
        _tile_loadd(7, from + kHalfPanel, 4 * kPanel);
        _tile_dpbf16ps(5, 6, 7);
        next_->lines(lines_);
      }
      _tile_stored(4, own, 4 * kPanel);
      _tile_stored(5, own + kHalfPanel, 4 * kPanel);
    }
    asm volatile("" ::: "memory");
  }

 private:
  // Elements of a tile's rows, `words_` apart: where they lie, if they lie so.
  template <class Stored>
  const uint8_t* tile_of(const TileRows& from, int group, int place) {
    if constexpr (!Stored::kHasScales)
      if (from.rows == nullptr) return from.tiles[group];
    uint32_t* to = staged_.data() + size_t(place) * kKeys * words_;
    for (int i = 0; i < kKeys; ++i)
      put_row<Stored>(from.rows ? from.rows[group * kKeys + i] : from.tiles[group] + i * row_bytes_, to + i * words_);
    return reinterpret_cast<const uint8_t*>(to);
  }

  template <class Stored>
  void put_row(const uint8_t* row, uint32_t* to) const {
    for (int line = 0; line < panels_; ++line) _mm512_store_si512(to + line * amx::kWords, line_of<Stored>(row, line));
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

  int words_;   // of a head
  int panels_;  // of a head
  int rows_ = 0;
  int columns_ = 0;
  size_t row_bytes_ = 0;
  Buffer<uint32_t> query_;   // [heads][words][columns]
  Buffer<uint32_t> staged_;  // [kChunk][words]: of tiles that do not lie as the unit takes them
  Buffer<uint32_t> values_;  // [panels][words of keys][kPanel]
  ChunkFetch* next_ = nullptr;
  int lines_ = 0;  // that are fetched at a time
};

#endif

}  // namespace baton
