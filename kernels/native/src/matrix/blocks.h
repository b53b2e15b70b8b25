// Rows of llama.cpp's blocks, packed from a file's bytes.
#pragma once

#include "matrix/block_rows.h"
#include "matrix/matrix.h"

namespace baton {

// Blocks whose numbers are integers, with a scale for each group and for some a minimum.
enum class BlockType : int {
  kQ4_0 = 0,
  kQ4_1 = 1,
  kQ5_0 = 2,
  kQ5_1 = 3,
  kQ8_0 = 4,
  kQ2K = 5,
  kQ3K = 6,
  kQ4K = 7,
  kQ5K = 8,
  kQ6K = 9,
  kIq4Nl = 10,
  kIq4Xs = 11,
  kMxfp4 = 12,
};

// A weight [columns, inner]: its columns are the rows of all parts.
struct Blocks {
  BlockType type;
  const BlockRows* parts;
  int columns;
  int inner;  // a multiple of a block's numbers
  int rounds_rows;  // see Codes
};

// The type's codes and scales as they are. Null: a scale is not finite.
Matrix* pack_blocks(Pool& pool, const Blocks& blocks, const float* bias, bool paired);

}  // namespace baton
