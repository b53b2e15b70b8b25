// Many rows times a panel whose words have several parts: what they all read is made wider once.
#pragma once

#include <algorithm>
#include <type_traits>

#include "products/operands.h"

namespace baton {

// Words of a panel that are made wider at a time: they and the rows stay in the first-level cache.
constexpr int kWideWords = 32;

// Writes the parts of words, one after the other.
template <class Dot>
inline void widen_panel(uint32_t* to, const uint32_t* panel, int words) {
  for (int w = 0; w < words; ++w, panel += kPanel)
    for (int part = 0; part < Dot::kParts; ++part, to += kPanel)
      for (int v = 0; v < kPanel; v += kLanes)
        store(to + v, Dot::column_part(load<Words>(panel + v), part));
}

// The tile of wide words. Products of integers need a register before they are added: with half a panel, two
// vectors of it are held, and a row.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kHalfRows = 6, kHalfVectors = 2;
#else
constexpr int kHalfRows = kTileRows, kHalfVectors = kPanelVectors;
#endif

// multiply_panel for elements without an instruction for them.
template <class Dot>
void multiply_wide(const Rows& rows, int first, int count, const uint32_t* panel, int words,
                   typename Dot::Accumulator* sums) {
  using Wide = typename Dot::Wide;
  constexpr bool kIsFloat = std::is_same_v<Wide, Float32Dot>;
  constexpr int kRows = kIsFloat ? kTileRows : kHalfRows;
  constexpr int kVectors = kIsFloat ? kPanelVectors : kHalfVectors;
  constexpr int kParts = Dot::kParts, kStride = kParts * kWideWords;
  constexpr bool kRowsAreWide = Dot::kRowWords == kParts;
  alignas(64) uint32_t wide_panel[kStride * kPanel];
  alignas(64) uint32_t wide_rows[kRowsAreWide ? 1 : kTaskRows * kStride];
  for (int word = 0; word < words; word += kWideWords) {
    const int piece = std::min(kWideWords, words - word);
    widen_panel<Dot>(wide_panel, panel + size_t(word) * kPanel, piece);
    const uint32_t* own = rows.words + size_t(first) * rows.stride + word * Dot::kRowWords;
    for (int r = 0; !kRowsAreWide && r < count; ++r)
      widen_row(reinterpret_cast<float*>(wide_rows + r * kStride),
                reinterpret_cast<const uint16_t*>(own + r * rows.stride), 2 * piece);
    const uint32_t* parts = kRowsAreWide ? own : wide_rows;
    const size_t stride = kRowsAreWide ? rows.stride : kStride;
    const uint32_t* ahead = panel + size_t(word + kWideWords) * kPanel;
    for (int v = 0; v < kPanelVectors; v += kVectors)
      for_row_groups<kRows>(count, [&](int row, int n) {
        auto multiply = [&]<int kAhead>() {
          multiply_rows<Wide, kAhead, kRows, kVectors>(n, parts + row * stride, stride, wide_panel + v * kLanes,
                                                       kParts * piece, sums + row * kPanelVectors + v,
                                                       word == 0, ahead);
        };
        if (v == 0 && row == 0)
          multiply.template operator()<1>();
        else
          multiply.template operator()<0>();
      });
  }
}

}  // namespace baton
