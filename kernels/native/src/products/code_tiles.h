// Rows of bfloat16 times stored codes, by the processor's matrix unit.
//
// A weight becomes the bfloat16 number nearest to it, and takes part in sums as one of a dense matrix does: results
// have the same bits. Few rows meet a piece of a panel in the first-level cache. Of many rows a task takes all, so
// that its panels are written once.
#pragma once

#include <type_traits>

#include "products/codes.h"
#include "vectors/amx.h"

namespace baton {

// Whether rows of elements meet such a matrix so.
template <class Element>
inline bool has_code_tiles([[maybe_unused]] const Matrix& matrix) {
#if defined(BATON_HAS_AMX)
  return std::is_same_v<Element, uint16_t> && is_coded(matrix.kind) && !matrix.groups.rounds_rows && may_use_amx();
#else
  return false;
#endif
}

// Words of bfloat16 that a panel of such a matrix becomes.
inline int code_tile_words(const Matrix& matrix) { return matrix.words * elements_per_word(matrix.kind) / 2; }

// Panels that a task of many rows writes: the second-level cache has room for rows beside them.
inline int most_code_panels(const Matrix& matrix) {
  constexpr int kBytes = 1 << 20;
  return std::clamp(kBytes / (code_tile_words(matrix) * kPanel * int(sizeof(uint32_t))), 1, kMostPanels);
}

#if defined(BATON_HAS_AMX)
// sums: [count][kPanelVectors] of rows that are `stride` words apart against the whole panel.
void multiply_codes_by_amx(const uint32_t* rows, size_t stride, int count, const Matrix& matrix, int panel,
                           Floats* sums);

// The same for several panels and a block of many rows: [panel][count][kPanelVectors]. A thread takes the blocks of
// its panels one after the other: it writes these panels for the first block.
void multiply_block_by_amx(const uint32_t* rows, size_t stride, int count, const Matrix& matrix, int panel,
                           int num_panels, bool is_first_block, Floats* sums);
#endif

}  // namespace baton
