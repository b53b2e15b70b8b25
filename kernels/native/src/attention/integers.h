// Attention over int8 keys and values as exact sums of integers, by the processor's matrix unit.
//
// Bytes are multiplied as they are stored. A query and a row's weights become integers of two digits of 8 bits each,
// so a sum is 128 or 256 times that of the upper digits and that of the lower ones. It is exact: a row gets the same
// bits beside any other rows. The unit is a span: its keys give all scores first, so its weights have one bound.
#pragma once

#include <algorithm>

#include "attention/softmax.h"
#include "attention/sums.h"
#include "attention/task.h"
#include "kv/digits.h"
#include "kv/tiles.h"

namespace baton {

#if defined(BATON_HAS_AMX)

// How scores become weights: see `AttentionKernel`.
struct Weighing {
  float scale;
  float cap;
  float steps;
};

class IntegerSpan {
  static constexpr int kLine = 64;                 // numbers of a tile's row
  static constexpr int kKeys = amx::kRows;         // of a tile
  static constexpr int kTile = kKeys * kLine;      // bytes
  static constexpr int kGroups = kSpan / kKeys;    // of keys
  static constexpr int kChunkGroups = kChunk / kKeys;
  static constexpr int kChunks = kSpan / kChunk;
  static constexpr int kPartRows = 8;              // both digits of so many rows are a tile
  static constexpr int kNarrow = 4;                // rows of a part where there are few

 public:
  // Sums of longer heads could overflow.
  static bool takes(int head_dim) { return head_dim % kLine == 0 && head_dim <= 1024 && may_use_amx(); }

  // query: [heads][rows][head_dim] of bfloat16
  void begin(int num_heads, int num_rows, int head_dim, const uint32_t* query) {
    head_dim_ = head_dim;
    steps_ = head_dim / kLine;
    rows_ = num_rows;
    parts_ = (num_rows + kPartRows - 1) / kPartRows;
    is_few_ = num_rows <= TileChunk::kMostRows;
    part_rows_ = (num_rows + parts_ - 1) / parts_;
    columns_ = part_rows_ <= kNarrow ? kNarrow : kPartRows;
    query_.reserve(size_t(num_heads) * parts_ * steps_ * kTile);
    units_.reserve(size_t(num_heads) * num_rows);
    staged_.reserve(size_t(2) * kSpan * head_dim);
    quads_.reserve(size_t(kChunks) * 4 * kTile);
    scores_.reserve(size_t(kPartRows) * kSpan);
    digits_.reserve(size_t(parts_) * kChunks * kTile);
    bounds_.reserve(round_up(num_rows, kLanes));
    if (!is_few_) turned_.reserve(size_t(kSpan) * head_dim);
    for (int row = 0; row < num_heads * num_rows; ++row) put_query(row, query + size_t(row) * head_dim / 2);
    shape_tiles();
  }
  static void end() { _tile_release(); }

  // Before the keys of a span. next: a part of it is fetched beside each product.
  void open(ChunkFetch& next) {
    next_ = &next;
    const int turns = 2 * kGroups * parts_ + kChunks * rows_ + kSpan / 4 * steps_;
    lines_ = (2 * kSpan * head_dim_ / 64 + turns - 1) / turns;
  }
  // A head's first chunk of the span, and the one behind its last.
  void begin_head(int head, int first_chunk, int end_chunk) {
    head_ = head;
    first_chunk_ = first_chunk;
    end_chunk_ = end_chunk;
  }

  void put_chunk(int chunk, const TileRows& keys, const TileRows& values, const float* key_scales,
                 const float* value_scales) {
    std::copy_n(key_scales, kChunk, key_scales_ + chunk * kChunk);
    std::copy_n(value_scales, kChunk, value_scales_ + chunk * kChunk);
    for (int i = 0; i < kChunkGroups; ++i) {
      const int group = chunk * kChunkGroups + i;
      keys_[group] = tile_of(keys, i, staged_.data() + size_t(group) * kKeys * head_dim_);
      values_[group] = tile_of(values, i, staged_.data() + size_t(kGroups + group) * kKeys * head_dim_);
    }
    if (!is_few_)
      for (int i = 0; i < kChunkGroups; ++i) turn_keys(chunk * kChunkGroups + i);
  }

