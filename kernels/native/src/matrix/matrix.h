// A weight [columns, inner] in the order in which the kernels read it, packed once at load.
#pragma once

#include "matrix/block_rows.h"
#include "matrix/group_floats.h"
#include "matrix/rounding.h"
#include "threads/pool.h"
#include "vectors/float_parts.h"
#include "vectors/memory.h"
#include "vectors/tile.h"

namespace baton {

enum class Kind : int {
  kFloat32 = 0,
  kBFloat16 = 1,
  kInt8 = 2,  // with a scale for each column, times rows of bytes
  // Stored codes, in groups:
  kFours = 3,    // integers of 4 bits
  kEights = 4,   // integers of 8 bits
  kFloat8s = 5,  // E4M3
  kLooked = 6,   // places of 4 bits in a table of integers
  kSixes = 7,    // integers of 6 bits, only for rows of bytes in pieces: see `join_sixes`
  kFloatParts = 8,  // float32 for the matrix unit, in its own order: see vectors/float_parts.h
};

inline bool is_coded(Kind kind) { return kind >= Kind::kFours && kind != Kind::kFloatParts; }

// Whether there are two codes in a byte.
inline bool is_packed(Kind kind) { return kind == Kind::kFours || kind == Kind::kLooked; }

// Of a number.
inline int bits_of(Kind kind) {
  if (kind == Kind::kSixes) return 6;
  return kind == Kind::kFloat32 ? 32 : kind == Kind::kBFloat16 ? 16 : is_packed(kind) ? 4 : 8;
}

// Of numbers that words hold whole.
inline int elements_per_word(Kind kind) { return 32 / bits_of(kind); }

// Numbers of a row of 8 bits that share a scale, where a row has several.
constexpr int kPiece = 32;

// What sums of codes, times rows of 8 bits, are less by.
enum class Less {
  kStart,  // nothing: they begin with what one zero makes of them
  kZeros,
  kOffsets,
};

// Of stored codes: a weight is (code - zero) * scale, or code * scale - offset.
struct GroupScales {
  int group_words = 1;
  int num_groups = 0;
  GroupFloats scales;
  GroupFloats offsets;    // empty without
  Buffer<uint8_t> zeros;  // [panel][group][kPanel]; empty if they are one number
  int zero = 0;
  alignas(64) uint8_t table[4 * kLanes] = {};  // of kLooked: what codes stand for, repeated
  bool rounds_rows = false;  // rows are bytes in pieces for a product
  // For such products:
  Less less = Less::kStart;
  bool is_narrow = false;   // codes begin at 0, and sums of a unit fit 16 bits
  bool has_halves = false;  // exact sums are those of half a piece
  bool fits_bytes = true;   // codes less their zeros are integers of 8 bits

  // The zero with which sums begin.
  int start() const { return less == Less::kZeros ? 0 : zero; }
  size_t bytes() const { return scales.bytes() + offsets.bytes() + zeros.size(); }
};

// panels: [panel][word][column of the panel], every word of a panel on two cache lines.
struct Matrix {
  Kind kind;
  int columns;
  int inner;
  int words;  // of the inner dimension, the last one padded with zeros
  HugeBuffer<uint32_t> panels;
  Buffer<float> bias;    // per column, zero without one
  Buffer<float> scales;  // int8 only: value = scale * int8
  Buffer<int32_t> totals;  // int8 only: the sum of a column
  GroupScales groups;  // of stored codes only
  Rounding rounding;   // of the rows that it is multiplied with
  // The numbers of a row in the order of the inner dimension; empty: as they are. Only of rows of elements.
  Buffer<int32_t> order;

  int num_panels() const { return panels_of(columns); }
  size_t bytes() const {
    return panels.size() * 4 + bias.size() * 4 + scales.size() * 8 + groups.bytes() + order.size() * 4;
  }
  const uint32_t* panel(int index) const { return panels.data() + size_t(index) * words * kPanel; }
};

// Packs weight [columns, inner], row-major, float32 or bfloat16 as `stored` says, into `kind`. kFloatParts is made of
// float32, and is kFloat32 where no matrix unit may be used.
//
// int8 takes one scale per column, so that its largest value becomes 127. With `paired` the first and
// the second half of the columns alternate in groups of kHalfPanel: a panel then holds the gates and the
// ups of the same units. bias: float32 [columns] or null. peaks: of int8, the largest magnitudes by column of
// the whole weight, of which this is a part by inner numbers; or null.
Matrix* pack_matrix(Pool& pool, Kind kind, const void* weight, Kind stored, int columns, int inner,
                    const float* bias, bool paired, const float* peaks);

// A weight [columns, inner] of codes that share scales by groups of `group` inner numbers, and either zeros
// or offsets.
struct Codes {
  Kind kind;  // of kInt8 there is one group and no zero
  const int8_t* codes;  // [columns][inner]; null: they are in `rows`
  int least;            // no code is below
  int most;             // nor above; of kLooked these are bounds of the table
  const int8_t* table;  // of kLooked: sixteen numbers
  const float* scales;  // [columns][groups]
  const int8_t* zeros;  // the same shape; null: 0
  const float* offsets;  // the same shape; null: 0
  int columns;
  int inner;  // a multiple of a word's codes, as `group` is
  int group;
  const int32_t* order;  // see Matrix; or null
  // Of integers: rows become bytes in pieces for a product. A group is then of a multiple of kPiece numbers,
  // or of all, or of half a piece.
  int rounds_rows;
  const BlockRows* rows;  // of kFours: words as a matrix has them, of all columns
};

// The kind of the matrix: codes of 8 bits that span few numbers take 6, and begin at 0.
Kind kind_of(const Codes& codes);

// The words of a column of a matrix of codes.
int words_of(const Codes& codes);

// Chooses how products of such codes (`kind`, `least`, `most`, `zeros`, `group`, `rounds_rows`) with rows of
// 8 bits are added, and the zero. `to` has its number of groups.
void choose_sums(GroupScales& to, const Codes& codes);

// Keeps the table of such codes, from what products begin at.
void put_table(Matrix& matrix, const Codes& codes);

Matrix* pack_codes(Pool& pool, const Codes& codes, const float* bias, bool paired);

// Whether codes are without a sign and of few bits, so that CodeDot multiplies them.
inline bool has_code_dot(const Matrix& matrix) {
  return matrix.kind == Kind::kFours || matrix.groups.is_narrow;
}

// Where column `column` of the unpacked weight lies among the packed ones.
inline int packed_column(int column, int columns, bool paired) {
  if (!paired) return column;
  const int half = columns / 2;
  const int unit = column < half ? column : column - half;
  return unit / kHalfPanel * kPanel + unit % kHalfPanel + (column < half ? 0 : kHalfPanel);
}

// Columns after packing: pairs fill whole panels.
inline int packed_columns(int columns, bool paired) {
  return paired ? (columns / 2 + kHalfPanel - 1) / kHalfPanel * kPanel : columns;
}

// One column as float32 [inner]: a row of an embedding that is also the output head. Not of kFloatParts.
void unpack_column(const Matrix& matrix, int column, float* to);

}  // namespace baton
