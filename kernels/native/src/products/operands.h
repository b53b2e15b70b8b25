// The rows of a product, in the form that its matrix is multiplied with.
#pragma once

#include <algorithm>
#include <type_traits>

#include "matrix/matrix.h"
#include "products/code_tiles.h"
#include "threads/pool.h"
#include "vectors/byte_dots.h"
#include "vectors/rows.h"

namespace baton {

// Of a unit, a piece or half of one, what all columns of a matrix are multiplied with.
struct RowUnit {
  float scale;
  uint32_t start;  // what a sum begins with: see CodeDot and ByteDot
  int32_t total;   // of the numbers
  float shift;     // the same times `scale`
};

// Rows as words. Those of bytes have one scale each, or units.
struct Rows {
  const uint32_t* words;
  size_t stride;
  int count;
  const float* scales = nullptr;
  const int32_t* offsets = nullptr;  // what is added to the bytes of a row
  const RowUnit* units = nullptr;  // [row][units_stride]
  size_t units_stride = 0;
};

// Rounded numbers of a piece, as vectors of integers, become bytes; in the order of the nibbles of words of
// codes if wanted: of 8 numbers those at even places, then the others.
template <bool kInNibbles>
inline void store_piece(int8_t* to, const Words* numbers) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8((__m512i)numbers[1]),
                                         _mm512_cvtepi32_epi8((__m512i)numbers[0]));
#else
  const __m256i halves[2] = {_mm256_packs_epi32((__m256i)numbers[0], (__m256i)numbers[1]),
                             _mm256_packs_epi32((__m256i)numbers[2], (__m256i)numbers[3])};
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(halves[0], halves[1]),
                                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#endif
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      kInNibbles ? _mm256_shuffle_epi8(bytes, order) : bytes);
#else
  int8_t plain[kPiece];
  for (int v = 0; v < kPiece / kLanes; ++v) store(plain + v * kLanes, low_bytes(numbers[v]));
  for (int i = 0; i < kPiece; ++i) to[kInNibbles ? i / 8 * 8 + i % 2 * 4 + i % 8 / 2 : i] = plain[i];
#endif
}

// Of a piece or half of one.
template <int kCount>
inline RowSums sums_of(const int8_t* numbers) {
#if defined(__AVX2__)
  // Sums of two neighbours, those of lower bytes at even places; then of all such.
  __m128i pairs;
  if constexpr (kCount == kPiece) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers));
    const __m256i both = _mm256_maddubs_epi16(_mm256_set1_epi8(1), all);
    pairs = _mm_add_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  } else {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers));
    pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), all);
  }
  pairs = _mm_add_epi16(pairs, _mm_shuffle_epi32(pairs, 0x4e));
  pairs = _mm_add_epi16(pairs, _mm_shuffle_epi32(pairs, 0xb1));
  const int32_t sums = _mm_cvtsi128_si32(pairs);
  return {int16_t(sums), sums >> 16};
#else
  RowSums sums;
  for (int i = 0; i < kCount; i += 4) {
    sums.lower += numbers[i] + numbers[i + 1];
    sums.upper += numbers[i + 2] + numbers[i + 3];
  }
  return sums;
#endif
}

// How many units a piece has for a matrix.
inline int units_of_piece(const Matrix& matrix) { return matrix.groups.has_halves ? 2 : 1; }

template <int kCount>
inline RowUnit unit_of(const Matrix& matrix, const int8_t* numbers, float scale) {
  const RowSums sums = sums_of<kCount>(numbers);
  const int zero = matrix.groups.start();
  const uint32_t start = has_code_dot(matrix) ? CodeDot::start(zero, sums) : ByteDot::start(zero, sums);
  return {scale, start, sums.total(), float(sums.total()) * scale};
}

// Writes the units of a piece. The scales of its halves differ only if a format has groups of halves.
inline void put_units(RowUnit* to, const Matrix& matrix, const int8_t* numbers, float low_scale,
                      float high_scale) {
  if (!matrix.groups.has_halves) {
    to[0] = unit_of<kPiece>(matrix, numbers, low_scale);
    return;
  }
  to[0] = unit_of<kPiece / 2>(matrix, numbers, low_scale);
  to[1] = unit_of<kPiece / 2>(matrix, numbers + kPiece / 2, high_scale);
}

