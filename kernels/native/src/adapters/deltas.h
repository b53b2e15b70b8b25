// Products of low rank that adapters add to those of matrices, for ranges of rows.
//
// First all of a @ x is computed, in float32, for every row that has an adapter. Then the sums of a panel,
// whatever they were made of, go on with b as further words of the inner dimension. A row's result has the same
// bits whatever is beside it.
//
// Where the processor has tiles, numbers of bfloat16 are multiplied by them, or to the same bits by vectors. Then
// x, and a @ x times its scale, are bfloat16, too.
#pragma once

#include <algorithm>
#include <vector>

#include "adapters/adapters.h"
#include "products/multiply.h"
#include "threads/pool.h"
#include "vectors/rows.h"
#include "vectors/tile.h"

namespace baton {

// dots[row][rank] = x[row] . a[rank], in lanes whose order is that of the inner dimension.
template <class From, class Element, int kRows, int kRanks>
inline void shrink_tile(const From* const* x, const Element* a, size_t stride, int inner,
                        float (&dots)[kRows][kRanks]) {
  Floats acc[kRows][kRanks] = {};
  auto step = [&](int i, auto&& row) {
    Floats held[kRows];
    for (int r = 0; r < kRows; ++r) held[r] = row(r);
    for (int k = 0; k < kRanks; ++k) {
      const Floats now = widen(a + k * stride + i);
      for (int r = 0; r < kRows; ++r) acc[r][k] += held[r] * now;
    }
  };
  int i = 0;
  for (; i + kLanes <= inner; i += kLanes) step(i, [&](int r) { return widen(x[r] + i); });
  if (i < inner) step(i, [&](int r) { return widen_some(x[r] + i, inner - i); });
  for (int r = 0; r < kRows; ++r)
    for (int k = 0; k < kRanks; ++k) dots[r][k] = sum(acc[r][k]);
}

// sums[row][column] += low[row][rank] * b[rank][column]. sums: kPanel apart.
template <class Element, int kRows, int kVectors>
inline void expand_tile(const float* low, size_t stride, const Element* b, int ranks, Floats* sums) {
  Floats acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) acc[r][v] = sums[r * kPanelVectors + v];
  for (int k = 0; k < ranks; ++k, b += kVectors * kLanes) {
    Floats held[kRows];
    for (int r = 0; r < kRows; ++r) held[r] = splat(low[r * stride + k]);
    for (int v = 0; v < kVectors; ++v) {
      const Floats now = widen(b + v * kLanes);
      for (int r = 0; r < kRows; ++r) acc[r][v] += held[r] * now;
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r * kPanelVectors + v] = acc[r][v];
}

// The same for any number of rows up to kTileRows.
template <class Element, int kVectors, int kRows = kTileRows>
inline void expand_rows(int num_rows, const float* low, size_t stride, const Element* b, int ranks,
                        Floats* sums) {
  if (num_rows == kRows)
    expand_tile<Element, kRows, kVectors>(low, stride, b, ranks, sums);
  else if constexpr (kRows > 1)
    expand_rows<Element, kVectors, kRows - 1>(num_rows, low, stride, b, ranks, sums);
}

#if defined(BATON_HAS_AMX)
// While it is there, numbers under the normal ones are zeros, as for tiles.
class WithoutDenormals {
 public:
  WithoutDenormals() : before_(_mm_getcsr()) { set(before_ | kFlushToZero | kDenormalsAreZero); }
  ~WithoutDenormals() { set(before_); }

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;

  // The compiler does not move what is read and written across it.
  static void set(unsigned to) {
    asm volatile("" ::: "memory");
    _mm_setcsr(to);
    asm volatile("" ::: "memory");
  }