  // sees(row of the head): the keys that it sees.
  template <class Sees>
  void weigh(const Weighing& weighing, const Sums& sums, Sees&& sees) {
    for (int part = 0; part < parts_; ++part) {
      if (is_few_)
        score_few(part);
      else
        score_many(part);
      weigh_part(part, weighing, sums, sees);
    }
  }

  // sums.out of the head's rows = their weighted values
  void add_values(const Sums& sums) {
    for (int step = 0; step < steps_; ++step)
      for (int part = 0; part < parts_; ++part) {
        zero_tiles();
        for (int chunk = first_chunk_; chunk < end_chunk_; ++chunk) {
          int8_t* quads = quads_.data() + size_t(chunk) * 4 * kTile;
          if (part == 0) put_quads(chunk, step, quads);
          asm volatile("" ::: "memory");
          multiply<false>(digits_.data() + (size_t(part) * kChunks + chunk) * kTile, quads);
        }
        put_sums(part, step, sums);
      }
  }

 private:
  int rows_of(int part) const { return std::min(part_rows_, rows_ - part * part_rows_); }

  // Tile 0 has scores, 1 queries: columns are rows of a part; 2 digits of rows, 3 keys or values, 4 to 7 sums.
  void shape_tiles() const {
    amx::Shapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.rows[tile] = uint8_t(tile == 2 || tile >= 4 ? 2 * part_rows_ : kKeys);
      shapes.row_bytes[tile] = uint16_t(tile <= 1 ? 8 * columns_ : kLine);
    }
    amx::load_shapes(shapes);
  }

  uint8_t* query_of(int head, int part, int step) {
    return query_.data() + ((size_t(head) * parts_ + part) * steps_ + step) * kTile;
  }

  // Digits of a query: columns of words, or lines of bytes.
  void put_query(int row, const uint32_t* query) {
    const int head = row / rows_, part = row % rows_ / part_rows_, place = row % rows_ % part_rows_;
    const auto* numbers = reinterpret_cast<const uint16_t*>(query);
    const QueryScale scale(numbers, head_dim_);
    units_[row] = scale.unit;
    for (int dim = 0; dim < head_dim_; dim += kLanes) {
      Bytes digits[2];
      split_query(widen(numbers + dim) * scale.factor, digits);
      uint8_t* to = query_of(head, part, dim / kLine);
      for (int digit = 0; digit < 2; ++digit)
        if (is_few_)
          for (int i = 0; i < kLanes / 4; ++i)
            std::memcpy(to + ((dim % kLine / 4 + i) * 2 * columns_ + digit * columns_ + place) * 4,
                        reinterpret_cast<const uint8_t*>(&digits[digit]) + 4 * i, 4);
        else
          store(to + (digit * part_rows_ + place) * kLine + dim % kLine, digits[digit]);
    }
  }

  const uint8_t* tile_of(const TileRows& from, int group, uint8_t* staged) const {
    if (from.rows == nullptr) return from.tiles[group];
    for (int i = 0; i < kKeys; ++i)
      std::memcpy(staged + size_t(i) * head_dim_, from.rows[group * kKeys + i], head_dim_);
    return staged;
  }

  // [chunk][step][group of the chunk][words][keys]
  void turn_keys(int group) {
    for (int step = 0; step < steps_; ++step) {
      const uint32_t* rows[kKeys];
      for (int i = 0; i < kKeys; ++i)
        rows[i] = reinterpret_cast<const uint32_t*>(keys_[group] + size_t(i) * head_dim_ + step * kLine);
      uint8_t* to = turned_.data() + ((size_t(group / kChunkGroups) * steps_ + step) * kChunkGroups +
                                      group % kChunkGroups) * kTile;
      transpose_words(rows, [&](int word, Words columns) { store(to + word * kLine, columns); });
    }
  }

