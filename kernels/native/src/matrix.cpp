#include "matrix.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

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
  if (matrix.kind == Kind::kInt8) matrix.totals[column] = total;
}

// Calls body(column, packed column) for all columns, and packs the bias.
template <class Body>
void for_columns(Pool& pool, Matrix& matrix, int columns, const float* bias, bool paired,
                 Body&& body) {
  constexpr int kColumnsPerTask = 64;
  pool.run((columns + kColumnsPerTask - 1) / kColumnsPerTask, [&](int task, int) {
    const int end = std::min(columns, (task + 1) * kColumnsPerTask);
    for (int column = task * kColumnsPerTask; column < end; ++column) {
      const int to = packed_column(column, columns, paired);
      body(column, to);
      if (bias != nullptr) matrix.bias[to] = bias[column];
    }
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

void reserve_columns(Matrix& matrix, size_t padded) {
  matrix.scales.reserve(padded);
  matrix.totals.reserve(padded);
}

void reserve_scales(GroupScales& to, const Codes& codes, size_t padded) {
  to.group_words = codes.group / elements_per_word(codes.kind);
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

void pack_codes_column(Matrix& matrix, const Codes& codes, size_t source, int column) {
  GroupScales& scales = matrix.groups;
  const size_t panel = column / kPanel;
  uint32_t* to = matrix.panels.data() + panel * matrix.words * kPanel + column % kPanel;
  const int8_t* from = codes.codes + source * codes.inner;
  const int elements = elements_per_word(matrix.kind), bits_each = 32 / elements;
  for (int i = 0; i < matrix.inner; ++i) {
    const uint32_t code = uint32_t(from[i] - codes.least) & 0xffu;
    to[size_t(i / elements) * kPanel] |= code << (bits_each * (i % elements));
  }
  if (matrix.kind == Kind::kInt8) {
    matrix.scales[column] = codes.scales[source];
    matrix.totals[column] = std::accumulate(from, from + matrix.inner, 0);
    return;
  }
  for (int group = 0; group < scales.num_groups; ++group) {
    const size_t at = (panel * scales.num_groups + group) * kPanel + column % kPanel;
    const size_t own = source * scales.num_groups + group;
    put_number(scales.scales, at, codes.scales[own]);
    if (codes.offsets != nullptr) put_number(scales.offsets, at, codes.offsets[own]);
    if (scales.zeros.size() > 0) scales.zeros[at] = uint8_t(codes.zeros[own] - codes.least);
  }
}

}  // namespace

Matrix* pack_codes(Pool& pool, const Codes& codes, const float* bias, bool paired) {
  const int elements = elements_per_word(codes.kind);
  const int own_words = (codes.inner + elements - 1) / elements;
  // Whole pieces of rows of 8 bits.
  const int words = codes.rounds_rows ? round_up(own_words, 4) : own_words;
  const int packed = packed_columns(codes.columns, paired);
  const size_t padded = size_t(panels_of(packed)) * kPanel;
  auto matrix = std::unique_ptr<Matrix>(
      new Matrix{codes.kind, packed, codes.inner, words, HugeBuffer<uint32_t>(padded * words),
                 Buffer<float>(padded), {}, {}, {}});
  if (codes.kind == Kind::kInt8)
    reserve_columns(*matrix, padded);
  else
    reserve_scales(matrix->groups, codes, padded);
  if (codes.order != nullptr) {
    matrix->order.reserve(codes.inner);
    std::copy_n(codes.order, codes.inner, matrix->order.data());
  }
  for_columns(pool, *matrix, codes.columns, bias, paired,
              [&](int column, int to) { pack_codes_column(*matrix, codes, column, to); });
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
  if (kind == Kind::kInt8) reserve_columns(*matrix, padded);
  for_columns(pool, *matrix, columns, bias, paired, [&](int column, int to) {
    pack_column(*matrix, weight, stored, column, to);
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