  unsigned before_;
};

// sums[row][column] += low[row][rank] * b[rank][column], to the bit as tiles of `step` words do: the products of
// even and of odd ranks are added up apart, each as one step of a fused sum. b: [word][column].
template <int kRows, int kVectors>
inline void expand_words(const float* low, size_t stride, const uint32_t* b, int words, int step, Floats* sums) {
  for (int start = 0; start < words; start += step) {
    __m512 even[kRows][kVectors] = {}, odd[kRows][kVectors] = {};
    for (int word = start; word < std::min(start + step, words); ++word)
      for (int v = 0; v < kVectors; ++v) {
        const Words now = load<Words>(b + (size_t(word) * kVectors + v) * kLanes);
        const __m512 first = (__m512)(now << 16), second = (__m512)(now & 0xffff0000u);
        for (int r = 0; r < kRows; ++r) {
          const float* own = low + r * stride + 2 * word;
          even[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(own[0]), first, even[r][v]);
          odd[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(own[1]), second, odd[r][v]);
        }
      }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r * kPanelVectors + v] += (Floats)even[r][v] + (Floats)odd[r][v];
  }
}

// The same for any number of rows up to kRows.
template <int kVectors, int kRows>
inline void expand_word_rows(int num_rows, const float* low, size_t stride, const uint32_t* b, int words, int step,
                       Floats* sums) {
  if (num_rows == kRows)
    expand_words<kRows, kVectors>(low, stride, b, words, step, sums);
  else if constexpr (kRows > 1)
    expand_word_rows<kVectors, kRows - 1>(num_rows, low, stride, b, words, step, sums);
}
#endif

// What the adapters of a step add to one product. Memory is kept from product to product.
template <class Element>
class Deltas final : public Added {
 public:
  // Computes what b is multiplied with, for the rows of a product with a matrix, and returns whether
  // adapters change it. from.row(index): a row before it took the matrix's form; operands: in this form.
  template <class Source>
  bool plan(Pool& pool, const std::vector<AdapterRows>& segments, const Matrix& matrix, Source& from,
            const Rows& operands) {
    segments_.clear();
    int ranks = 0;
    for (const AdapterRows& each : segments) {
      const Delta* delta = each.adapter->find(&matrix);
      if (delta == nullptr) continue;
      segments_.push_back({each.first, each.end, delta, each.adapter->template numbers<Element>()});
      ranks = std::max(ranks, delta->num_ranks);
    }
    if (segments_.empty()) return false;
    stride_ = round_up(ranks, kLanes);
    low_.reserve(segments_.back().end * stride_);
    if (segments_[0].delta->by_tiles)
      shrink_by_tiles(pool, takes_elements(matrix) ? operands : elements_of(pool, from, matrix.inner));
    else
      shrink(pool, from);
    return true;
  }

  void prefetch_panel(int first, int count, int panel) const override {
    each_segment(first, count, [&](const Segment& own, int, int) {
      each_block(*own.delta, panel, [&](const Delta::Block& block) {
        const char* begin = reinterpret_cast<const char*>(own.numbers + block.begin);
        const int size = block.num_ranks * block.num_vectors * kLanes * int(sizeof(Element));
        for (int at = 0; at < size; at += 64) prefetch(begin + at);
        asm volatile("");  // a call that only fetches would be left out
      });
    });
  }

  void add(int first, int count, int panel, int num_panels, Floats* sums) const override {
    if (segments_[0].delta->by_tiles) {
      expand_by_tiles(first, count, panel, num_panels, sums);
      return;
    }
    each_segment(first, count, [&](const Segment& own, int row, int end) {
      for (int p = 0; p < num_panels; ++p)
        each_block(*own.delta, panel + p, [&](const Delta::Block& block) {
          for_row_groups(end - row, [&](int start, int rows) {
            expand(own, block, row + start, rows,
                   sums + (size_t(p) * count + row + start - first) * kPanelVectors + block.first_vector);
          });
        });
    });
  }

 private:
  static constexpr int kShrinkRows = 2, kShrinkRanks = 4;
  // Ranks and rows of a task.
  static constexpr int kTaskRanks = 8, kRowsOfTask = 16;

  struct Segment {
    int first;
    int end;
    const Delta* delta;
    const Element* numbers;
  };
  struct Task {
    const Segment* segment;
    int row;
    int rank;
  };