// Symmetric int8 with a scale for the piece, which is returned. It begins with `count` numbers, and ends with zeros.
template <bool kInNibbles, class Element>
inline float round_piece(int8_t* to, const Element* from, int count) {
  constexpr int kVectors = kPiece / kLanes;
  constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23
  Floats numbers[kVectors], largest{};
  for (int v = 0; v < kVectors; ++v) {
    numbers[v] = widen_some(from + v * kLanes, count - v * kLanes);
    largest = max(largest, max(numbers[v], -numbers[v]));
  }
  // Not std::fmax, which is a call: numbers would leave their registers.
  const float peak = max_lane(largest), scale = (peak > 1e-20f ? peak : 1e-20f) / 127.0f;
  const float inverse = 1.0f / scale;
  Words codes[kVectors];
  for (int v = 0; v < kVectors; ++v)
    codes[v] = reinterpret_cast<Words>(numbers[v] * inverse + kRounds) - reinterpret_cast<Words>(splat(kRounds));
  store_piece<kInNibbles>(to, codes);
  return scale;
}

// Integers that a format rounds a row to, by piece. Those of E2M1 are twice its numbers. A group is the whole
// row, some pieces or half of one. range: see `round_row`.
template <bool kInNibbles, class From>
inline void encode_pieces(const Matrix& matrix, const From* from, const Range* range, int8_t* to, RowUnit* units) {
  const Rounding& own = matrix.rounding;
  const int size = matrix.inner;
  const Rounder rounder(own);
  const float factor = own.grid == Grid::kE2M1 ? 2.0f : 1.0f;
  const int group = own.group == 0 ? size : own.group, part = group == kPiece / 2 ? group : kPiece;
  float scale = 1.0f;
  for (int first = 0; first < size; first += kPiece) {
    Words codes[kPiece / kLanes] = {};
    float scales[2];
    for (int start = 0; start < kPiece; start += part) {
      const int at = first + start;
      if (at % group == 0 && at < size) scale = group_scale(own, from + at, std::min(group, size - at), range).scale;
      const float divisor = scale == 0.0f ? 1.0f : scale;
      for (int i = start; i < start + part; i += kLanes) {
        const Floats scaled = widen_some(from + first + i, size - first - i) / divisor;
        const Floats number = rounder.round(rounder.clamp(scaled)) * factor;
        codes[i / kLanes] = reinterpret_cast<Words>(__builtin_convertvector(number, Ints));
      }
      for (int half = start * 2 / kPiece; half < 2; ++half) scales[half] = scale / factor;
    }
    store_piece<kInNibbles>(to + first, codes);
    put_units(units, matrix, to + first, scales[0], scales[1]);
    units += units_of_piece(matrix);
  }
}

// What a matrix is multiplied with.
enum class RowForm {
  kElements,
  kRounded,  // float32 numbers, or elements for `code_tiles.h`
  kBytes,    // or the halves that Int8Dot takes, with one scale and one offset
  kPieces,   // bytes with scales by piece
  kParts,    // three of bfloat16 for a number
};

inline RowForm row_form(const Matrix& matrix) {
  if (matrix.kind == Kind::kInt8) return RowForm::kBytes;
  if (matrix.kind == Kind::kFloatParts) return RowForm::kParts;
  if (matrix.groups.rounds_rows) return RowForm::kPieces;
  return matrix.rounding.grid == Grid::kNone ? RowForm::kElements : RowForm::kRounded;
}

// Whether its rows are elements as they are.
inline bool takes_elements(const Matrix& matrix) {
  return row_form(matrix) == RowForm::kElements && matrix.order.size() == 0;
}

// Whether ranks have parts of the rows, which have one scale each.
inline bool shares_scale(const Matrix& matrix) { return matrix.rounding.is_shared != 0; }

// Memory for rows of other forms, and of copies. Not for two products at a time.
template <class Element>
class Operands {
 public:
  // Rows, of numbers or elements, as `matrix` takes them. They are lent until the next call. ranges: by row, of the
  // whole rows of which these are parts; or null.
  template <class From>
  Rows of(Pool& pool, Activations<From>& rows, int count, const Matrix& matrix, const Range* ranges) {
    if (std::is_same_v<From, Element> && takes_elements(matrix))
      return Rows{reinterpret_cast<const uint32_t*>(rows.data.data()),
                  size_t(rows.stride) * sizeof(Element) / sizeof(uint32_t), count};
    reserve(count, row_bytes(matrix));
    run_rows(pool, count, [&](int row, int) { put(row, rows.row(row), matrix, ranges ? ranges + row : nullptr); });
    return some(0, count);
  }

  // What a row of a matrix takes at most.
  static int row_bytes(const Matrix& matrix) {
    if (row_form(matrix) == RowForm::kParts) return matrix.words * int(sizeof(uint32_t));
    const bool is_wide = row_form(matrix) == RowForm::kRounded;
    return matrix.inner * int(is_wide ? sizeof(float) : sizeof(Element));
  }

