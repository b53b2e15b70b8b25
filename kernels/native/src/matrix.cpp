#include "matrix.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "lines.h"

namespace baton {
namespace {

float read(const void* weight, Kind stored, size_t index) {
  return stored == Kind::kFloat32 ? static_cast<const float*>(weight)[index]
                                  : widen_one(static_cast<const uint16_t*>(weight)[index]);
}

uint16_t round_one(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Writes one column: word w of it goes to to[w * kPanel].
void pack_column(Matrix& matrix, const void* weight, Kind stored, size_t source, int column) {
  uint32_t* to = matrix.panels.data() + size_t(column / kPanel) * matrix.words * kPanel + column % kPanel;
  const size_t start = source * matrix.inner;
  float scale = 1.0f;
  int32_t total = 0;
  if (matrix.kind == Kind::kInt8) {
    float largest = 0.0f;
    for (int i = 0; i < matrix.inner; ++i)
      largest = std::fmax(largest, std::fabs(read(weight, stored, start + i)));
    scale = largest > 0.0f ? largest / 127.0f : 1.0f;
    matrix.scales[column] = scale;
  }
  const int elements = elements_per_word(matrix.kind);
  for (int word = 0; word < matrix.words; ++word) {
    uint32_t bits = 0;
    for (int e = 0; e < elements; ++e) {
      const int i = word * elements + e;
      if (i >= matrix.inner) break;
      const float value = read(weight, stored, start + i);
      if (matrix.kind == Kind::kFloat32) {
        std::memcpy(&bits, &value, sizeof(bits));
      } else if (matrix.kind == Kind::kBFloat16) {
        bits |= uint32_t(round_one(value)) << (16 * e);
      } else {
        const int32_t rounded = int32_t(std::nearbyint(value / scale));
        total += rounded;
        bits |= (uint32_t(rounded) & 0xffu) << (8 * e);
      }
    }
    to[size_t(word) * kPanel] = bits;
  }
  if (matrix.kind == Kind::kInt8) matrix.excess[column] = 128 * total;
}

// Calls body(first, last + 1) for ranges of all columns.
template <class Body>
void for_ranges(Pool& pool, int columns, Body&& body) {
  constexpr int kColumnsPerTask = 64;
  pool.run((columns + kColumnsPerTask - 1) / kColumnsPerTask, [&](int task, int) {
    body(task * kColumnsPerTask, std::min(columns, (task + 1) * kColumnsPerTask));
  });
}

// Calls body(column, packed column) for all columns, and packs the bias.
template <class Body>
void for_columns(Pool& pool, Matrix& matrix, int columns, const float* bias, bool paired,
                 Body&& body) {
  for_ranges(pool, columns, [&](int begin, int end) {
    for (int column = begin; column < end; ++column) {
      const int to = packed_column(column, columns, paired);
      body(column, to);
      if (bias != nullptr) matrix.bias[to] = bias[column];
    }
  });
}

// Copies a weight that is stored as its matrix keeps it.
void copy_weight(Pool& pool, Matrix& matrix, const void* weight, int columns, bool paired) {
  const size_t row_bytes = size_t(matrix.inner) * 4 / elements_per_word(matrix.kind);
  for_ranges(pool, columns, [&](int begin, int end) {
    const char* from = static_cast<const char*>(weight) + begin * row_bytes;
    put_columns(from, row_bytes, end - begin, [&](int offset) {
      const int to = packed_column(begin + offset, columns, paired);
      return matrix.panels.data() + size_t(to / kPanel) * matrix.words * kPanel + to % kPanel;
    });
  });
}

bool is_half(float value) {
#if defined(__F16C__)
  return _cvtsh_ss(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)) == value;
#else
  return false;
#endif
}

uint16_t half_of(float value) {
#if defined(__F16C__)
  return uint16_t(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
  return uint16_t(value);  // no number is_half
#endif
}

// Makes room for numbers as small as they can be kept.
void reserve_numbers(GroupFloats& to, const float* numbers, size_t count, size_t room) {
  if (std::all_of(numbers, numbers + count, is_half))
    to.halves.reserve(room);
  else
    to.floats.reserve(room);
}

void reserve_scales(FourScales& to, const Codes& codes, size_t padded) {
  to.group_words = codes.group / elements_per_word(Kind::kFours);
  to.num_groups = (codes.inner + codes.group - 1) / codes.group;
  const size_t count = size_t(codes.columns) * to.num_groups, room = padded * to.num_groups;
  reserve_numbers(to.scales, codes.scales, count, room);
  if (codes.offsets != nullptr) reserve_numbers(to.offsets, codes.offsets, count, room);
  to.rounds_rows = codes.rounds_rows != 0;
  to.zero = -codes.least;
  if (codes.zeros == nullptr) return;
  to.zero += codes.zeros[0];
  if (std::any_of(codes.zeros, codes.zeros + count, [&](int8_t z) { return z != codes.zeros[0]; }))
    to.zeros.reserve(room);
}

void put_number(GroupFloats& to, size_t at, float number) {
  if (to.halves.size() > 0)
    to.halves[at] = half_of(number);
  else
    to.floats[at] = number;
}

void pack_codes(Matrix& matrix, const Codes& codes, size_t source, int column) {
  FourScales& scales = matrix.fours;
  const size_t panel = column / kPanel;
  uint32_t* to = matrix.panels.data() + panel * matrix.words * kPanel + column % kPanel;
  std::vector<uint32_t> words(matrix.words);
  join_codes(codes.codes + source * codes.inner, codes.inner, codes.least, 4, words.data());
  put_words(words.data(), matrix.words, to);
  for (int group = 0; group < scales.num_groups; ++group) {
    const size_t at = (panel * scales.num_groups + group) * kPanel + column % kPanel;
    const size_t own = source * scales.num_groups + group;
    put_number(scales.scales, at, codes.scales[own]);
    if (codes.offsets != nullptr) put_number(scales.offsets, at, codes.offsets[own]);
    if (scales.zeros.size() > 0) scales.zeros[at] = uint8_t(codes.zeros[own] - codes.least);
  }
}

}  // namespace

Matrix* pack_fours(Pool& pool, const Codes& codes, const float* bias, bool paired) {
  const int own_words = codes.inner / elements_per_word(Kind::kFours);
  // Whole pieces of rows of 8 bits.
  const int words = codes.rounds_rows ? round_up(own_words, 4) : own_words;
  const int packed = packed_columns(codes.columns, paired);
  const size_t padded = size_t(panels_of(packed)) * kPanel;
  auto matrix = std::unique_ptr<Matrix>(
      new Matrix{Kind::kFours, packed, codes.inner, words, HugeBuffer<uint32_t>(padded * words),
                 Buffer<float>(padded), {}, {}, {}});
  reserve_scales(matrix->fours, codes, padded);
  for_columns(pool, *matrix, codes.columns, bias, paired,
              [&](int column, int to) { pack_codes(*matrix, codes, column, to); });
  return matrix.release();
}

Matrix* pack_matrix(Pool& pool, Kind kind, const void* weight, Kind stored, int columns, int inner,
                    const float* bias, bool paired) {
  const int elements = elements_per_word(kind);
  const int words = (inner + elements - 1) / elements;
  const int packed = packed_columns(columns, paired);
  const size_t padded = size_t(panels_of(packed)) * kPanel;
  auto matrix = std::unique_ptr<Matrix>(new Matrix{
      kind, packed, inner, words, HugeBuffer<uint32_t>(padded * words), Buffer<float>(padded), {}, {}, {}});
  if (kind == Kind::kInt8) {
    matrix->scales.reserve(padded);
    matrix->excess.reserve(padded);
  }
  const bool is_copied = kind == stored;
  if (is_copied) copy_weight(pool, *matrix, weight, columns, paired);
  for_columns(pool, *matrix, columns, bias, paired, [&](int column, int to) {
    if (!is_copied) pack_column(*matrix, weight, stored, column, to);
  });
  return matrix.release();
}

void unpack_column(const Matrix& matrix, int column, float* to) {
  const uint32_t* from = matrix.panel(column / kPanel) + column % kPanel;
  const int elements = elements_per_word(matrix.kind);
  for (int word = 0, i = 0; word < matrix.words; ++word) {
    const uint32_t bits = from[size_t(word) * kPanel];
    const int end = std::min(elements, matrix.inner - i);
    for (int e = 0; e < end; ++e, ++i) {
      if (matrix.kind == Kind::kFloat32)
        std::memcpy(to + i, &bits, sizeof(bits));
      else if (matrix.kind == Kind::kBFloat16)
        to[i] = widen_one(uint16_t(bits >> (16 * e)));
      else
        to[i] = float(int8_t(bits >> (8 * e))) * matrix.scales[column];
    }
  }
}

}  // namespace baton