  static void zero_tiles() {
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
  }
  // Four tiles of sums += digits of rows . four tiles of bytes
  template <bool kIsSigned>
  static void multiply(const void* digits, const void* bytes) {
    const char* from = static_cast<const char*>(bytes);
    _tile_loadd(2, digits, kLine);
    _tile_loadd(3, from, kLine);
    if constexpr (kIsSigned) _tile_dpbssd(4, 2, 3);
    else _tile_dpbusd(4, 2, 3);
    _tile_loadd(3, from + kTile, kLine);
    if constexpr (kIsSigned) _tile_dpbssd(5, 2, 3);
    else _tile_dpbusd(5, 2, 3);
    _tile_loadd(3, from + 2 * kTile, kLine);
    if constexpr (kIsSigned) _tile_dpbssd(6, 2, 3);
    else _tile_dpbusd(6, 2, 3);
    _tile_loadd(3, from + 3 * kTile, kLine);
    if constexpr (kIsSigned) _tile_dpbssd(7, 2, 3);
    else _tile_dpbusd(7, 2, 3);
  }
  void store_tiles() {
    _tile_stored(4, stored_[0], kLine);
    _tile_stored(5, stored_[1], kLine);
    _tile_stored(6, stored_[2], kLine);
    _tile_stored(7, stored_[3], kLine);
    asm volatile("" ::: "memory");
  }

  // The scores of a part [rows][kSpan], times the keys' scales, in units of the row.
  void score_few(int part) {
    const size_t apart = 8 * size_t(columns_), stride = head_dim_;
    asm volatile("" ::: "memory");
    if (steps_ == 1) _tile_loadd(1, query_of(head_, part, 0), apart);
    for (int chunk = first_chunk_; chunk < end_chunk_; ++chunk) {
      for (int i = 0; i < kChunkGroups; ++i) {
        const uint8_t* keys = keys_[chunk * kChunkGroups + i];
        _tile_zero(0);
        for (int step = 0; step < steps_; ++step) {
          if (steps_ > 1) _tile_loadd(1, query_of(head_, part, step), apart);
          _tile_loadd(3, keys + step * kLine, stride);
          _tile_dpbssd(0, 3, 1);
        }
        _tile_stored(0, stored_[i], apart);
        next_->lines(lines_);
      }
      asm volatile("" ::: "memory");
      for (int i = 0; i < kChunkGroups; ++i) {
        const int key = (chunk * kChunkGroups + i) * kKeys;
        if (columns_ == kNarrow)
          put_narrow(stored_[i], rows_of(part), key);
        else
          put_wide(stored_[i], rows_of(part), key);
        next_->lines(lines_);
      }
    }
  }

  void put_scores(int row, int key, __m512i whole) {
    store(scores_.data() + size_t(row) * kSpan + key,
          (Floats)_mm512_cvtepi32_ps(whole) * load<Floats>(key_scales_ + key));
  }

