// Rows times a panel by the processor's matrix unit: tiles of 16 rows of 64 bytes (Intel's AMX).
//
// A word of a row and a line of the panel have the order that tiles want, so nothing is packed for them. Sums
// of integers are exact: they equal those of vectors. Sums of bfloat16 are in another order than those of
// vectors, but for any number of rows in the same one, so all products go one way.
#pragma once

#include <algorithm>
#include <type_traits>

#include "vectors/rows.h"

namespace baton {

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__)
#define BATON_HAS_AMX 1

// Whether the kernel lets this process use tiles. It is asked once.
bool may_use_amx();

// From so many rows on tiles are the faster way for integers, with whose sums vectors agree.
constexpr int kLeastAmxRows = 12;
// Panels that one task of many rows takes: its rows come from a cache further away, and tiles outrun it.
constexpr int kMostPanels = 8;

namespace amx {

constexpr int kRows = 16;   // of a tile
constexpr int kWords = 16;  // of a row of a tile: 64 bytes
// Words that are fetched ahead of those that a step takes.
constexpr int kAheadWords = 2 * kWords;
// Words of a panel that all rows go through before the next ones: they stay in the first-level cache.
constexpr int kPieceWords = 12 * kWords;

struct alignas(64) Shapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The compiler's function says that it reads 8 bytes of them: what the others are written with could be left out.
inline void load_shapes(const Shapes& shapes) {
  asm volatile("" : : "m"(shapes));
  _tile_loadconfig(&shapes);
}

// Tiles 0 and 1 have the sums of the upper rows, 2 and 3 those of the lower ones; 4 and 5 have `words` of these
// rows, 6 and 7 as many of both halves of the panel.
inline void shape_tiles(int upper, int lower, int words = kWords) {
  const int rows[8] = {upper, upper, lower, lower, upper, lower, words, words};
  Shapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    const bool has_rows = tile == 4 || tile == 5;
    shapes.rows[tile] = uint8_t(rows[tile]);
    shapes.row_bytes[tile] = rows[tile] ? 4 * (has_rows ? words : kHalfPanel) : 0;
  }
  load_shapes(shapes);
}

// Columns of a panel, or of half of one.
template <bool kHasRight>
constexpr int kColumns = kHasRight ? kPanel : kHalfPanel;

// The sums in tiles 0 to 3 begin with zeros, or go on with [rows][kPanel] of the upper and of the lower rows.
template <bool kHasLower, bool kHasRight = true>
inline void begin_sums(bool is_first, const void* upper, const void* lower) {
  constexpr int kHalf = 4 * kHalfPanel, kApart = 4 * kPanel;
  const char *own = static_cast<const char*>(upper), *below = static_cast<const char*>(lower);
  if (is_first) {
    _tile_zero(0);
    if constexpr (kHasRight) _tile_zero(1);
    if constexpr (kHasLower) _tile_zero(2);
    if constexpr (kHasLower && kHasRight) _tile_zero(3);
    return;
  }
  _tile_loadd(0, own, kApart);
  if constexpr (kHasRight) _tile_loadd(1, own + kHalf, kApart);
  if constexpr (kHasLower) _tile_loadd(2, below, kApart);
  if constexpr (kHasLower && kHasRight) _tile_loadd(3, below + kHalf, kApart);
}

template <bool kHasLower, bool kHasRight = true>
inline void store_sums(void* upper, void* lower) {
  constexpr int kHalf = 4 * kHalfPanel, kApart = 4 * kPanel;
  char *own = static_cast<char*>(upper), *below = static_cast<char*>(lower);
  _tile_stored(0, own, kApart);
  if constexpr (kHasRight) _tile_stored(1, own + kHalf, kApart);
  if constexpr (kHasLower) _tile_stored(2, below, kApart);
  if constexpr (kHasLower && kHasRight) _tile_stored(3, below + kHalf, kApart);
}

// Adds the products of the words that tiles have. The compiler knows of no memory that tiles read: all was
// written before. The numbers of tiles are part of an instruction's name, so they stand here as such.
template <class Dot, bool kHasLower, bool kHasRight = true>
inline void add_step(const uint32_t* upper, const uint32_t* lower, size_t stride, const uint32_t* panel) {
  constexpr bool kIsInt8 = std::is_same_v<Dot, Int8Dot>;
  constexpr int kApart = 4 * kColumns<kHasRight>;
  _tile_loadd(6, panel, kApart);
  if constexpr (kHasRight) _tile_loadd(7, panel + kHalfPanel, kApart);
  _tile_loadd(4, upper, 4 * stride);
  if constexpr (kIsInt8) _tile_dpbusd(0, 4, 6);
  if constexpr (kIsInt8 && kHasRight) _tile_dpbusd(1, 4, 7);
  if constexpr (!kIsInt8) _tile_dpbf16ps(0, 4, 6);
  if constexpr (!kIsInt8 && kHasRight) _tile_dpbf16ps(1, 4, 7);
  if constexpr (kHasLower) {
    _tile_loadd(5, lower, 4 * stride);
    if constexpr (kIsInt8) _tile_dpbusd(2, 5, 6);
    if constexpr (kIsInt8 && kHasRight) _tile_dpbusd(3, 5, 7);
    if constexpr (!kIsInt8) _tile_dpbf16ps(2, 5, 6);
    if constexpr (!kIsInt8 && kHasRight) _tile_dpbf16ps(3, 5, 7);
  }
}