  // Room for rows of so many bytes.
  void reserve(int count, int bytes) {
    // Never a power of two: rows of a tile would share the same few sets of the cache.
    stride_ = round_up(bytes, 256) / sizeof(uint32_t) + kLineWords;
    words_.reserve(count * stride_);
    scales_.reserve(count);
    offsets_.reserve(count);
    units_stride_ = round_up(bytes, 2 * kPiece) / kPiece + kLineWords * sizeof(uint32_t) / sizeof(RowUnit);
    units_.reserve(count * units_stride_);
  }

  // Row `row` becomes what `matrix` takes of these.
  template <class From>
  void put(int row, const From* from, const Matrix& matrix, const Range* range) {
    const int inner = matrix.inner;
    uint32_t* to = words_.data() + row * stride_;
    switch (row_form(matrix)) {
      case RowForm::kElements:
        if (matrix.order.size() == 0)
          put_elements(row, from, inner);
        else
          put_in_order(reinterpret_cast<Element*>(to), from, matrix.order.data(), inner);
        return;
      case RowForm::kRounded:
        round_row(matrix.rounding, from, inner, range, reinterpret_cast<float*>(to));
        // In its place: a number is read before a smaller one is written over it.
        if (has_code_tiles<Element>(matrix))
          narrow_row(reinterpret_cast<Element*>(to), reinterpret_cast<const float*>(to), inner);
        return;
      case RowForm::kBytes:
        put_bytes(row, reinterpret_cast<Int8Dot::RowNumber*>(to), from, matrix, range);
        return;
      case RowForm::kPieces:
        if (is_packed(matrix.kind))
          put_pieces<true>(row, reinterpret_cast<int8_t*>(to), from, matrix, range);
        else
          put_pieces<false>(row, reinterpret_cast<int8_t*>(to), from, matrix, range);
        return;
      case RowForm::kParts:
        if constexpr (std::is_same_v<From, float>) split(from, inner, to);  // only models of float32 have such a matrix
    }
  }

  // Row `row` becomes elements.
  template <class From>
  void put_elements(int row, const From* from, int inner) {
    Element* to = reinterpret_cast<Element*>(words_.data() + row * stride_);
    if constexpr (std::is_same_v<From, Element>)
      std::copy_n(from, inner, to);
    else
      narrow_row(to, from, inner);
    std::fill(to + inner, to + round_up(inner, kLanes), Element{});
  }

  // What was put.
  Rows some(int first, int count) const {
    return Rows{words_.data() + first * stride_,
                stride_,
                count,
                scales_.data() + first,
                offsets_.data() + first,
                units_.data() + first * units_stride_,
                units_stride_};
  }

 private:
  template <bool kInNibbles, class From>
  void put_pieces(int row, int8_t* to, const From* from, const Matrix& matrix, const Range* range) {
    RowUnit* units = units_.data() + row * units_stride_;
    if (matrix.rounding.grid != Grid::kNone) {
      encode_pieces<kInNibbles>(matrix, from, range, to, units);
      return;
    }
    for (int i = 0; i < matrix.inner; i += kPiece, units += units_of_piece(matrix)) {
      const float scale = round_piece<kInNibbles>(to + i, from + i, matrix.inner - i);
      put_units(units, matrix, to + i, scale, scale);
    }
  }

  template <class From>
  static void put_in_order(Element* to, const From* from, const int32_t* order, int inner) {
    float some[kPiece];
    for (int first = 0; first < inner; first += kPiece) {
      const int count = std::min(kPiece, inner - first);
      for (int i = 0; i < count; ++i) some[i] = widen_one(from[order[first + i]]);
      narrow_row(to + first, some, count);
    }
  }

  template <class From>
  void put_bytes(int row, Int8Dot::RowNumber* to, const From* from, const Matrix& matrix, const Range* range) {
    InputScale by{0.0f, 0.0f};
    if (matrix.rounding.grid == Grid::kNone)
      by.scale = quantize_row(to, from, matrix.inner, range);
    else
      by = encode_row(matrix.rounding, from, matrix.inner, range, to);
    scales_[row] = by.scale;
    offsets_[row] = 128 + int32_t(by.zero);
  }

  Buffer<uint32_t> words_;
  size_t stride_ = 0;
  Buffer<float> scales_;
  Buffer<int32_t> offsets_;
  Buffer<RowUnit> units_;
  size_t units_stride_ = 0;
};

}  // namespace baton