  // from: [keys][columns of upper digits, of lower ones]
  void put_narrow(const int32_t* from, int rows, int key) {
    const __m512i order = _mm512_set_epi32(29, 25, 21, 17, 13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i behind = _mm512_add_epi32(order, _mm512_set1_epi32(2));
    __m512i x[4];  // [4 keys][4 rows]
    for (int i = 0; i < 4; ++i) {
      const __m512i a = _mm512_load_si512(from + 2 * i * kLanes), b = _mm512_load_si512(from + (2 * i + 1) * kLanes);
      x[i] = join_scores(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
    }
    for (int row = 0; row < rows; row += 2) {
      const __m512i own = row == 0 ? order : behind;
      const __m512i lower = _mm512_permutex2var_epi32(x[0], own, x[1]);
      const __m512i upper = _mm512_permutex2var_epi32(x[2], own, x[3]);
      put_scores(row, key, _mm512_shuffle_i32x4(lower, upper, 0x44));
      if (row + 1 < rows) put_scores(row + 1, key, _mm512_shuffle_i32x4(lower, upper, 0xee));
    }
  }
  void put_wide(const int32_t* from, int rows, int key) {
    const uint32_t* keys[kKeys];
    for (int i = 0; i < kKeys; ++i) keys[i] = reinterpret_cast<const uint32_t*>(from) + i * kLanes;
    __m512i columns[kKeys];
    transpose_words(keys, [&](int i, Words column) { columns[i] = (__m512i)column; });
    for (int row = 0; row < rows; ++row) put_scores(row, key, join_scores(columns[row], columns[kPartRows + row]));
  }

  void score_many(int part) {
    for (int chunk = first_chunk_; chunk < end_chunk_; ++chunk) {
      asm volatile("" ::: "memory");
      zero_tiles();
      for (int step = 0; step < steps_; ++step)
        multiply<true>(query_of(head_, part, step),
                       turned_.data() + (size_t(chunk) * steps_ + step) * kChunkGroups * kTile);
      store_tiles();
      for (int row = 0; row < rows_of(part); ++row)
        for (int i = 0; i < kChunkGroups; ++i)
          put_scores(row, chunk * kChunk + i * kKeys,
                     join_scores(_mm512_load_si512(stored_[i] + row * kLanes),
                                 _mm512_load_si512(stored_[i] + (part_rows_ + row) * kLanes)));
      next_->lines(lines_);
    }
  }

  // One step for all rows comes before the next one: what a row waits for, others fill.
  template <class Sees>
  void weigh_part(int part, const Weighing& weighing, const Sums& sums, Sees&& sees) {
    const int rows = rows_of(part), first = part * part_rows_, begin = first_chunk_ * kChunk, end = end_chunk_ * kChunk;
    float units[kPartRows], own[kPartRows];
    Floats largest[kPartRows];
    for (int row = 0; row < rows; ++row) {
      units[row] = units_[head_ * rows_ + first + row];
      largest[row] = prepare(weighing, scores_.data() + size_t(row) * kSpan, units[row], sees(first + row));
    }
    for (int row = 0; row < rows; ++row) {
      own[row] = max_lane(largest[row]);
      sums.largest[head_ * rows_ + first + row] = std::max(own[row] * units[row], kMasked);
    }
    for (int row = 0; row < rows; ++row) {
      float* scores = scores_.data() + size_t(row) * kSpan;
      const Floats steps = splat(units[row] * weighing.steps), most = own[row] * steps;
      Floats total{}, products{};
      for (int key = begin; key < end; key += kLanes) {
        if (key % kChunk == 0) next_->lines(lines_);
        const Floats weight = exp2_to_round(load<Floats>(scores + key) * steps - most);
        const Floats product = weight * load<Floats>(value_scales_ + key);
        total += weight;
        products = max(products, product);
        store(scores + key, product);
      }
      sums.total[head_ * rows_ + first + row] = total;
      largest[row] = products;
    }
    for (int row = 0; row < rows; ++row) own[row] = max_lane(largest[row]);
    for (int row = 0; row < rows; ++row) {
      const bool is_some = own[row] > kLeastNumber;
      bounds_[first + row] = is_some ? own[row] * (1.0f / kLargestWeight) : 0.0f;
      put_digits(part, row, splat(is_some ? kLargestWeight / own[row] : 0.0f));
    }
  }

  // Makes a row's scores what the softmax takes, and returns the largest one of each lane.
  Floats prepare(const Weighing& weighing, float* scores, float& unit, Sight seen) const {
    const bool is_capped = weighing.cap != 0.0f;
    const float inner = is_capped ? unit * weighing.scale / weighing.cap : 0.0f;
    if (is_capped) unit = 1.0f;
    Floats largest = splat(kMasked);
    for (int key = first_chunk_ * kChunk; key < end_chunk_ * kChunk; key += kLanes) {
      Floats x = load<Floats>(scores + key);
      const bool is_partial = key < seen.first || key + kLanes - 1 > seen.last;
      if (is_capped) x = weighing.cap * tanh(x * inner);
      if (is_partial) x = hide(x, key, seen);
      if (is_capped || is_partial) store(scores + key, x);
      largest = max(largest, x);
    }
    return largest;
  }

  void put_digits(int part, int row, Floats factor) {
    for (int chunk = first_chunk_; chunk < end_chunk_; ++chunk) {
      const float* from = scores_.data() + size_t(row) * kSpan + chunk * kChunk;
      uint8_t* to = digits_.data() + (size_t(part) * kChunks + chunk) * kTile + row * kLine;
      split_weights(from, factor, to, to + part_rows_ * kLine);
    }
  }

  // to: [4 tiles][quads of tokens][16 dims][4 tokens]
  void put_quads(int chunk, int step, int8_t* to) const {
    for (int quad = 0; quad < kKeys; ++quad, to += kLine) {
      const uint8_t* from = values_[chunk * kChunkGroups + quad % 4] + size_t(quad / 4 * 4) * head_dim_ + step * kLine;
      interleave(from, head_dim_, to, kTile);
      next_->lines(lines_);
    }
  }

  void put_sums(int part, int step, const Sums& sums) {
    store_tiles();
    for (int row = 0; row < rows_of(part); ++row) {
      const int place = part * part_rows_ + row;
      const Floats bound = splat(bounds_[place]);
      __m512i x[4];
      for (int j = 0; j < 4; ++j)
        x[j] = join_values(_mm512_load_si512(stored_[j] + row * kLanes),
                           _mm512_load_si512(stored_[j] + (part_rows_ + row) * kLanes));
      order_dims(x);
      Floats* lower = sums.out_row(2 * step, head_ * rows_ + place);
      Floats* upper = sums.out_row(2 * step + 1, head_ * rows_ + place);
      for (int i = 0; i < 2; ++i) {
        lower[i] = (Floats)_mm512_cvtepi32_ps(x[i]) * bound;
        upper[i] = (Floats)_mm512_cvtepi32_ps(x[2 + i]) * bound;
      }
    }
  }

  int head_dim_ = 0;
  int steps_ = 0;      // lines of a head
  int rows_ = 0;       // of a head
  int parts_ = 0;      // of its rows
  int part_rows_ = 0;
  int columns_ = 0;    // for a digit of a part's rows
  bool is_few_ = false;  // keys lie as they are, else they are turned
  int head_ = 0;
  int first_chunk_ = 0;
  int end_chunk_ = 0;
  const uint8_t* keys_[kGroups];    // tiles, rows head_dim_ bytes apart
  const uint8_t* values_[kGroups];
  alignas(64) float key_scales_[kSpan];
  alignas(64) float value_scales_[kSpan];
  alignas(64) int32_t stored_[4][kKeys * kLanes];  // tiles of sums
  Buffer<uint8_t> query_;   // [heads][parts][steps] tiles
  Buffer<float> units_;     // [rows of all heads]: what an integer score is multiplied with
  Buffer<uint8_t> staged_;  // keys and values that do not lie as tiles
  Buffer<uint8_t> turned_;  // keys for many rows
  Buffer<int8_t> quads_;    // values of some dims [chunks][4 tiles]
  Buffer<float> scores_;    // [rows of a part][kSpan], then weights
  Buffer<uint8_t> digits_;  // of weights [parts][chunks] tiles: upper ones, lower ones
  Buffer<float> bounds_;    // [rows]: what an integer sum of values is multiplied with
  ChunkFetch* next_ = nullptr;
  int lines_ = 0;  // that are fetched at a time
};

#endif

}  // namespace baton
