#include "matrix/matrix.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "matrix/lines.h"
#include "vectors/byte_dots.h"

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
void pack_column(Matrix& matrix, const void* weight, Kind stored, const float* peaks, size_t source,
                 int column) {
  uint32_t* to = matrix.panels.data() + size_t(column / kPanel) * matrix.words * kPanel + column % kPanel;
  const size_t start = source * matrix.inner;
  float scale = 1.0f;
  int32_t total = 0;
  if (matrix.kind == Kind::kInt8) {
    float largest = peaks != nullptr ? peaks[source] : 0.0f;
    for (int i = 0; peaks == nullptr && i < matrix.inner; ++i)
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

// Brings the parts of a weight of float32 to their places.
void put_parts(Pool& pool, Matrix& matrix, const float* weight, int columns, const float* bias, bool paired) {
  for_columns(pool, matrix, columns, bias, paired, [&](int column, int to) {
    std::vector<uint32_t> words(matrix.words);
    split(weight + size_t(column) * matrix.inner, matrix.inner, words.data());
    uint32_t* panel = matrix.panels.data() + size_t(to / kPanel) * matrix.words * kPanel;
    for (int word = 0; word < matrix.words; ++word) panel[place_of_part(word, to % kPanel)] = words[word];
  });
}

int words_of(Kind kind, int inner) {
  const int elements = elements_per_word(kind);
  return kind == Kind::kFloatParts ? words_of_parts(inner) : (inner + elements - 1) / elements;
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

// Whether the numbers [columns][groups] are factors of numbers that 256 inner ones share.
bool has_factors(Pool& pool, const float* numbers, int columns, int groups, int span) {
  if (span < 2 || span > kMostSpan || groups % span != 0) return false;
  std::atomic<bool> has{true};
  for_ranges(pool, columns, [&](int begin, int end) {
    int8_t factors[kMostSpan];
    float shared;
    const float* last = numbers + size_t(end) * groups;
    for (const float* from = numbers + size_t(begin) * groups; from != last && has; from += span)
      if (!split_factors(from, span, factors, &shared)) has = false;
  });
  return has;
}

// Makes room for numbers as small as they can be kept.
void reserve_numbers(Pool& pool, GroupFloats& to, const float* numbers, const Codes& codes, int groups,
                     size_t padded) {
  constexpr int kSharing = 256;
  const size_t count = size_t(codes.columns) * groups;
  const int span = kSharing / codes.group;
  if (std::all_of(numbers, numbers + count, is_half)) {
    to.halves.reserve(padded * groups);
  } else if (kSharing % codes.group == 0 && has_factors(pool, numbers, codes.columns, groups, span)) {
    while (1 << to.span_bits < span) ++to.span_bits;
    to.factors.reserve(padded * groups);
    to.shared.reserve(padded * (groups / span));
  } else {
    to.floats.reserve(padded * groups);
  }
}

void reserve_columns(Matrix& matrix, size_t padded) {
  matrix.scales.reserve(padded);
  matrix.totals.reserve(padded);
}

void reserve_scales(Pool& pool, GroupScales& to, const Codes& codes, size_t padded) {
  to.group_words = codes.group * bits_of(kind_of(codes)) / 32;
  to.num_groups = (codes.inner + codes.group - 1) / codes.group;
  const size_t count = size_t(codes.columns) * to.num_groups, room = padded * to.num_groups;
  reserve_numbers(pool, to.scales, codes.scales, codes, to.num_groups, padded);
  if (codes.offsets != nullptr)
    reserve_numbers(pool, to.offsets, codes.offsets, codes, to.num_groups, padded);
  to.rounds_rows = codes.rounds_rows != 0;
  choose_sums(to, codes);
  to.less = codes.offsets != nullptr ? Less::kOffsets : Less::kStart;
  if (codes.zeros == nullptr) return;
  to.zero += codes.zeros[0];
  const auto [low, high] = std::minmax_element(codes.zeros, codes.zeros + count);
  to.fits_bytes = codes.least - *high >= -128 && codes.most - *low <= 127;
  const bool vary = std::any_of(codes.zeros, codes.zeros + count, [&](int8_t z) { return z != codes.zeros[0]; });
  if (vary) to.zeros.reserve(room);
  if (vary || (codes.kind == Kind::kFours && !fits_dot(15, to.zero, kPiece / 4, 128))) to.less = Less::kZeros;
}

// Keeps the numbers of one column, by group.
void put_numbers(GroupFloats& to, const float* numbers, int groups, size_t panel, int column) {
  const size_t start = panel * groups * kPanel + column;
  const int span = 1 << to.span_bits;
  if (to.factors.size() > 0) {
    for (int group = 0; group < groups; group += span) {
      int8_t factors[kMostSpan];
      const size_t at = start + size_t(group) * kPanel;
      split_factors(numbers + group, span, factors, &to.shared[to.shared_at(at)]);
      for (int i = 0; i < span; ++i) to.factors[at + size_t(i) * kPanel] = factors[i];
    }
    return;
  }
  for (int group = 0; group < groups; ++group) {
    const size_t at = start + size_t(group) * kPanel;
    if (to.halves.size() > 0)
      to.halves[at] = half_of(numbers[group]);
    else
      to.floats[at] = numbers[group];
  }
}

// Copies codes that are words already.
void copy_words(Pool& pool, Matrix& matrix, const Codes& codes, bool paired) {
  constexpr int kRowsAtOnce = 8;
  const size_t row_bytes = size_t(codes.inner) * 4 / elements_per_word(matrix.kind);
  const RowStarts rows(codes.rows, row_bytes);
  for_ranges(pool, codes.columns, [&](int begin, int end) {
    std::vector<char> own(kRowsAtOnce * row_bytes);
    for (int first = begin; first < end; first += kRowsAtOnce) {
      const int count = std::min(kRowsAtOnce, end - first);
      for (int i = 0; i < count; ++i) std::memcpy(&own[i * row_bytes], rows[first + i], row_bytes);
      put_columns(own.data(), row_bytes, count, [&](int offset) {
        const int to = packed_column(first + offset, codes.columns, paired);
        return matrix.panels.data() + size_t(to / kPanel) * matrix.words * kPanel + to % kPanel;
      });
    }
  });
}

// What is stored as 0.
int first_code(const Matrix& matrix, const Codes& codes) {
  return matrix.kind == Kind::kFours || matrix.groups.is_narrow ? codes.least : 0;
}

void put_codes(Matrix& matrix, const Codes& codes, size_t source, int column) {
  const size_t panel = column / kPanel;
  uint32_t* to = matrix.panels.data() + panel * matrix.words * kPanel + column % kPanel;
  const int8_t* from = codes.codes + source * codes.inner;
  std::vector<uint32_t> words(matrix.words);
  const int first = matrix.kind == Kind::kLooked ? 0 : first_code(matrix, codes);
  if (matrix.kind == Kind::kSixes) {
    const int pieces = matrix.words / kSixesWords;
    std::vector<uint8_t> own(size_t(pieces) * kSixesNumbers);
    for (int i = 0; i < matrix.inner; ++i) own[i] = uint8_t(from[i] - first);
    join_sixes(own.data(), pieces, words.data());
  } else {
    join_codes(from, matrix.inner, first, bits_of(matrix.kind), words.data());
  }
  put_words(words.data(), matrix.words, to);
  if (matrix.kind == Kind::kInt8) {
    matrix.scales[column] = codes.scales[source];
    matrix.totals[column] = std::accumulate(from, from + matrix.inner, 0);
  }
}

void put_groups(Matrix& matrix, const Codes& codes, size_t source, int column) {
  GroupScales& scales = matrix.groups;
  const size_t panel = column / kPanel;
  const int groups = scales.num_groups, at = column % kPanel;
  const size_t own = source * groups;
  put_numbers(scales.scales, codes.scales + own, groups, panel, at);
  if (codes.offsets != nullptr) put_numbers(scales.offsets, codes.offsets + own, groups, panel, at);
  if (scales.zeros.size() == 0) return;
  for (int group = 0; group < groups; ++group)
    scales.zeros[(panel * groups + group) * kPanel + at] = uint8_t(codes.zeros[own + group] - first_code(matrix, codes));
}

// A code of three words of 6 bits.
float six_at(const uint32_t* from, int place) {
  const int word = place / 4, byte = place % 4 * 8;
  const uint32_t lower = from[size_t(word / 2) * kPanel] >> (byte + word % 2 * 4) & 15u;
  const uint32_t upper = from[2 * kPanel] >> (byte + word * 2) & 3u;
  return float(lower | upper << 4);
}

// The code at one place of a word, or of what words hold together, without its zero.
float number_at(const Matrix& matrix, const uint32_t* from, int place) {
  const Kind kind = matrix.kind;
  if (kind == Kind::kSixes) return six_at(from, place);
  const uint32_t word = *from;
  if (kind == Kind::kLooked) return float(int8_t(matrix.groups.table[word >> (4 * place) & 15u]));
  if (kind == Kind::kFours) return float(word >> (4 * place) & 15u);
  if (kind == Kind::kEights) return float(int8_t(word >> (8 * place)));
  const int32_t top = int32_t(word << (24 - 8 * place));  // E4M3, see Floats8
  const uint32_t bits = uint32_t(top >> 4) & 0x87f00000u;
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number * 0x1p120f;
}

void unpack_codes_column(const Matrix& matrix, int column, float* to) {
  const GroupScales& own = matrix.groups;
  const uint32_t* from = matrix.panel(column / kPanel) + column % kPanel;
  const int together = matrix.kind == Kind::kSixes ? kSixesWords / 2 : 1;
  const int elements = 32 * together / bits_of(matrix.kind);
  for (int word = 0, left = matrix.inner; left > 0; word += together, left -= elements) {
    const int group = std::min(word / own.group_words, own.num_groups - 1);
    const size_t at = (size_t(column / kPanel) * own.num_groups + group) * kPanel + column % kPanel;
    float zero = float(own.zero);
    if (own.zeros.size() > 0)
      zero = matrix.kind == Kind::kFours ? float(own.zeros[at]) : float(int8_t(own.zeros[at]));
    const float scale = own.scales.one(at);
    const float offset = own.offsets.empty() ? 0.0f : own.offsets.one(at);
    for (int place = 0; place < std::min(elements, left); ++place, ++to)
      *to = (number_at(matrix, from + size_t(word) * kPanel, place) - zero) * scale - offset;
  }
}

}  // namespace

namespace {

// Whether sums of so many words of codes, from the least one on, fit 16 bits. Only rows of codes of 4 bits may
// have a -128.
bool fits_words(const Codes& codes, int words) {
  const int row = codes.kind == Kind::kFours ? 128 : 127;
  return fits_dot(codes.most - codes.least, -codes.least, words, row);
}

bool is_narrow(const Codes& codes) {
  const bool may_be = codes.kind != Kind::kFours && codes.zeros == nullptr && codes.rounds_rows;
  return may_be && fits_words(codes, kPiece / 8);
}

}  // namespace

Kind kind_of(const Codes& codes) {
  const bool has_few = codes.kind == Kind::kEights && codes.most - codes.least < 64;
  return has_few && is_narrow(codes) ? Kind::kSixes : codes.kind;
}

int words_of(const Codes& codes) {
  if (kind_of(codes) == Kind::kSixes) return (codes.inner + kSixesNumbers - 1) / kSixesNumbers * kSixesWords;
  const int elements = elements_per_word(codes.kind), words = (codes.inner + elements - 1) / elements;
  // Whole pieces of rows of 8 bits.
  return codes.rounds_rows ? round_up(words, kPiece / elements) : words;
}

void choose_sums(GroupScales& to, const Codes& codes) {
  to.is_narrow = is_narrow(codes);
  to.has_halves = (codes.group == kPiece / 2 && to.num_groups > 1) ||
                  (to.is_narrow && !fits_words(codes, kPiece / 4));
  const bool is_fours = codes.kind == Kind::kFours;
  to.zero = is_fours || to.is_narrow ? -codes.least : 0;
}

void put_table(Matrix& matrix, const Codes& codes) {
  constexpr int kNumbers = 16;
  uint8_t* to = matrix.groups.table;
  for (size_t i = 0; i < sizeof(matrix.groups.table); ++i)
    to[i] = uint8_t(codes.table[i % kNumbers] - first_code(matrix, codes));
}

Matrix* pack_codes(Pool& pool, const Codes& codes, const float* bias, bool paired) {
  const int words = words_of(codes);
  const int packed = packed_columns(codes.columns, paired);
  const size_t padded = size_t(panels_of(packed)) * kPanel;
  auto matrix = std::unique_ptr<Matrix>(
      new Matrix{kind_of(codes), packed, codes.inner, words, HugeBuffer<uint32_t>(padded * words),
                 Buffer<float>(padded), {}, {}, {}});
  if (codes.kind == Kind::kInt8)
    reserve_columns(*matrix, padded);
  else
    reserve_scales(pool, matrix->groups, codes, padded);
  if (codes.table != nullptr) put_table(*matrix, codes);
  if (codes.order != nullptr) {
    matrix->order.reserve(codes.inner);
    std::copy_n(codes.order, codes.inner, matrix->order.data());
  }
  if (codes.codes == nullptr) copy_words(pool, *matrix, codes, paired);
  for_columns(pool, *matrix, codes.columns, bias, paired, [&](int column, int to) {
    if (codes.codes != nullptr) put_codes(*matrix, codes, column, to);
    if (codes.kind != Kind::kInt8) put_groups(*matrix, codes, column, to);
  });
  return matrix.release();
}

Matrix* pack_matrix(Pool& pool, Kind kind, const void* weight, Kind stored, int columns, int inner,
                    const float* bias, bool paired, const float* peaks) {
  if (kind == Kind::kFloatParts && (!has_parts() || stored != Kind::kFloat32)) kind = Kind::kFloat32;
  const int words = words_of(kind, inner);
  const int packed = packed_columns(columns, paired);
  const size_t padded = size_t(panels_of(packed)) * kPanel;
  auto matrix = std::unique_ptr<Matrix>(new Matrix{
      kind, packed, inner, words, HugeBuffer<uint32_t>(padded * words), Buffer<float>(padded), {}, {}, {}});
  if (kind == Kind::kInt8) reserve_columns(*matrix, padded);
  if (kind == Kind::kFloatParts) {
    put_parts(pool, *matrix, static_cast<const float*>(weight), columns, bias, paired);
    return matrix.release();
  }
  const bool is_copied = kind == stored;
  if (is_copied) copy_weight(pool, *matrix, weight, columns, paired);
  for_columns(pool, *matrix, columns, bias, paired, [&](int column, int to) {
    if (!is_copied) pack_column(*matrix, weight, stored, peaks, column, to);
  });
  return matrix.release();
}

void unpack_column(const Matrix& matrix, int column, float* to) {
  if (is_coded(matrix.kind)) {
    unpack_codes_column(matrix, column, to);
    return;
  }
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
