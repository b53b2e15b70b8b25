// The rows of a product, in the form that its matrix is multiplied with.
#pragma once

#include <algorithm>
#include <vector>

#include "matrix.h"
#include "pool.h"
#include "rows.h"

namespace baton {

// Numbers of a row that share a scale, where a row has several.
constexpr int kPiece = 32;

struct Piece {
  float scale;
  int32_t sum;  // of the codes
};

// Rows as words. Those of 8 bits have one scale each, or pieces.
struct Rows {
  const uint32_t* words;
  size_t stride;
  int count;
  const float* scales;
  const Piece* pieces = nullptr;  // [row][pieces_stride]
  size_t pieces_stride = 0;
};

// Some rows and the matrix that they are multiplied with.
struct Product {
  Rows rows;
  const Matrix* matrix;
  int first;  // the number of the first row among those of all products
};

// Rounded numbers of a piece, as vectors of integers, become bytes in the order of the nibbles of words of
// codes: of 8 numbers those at even places, then the others.
inline void store_piece(int8_t* to, const Words* numbers) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i halves[2] = {_mm256_packs_epi32((__m256i)numbers[0], (__m256i)numbers[1]),
                             _mm256_packs_epi32((__m256i)numbers[2], (__m256i)numbers[3])};
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(halves[0], halves[1]),
                                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_shuffle_epi8(bytes, order));
#else
  int8_t plain[kPiece];
  for (int v = 0; v < kPiece / kLanes; ++v) store(plain + v * kLanes, low_bytes(numbers[v]));
  for (int i = 0; i < kPiece; ++i) to[i / 8 * 8 + i % 2 * 4 + i % 8 / 2] = plain[i];
#endif
}

// Symmetric int8 with a scale for the piece. It begins with `count` numbers, and ends with zeros.
template <class Element>
inline Piece round_piece(int8_t* to, const Element* from, int count) {
  constexpr int kVectors = kPiece / kLanes;
  constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23
  Floats numbers[kVectors], largest{};
  for (int v = 0; v < kVectors; ++v) {
    numbers[v] = widen_some(from + v * kLanes, count - v * kLanes);
    largest = max(largest, max(numbers[v], -numbers[v]));
  }
  const float scale = std::fmax(max_lane(largest), 1e-20f) / 127.0f;
  const float inverse = 1.0f / scale;
  Words codes[kVectors];
  Words total{};
  for (int v = 0; v < kVectors; ++v) {
    codes[v] = reinterpret_cast<Words>(numbers[v] * inverse + kRounds) - reinterpret_cast<Words>(splat(kRounds));
    total += codes[v];
  }
  store_piece(to, codes);
  uint32_t lanes[kLanes], sum = 0;
  store(lanes, total);
  for (int i = 0; i < kLanes; ++i) sum += lanes[i];
  return {scale, int32_t(sum)};
}

// Makes rows of elements what matrices of few bits want. What it returns is good until the next call.
class Operands {
 public:
  template <class Element>
  Rows fit(Pool& pool, const Rows& rows, const Matrix& matrix) {
    if (!wants_bytes(matrix)) return rows;
    resize(rows.count, matrix.inner);
    run_rows(pool, rows.count, [&](int row, int) { round<Element>(row, rows, row, matrix); });
    return rounded(0, rows.count, matrix);
  }

  template <class Element>
  void fit_each(Pool& pool, std::vector<Product>& products) {
    int count = 0, inner = 0;
    for (const Product& product : products) {
      if (!wants_bytes(*product.matrix)) continue;
      count = std::max(count, product.first + product.rows.count);
      inner = std::max(inner, product.matrix->inner);
    }
    if (count == 0) return;
    resize(count, inner);
    run_rows(pool, count, [&](int row, int) {
      const auto next = std::upper_bound(products.begin(), products.end(), row,
                                         [](int a, const Product& b) { return a < b.first; });
      const Product& product = *(next - 1);
      if (wants_bytes(*product.matrix))
        round<Element>(row, product.rows, row - product.first, *product.matrix);
    });
    for (Product& product : products)
      if (wants_bytes(*product.matrix))
        product.rows = rounded(product.first, product.rows.count, *product.matrix);
  }

 private:
  static bool wants_bytes(const Matrix& matrix) {
    return matrix.kind == Kind::kInt8 || matrix.fours.rounds_rows;
  }

  void resize(int count, int inner) {
    stride_ = round_up(inner, 64) + 64;
    codes_.reserve(size_t(count) * stride_);
    scales_.reserve(count);
    pieces_stride_ = stride_ / kPiece;
    pieces_.reserve(size_t(count) * pieces_stride_);
  }

  template <class Element>
  void round(int to, const Rows& rows, int row, const Matrix& matrix) {
    const auto* from = reinterpret_cast<const Element*>(rows.words + row * rows.stride);
    uint8_t* codes = codes_.data() + size_t(to) * stride_;
    if (matrix.kind == Kind::kInt8) {
      scales_[to] = quantize_row(codes, from, matrix.inner);
      return;
    }
    Piece* pieces = pieces_.data() + to * pieces_stride_;
    for (int i = 0; i < matrix.inner; i += kPiece)
      *pieces++ = round_piece(reinterpret_cast<int8_t*>(codes) + i, from + i, matrix.inner - i);
  }

  Rows rounded(int first, int count, const Matrix& matrix) const {
    const auto* words = reinterpret_cast<const uint32_t*>(codes_.data() + size_t(first) * stride_);
    if (matrix.kind == Kind::kInt8) return {words, stride_ / 4, count, scales_.data() + first};
    return {words,  stride_ / 4, count, nullptr, pieces_.data() + first * pieces_stride_, pieces_stride_};
  }

  Buffer<uint8_t> codes_;
  Buffer<float> scales_;
  Buffer<Piece> pieces_;
  size_t stride_ = 0;
  size_t pieces_stride_ = 0;
};

}  // namespace baton