// The same for the last words, fewer than kWords.
template <class Dot, bool kHasLower, bool kHasRight = true>
inline void add_end(const uint32_t* rows, size_t stride, int upper, int lower, const uint32_t* panel, int words) {
  alignas(64) uint32_t own[2 * kRows][kWords] = {};
  alignas(64) uint32_t end[kWords * kColumns<kHasRight>] = {};
  for (int r = 0; r < upper + lower; ++r) std::copy_n(rows + r * stride, words, own[r]);
  std::copy_n(panel, words * kColumns<kHasRight>, end);
  asm volatile("" ::: "memory");
  add_step<Dot, kHasLower, kHasRight>(own[0], own[upper], kWords, end);
}

// sums: [upper + lower][kPanel] of rows that are `stride` words apart; they are continued unless `is_first`.
// step: words that tiles have, kWords if there are more words. The panel, and of the sums what is used, may be half.
template <class Dot, bool kHasLower, bool kHasRight = true>
inline void multiply_rows(const uint32_t* rows, size_t stride, int upper, int lower, const uint32_t* panel,
                          int words, bool fetches, bool is_first, typename Dot::Accumulator* sums,
                          int step = kWords) {
  constexpr int kWidth = kColumns<kHasRight>;
  auto* lower_sums = sums + upper * kPanelVectors;
  begin_sums<kHasLower, kHasRight>(is_first, sums, lower_sums);
  const uint32_t* below = rows + upper * stride;
  int word = 0;
  for (; word + step <= words; word += step) {
    const uint32_t* here = panel + size_t(word) * kWidth;
    if (fetches)
      for (int line = 0; line < kWords * kWidth / kLineWords; ++line)
        prefetch(here + kAheadWords * kWidth + line * kLineWords);
    add_step<Dot, kHasLower, kHasRight>(rows + word, below + word, stride, here);
  }
  if (word < words)
    add_end<Dot, kHasLower, kHasRight>(rows + word, stride, upper, lower, panel + size_t(word) * kWidth,
                                       words - word);
  store_sums<kHasLower, kHasRight>(sums, lower_sums);
}

// The same; has_right: the panel is a whole one.
inline void multiply_bfloat16(const uint32_t* rows, size_t stride, int upper, int lower, const uint32_t* panel,
                              bool has_right, int words, bool fetches, bool is_first, Floats* sums,
                              int step = kWords) {
  auto multiply = [&]<bool kHasLower, bool kHasRight>() {
    multiply_rows<BFloat16Dot, kHasLower, kHasRight>(rows, stride, upper, lower, panel, words, fetches, is_first,
                                                     sums, step);
  };
  if (lower && has_right)
    multiply.template operator()<true, true>();
  else if (lower)
    multiply.template operator()<true, false>();
  else if (has_right)
    multiply.template operator()<false, true>();
  else
    multiply.template operator()<false, false>();
}

}  // namespace amx

// sums: [panel][count][kPanelVectors] of rows that are `stride` words apart against whole panels of `words`;
// they are continued unless `is_first`. Panels of sums are `apart` rows apart. fetches: panels come from memory.
template <class Dot>
void multiply_by_amx(const uint32_t* rows, size_t stride, int count, const uint32_t* panels, int num_panels,
                     int words, typename Dot::Accumulator* sums, int apart, bool is_first, bool fetches) {
  const int piece = count > 2 * amx::kRows ? amx::kPieceWords : words;
  for (int word = 0; word < words; word += piece) {
    int shaped = 0;
    for (int row = 0; row < count; row += 2 * amx::kRows) {
      const int upper = std::min(amx::kRows, count - row), lower = std::min(amx::kRows, count - row - upper);
      if (upper + lower != shaped) amx::shape_tiles(upper, lower);
      shaped = upper + lower;
      for (int panel = 0; panel < num_panels; ++panel) {
        auto multiply = [&]<bool kHasLower>() {
          amx::multiply_rows<Dot, kHasLower>(rows + row * stride + word, stride, upper, lower,
                                             panels + (size_t(panel) * words + word) * kPanel,
                                             std::min(piece, words - word), fetches && row == 0,
                                             is_first && word == 0,
                                             sums + (size_t(panel) * apart + row) * kPanelVectors);
        };
        if (lower)
          multiply.template operator()<true>();
        else
          multiply.template operator()<false>();
      }
    }
  }
  _tile_release();
}
#else
constexpr int kMostPanels = 1;
#endif

}  // namespace baton
