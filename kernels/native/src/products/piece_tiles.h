// Many rows of bytes in pieces times codes, by the processor's matrix unit.
//
// A tile has sums of one unit: of 16 rows with half a panel. They are integers, so they equal those of vectors.
// Vectors scale them and add them up, in the order in which they do so for few rows: the bits are the same.
#pragma once

#include "products/operands.h"
#include "vectors/amx.h"

namespace baton {

#if defined(BATON_HAS_AMX)
// From so many rows on tiles are the faster way.
constexpr int kLeastPieceRows = 12;

inline bool has_piece_tiles(const Matrix& matrix) { return matrix.groups.fits_bytes && may_use_amx(); }

// sums: [count][kPanelVectors] of the rows from `first` on against the whole panel.
void multiply_pieces_by_amx(const Rows& rows, int first, int count, const Matrix& matrix, int panel, Floats* sums);
#endif

}  // namespace baton