  template <class Source>
  void shrink(Pool& pool, Source& from) {
    tasks_.clear();
    for (const Segment& own : segments_)
      for (int row = own.first; row < own.end; row += kRowsOfTask)
        for (int rank = 0; rank < own.delta->num_ranks; rank += kTaskRanks)
          tasks_.push_back({&own, row, rank});
    pool.run(int(tasks_.size()), [&](int number, int) {
      const Task& task = tasks_[number];
      const Delta& delta = *task.segment->delta;
      const int end = std::min(task.segment->end, task.row + kRowsOfTask);
      const int last = std::min(delta.num_ranks, task.rank + kTaskRanks);
      for (int rank = task.rank; rank < last; rank += kShrinkRanks)
        for (int row = task.row; row < end; row += kShrinkRows)
          shrink_some(*task.segment, from, row, std::min(kShrinkRows, end - row), rank,
                      std::min(kShrinkRanks, last - rank));
    });
  }

  template <class Source>
  void shrink_some(const Segment& own, Source& from, int row, int rows, int rank, int ranks) {
    if (rows == kShrinkRows && ranks == kShrinkRanks) {
      shrink_as<kShrinkRows, kShrinkRanks>(own, from, row, rank);
      return;
    }
    for (int r = 0; r < rows; ++r) {
      if (ranks == kShrinkRanks)
        shrink_as<1, kShrinkRanks>(own, from, row + r, rank);
      else
        for (int k = 0; k < ranks; ++k) shrink_as<1, 1>(own, from, row + r, rank + k);
    }
  }

  template <int kRows, int kRanks, class Source>
  void shrink_as(const Segment& own, Source& from, int row, int rank) {
    using From = std::remove_pointer_t<decltype(from.row(row))>;
    const Delta& delta = *own.delta;
    const From* x[kRows];
    for (int r = 0; r < kRows; ++r) x[r] = from.row(row + r);
    float dots[kRows][kRanks];
    shrink_tile<From, Element, kRows, kRanks>(
        x, own.numbers + delta.a + size_t(rank) * delta.stride, delta.stride, delta.inner, dots);
    for (int r = 0; r < kRows; ++r)
      for (int k = 0; k < kRanks; ++k)
        low_[size_t(row + r) * stride_ + rank + k] = dots[r][k] * delta.scales[rank + k];
  }

  // Calls body(segment, row, end) for the rows among first.. that adapters change.
  template <class Body>
  void each_segment(int first, int count, Body&& body) const {
    auto own = std::partition_point(segments_.begin(), segments_.end(),
                                    [&](const Segment& each) { return each.end <= first; });
    for (; own != segments_.end() && own->first < first + count; ++own)
      body(*own, std::max(first, own->first), std::min(first + count, own->end));
  }

  template <class Body>
  static void each_block(const Delta& delta, int panel, Body&& body) {
    for (int i = delta.first_blocks[panel]; i < delta.first_blocks[panel + 1]; ++i) body(delta.blocks[i]);
  }

  void expand(const Segment& own, const Delta::Block& block, int row, int rows, Floats* sums) const {
    const float* low = low_.data() + size_t(row) * stride_ + block.first_rank;
    const Element* b = own.numbers + block.begin;
    if (block.num_vectors == kPanelVectors)
      expand_rows<Element, kPanelVectors>(rows, low, stride_, b, block.num_ranks, sums);
    else
      expand_rows<Element, kPanelVectors / 2>(rows, low, stride_, b, block.num_ranks, sums);
  }

#if defined(BATON_HAS_AMX)
  void shrink_by_tiles(Pool& pool, const Rows& rows) {
    narrow_low_.reserve(segments_.back().end * stride_);
    tasks_.clear();
    for (const Segment& own : segments_)
      for (int row = own.first; row < own.end; row += kRowsOfTiles)
        for (int rank = 0; rank < own.delta->num_ranks; rank += kPanel) tasks_.push_back({&own, row, rank});
    pool.run(int(tasks_.size()), [&](int number, int) {
      const auto [segment, row, rank] = tasks_[number];
      const Delta& delta = *segment->delta;
      const TileRows own(segment->end - row);
      const int columns = delta.columns_of_a(rank);
      alignas(64) Floats sums[kRowsOfTiles * kPanelVectors];
      amx::shape_tiles(own.upper, own.lower);
      amx::multiply_bfloat16(rows.words + row * rows.stride, rows.stride, own.upper, own.lower,
                             words_of(*segment, delta.panel_of_a(rank)), columns == kPanel, delta.stride / 2,
                             row == segment->first, true, sums);
      _tile_release();
      for (int r = 0; r < own.count(); ++r)
        for (int v = 0; v < columns / kLanes; ++v) {
          const int at = rank + v * kLanes;
          uint16_t* to = narrow_low_.data() + (row + r) * stride_ + at;
          narrow(to, sums[r * kPanelVectors + v] * load<Floats>(delta.scales.data() + at));
          store(low_.data() + (row + r) * stride_ + at, widen(to));
        }
    });
  }

  // Few rows go through vectors, which have their sums without new shapes of tiles.
  void expand_by_tiles(int first, int count, int panel, int num_panels, Floats* sums) const {
    const WithoutDenormals without;
    TileRows shaped(0);
    int shaped_words = 0;
    each_segment(first, count, [&](const Segment& own, int row, int end) {
      for (; row < end; row += kRowsOfTiles) {
        const TileRows rows(end - row);
        for (int p = 0; p < num_panels; ++p)
          each_block(*own.delta, panel + p, [&](const Delta::Block& block) {
            Floats* to = sums + (size_t(p) * count + row - first) * kPanelVectors + block.first_vector;
            const int step = std::min(block.num_ranks / 2, amx::kWords);
            if (rows.count() <= kFewRows) {
              expand_few(own, block, row, rows.count(), step, to);
              return;
            }
            if (shaped != rows || step != shaped_words) amx::shape_tiles(rows.upper, rows.lower, step);
            shaped = rows;
            shaped_words = step;
            const uint16_t* low = narrow_low_.data() + row * stride_ + block.first_rank;
            amx::multiply_bfloat16(reinterpret_cast<const uint32_t*>(low), stride_ / 2, rows.upper, rows.lower,
                                   words_of(own, block.begin), block.num_vectors == kPanelVectors,
                                   block.num_ranks / 2, false, false, to, step);
          });
      }
    });
    if (shaped_words) _tile_release();
  }

  void expand_few(const Segment& own, const Delta::Block& block, int first, int count, int step, Floats* sums) const {
    for_row_groups<kFewAtOnce>(count, [&](int row, int rows) {
      const float* low = low_.data() + (first + row) * stride_ + block.first_rank;
      const uint32_t* b = words_of(own, block.begin);
      Floats* to = sums + row * kPanelVectors;
      if (block.num_vectors == kPanelVectors)
        expand_word_rows<kPanelVectors, kFewAtOnce>(rows, low, stride_, b, block.num_ranks / 2, step, to);
      else
        expand_word_rows<kPanelVectors / 2, kFewAtOnce>(rows, low, stride_, b, block.num_ranks / 2, step, to);
    });
  }

  static constexpr int kFewRows = 8, kFewAtOnce = 4;
  static constexpr int kRowsOfTiles = 2 * amx::kRows;
  // Up to kRowsOfTiles of some rows.
  struct TileRows {
    explicit TileRows(int count)
        : upper(std::min(amx::kRows, count)), lower(std::min(amx::kRows, count - upper)) {}
    bool operator==(const TileRows&) const = default;
    int count() const { return upper + lower; }

    int upper;
    int lower;
  };

  static const uint32_t* words_of(const Segment& own, size_t place) {
    return reinterpret_cast<const uint32_t*>(own.numbers + place);
  }
#else
  // No adapter asks for them.
  void shrink_by_tiles(Pool&, const Rows&) {}
  void expand_by_tiles(int, int, int, int, Floats*) const {}
#endif

  template <class Source>
  Rows elements_of(Pool& pool, Source& from, int inner) {
    const int rows = segments_.back().end;
    elements_.reserve(rows, inner * int(sizeof(Element)));
    run_rows(pool, rows, [&](int row, int) { elements_.put_elements(row, from.row(row), inner); });
    return elements_.some(0, rows);
  }

  std::vector<Segment> segments_;
  std::vector<Task> tasks_;
  Buffer<float> low_;
  Buffer<uint16_t> narrow_low_;  // the same, for tiles
  Operands<Element> elements_;   // for tiles, of rows that have another form
  size_t stride_ = 0;
};

}  // namespace baton
