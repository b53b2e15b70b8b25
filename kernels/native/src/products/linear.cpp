#include "products/linear.h"

#include "products/multiply.h"
#include "vectors/rows.h"

namespace baton {
namespace {

void store_columns(const Matrix& matrix, int row, int column, const Floats* values, float* out) {
  const int columns = std::min(kPanel, matrix.columns - column);
  std::memcpy(out + size_t(row) * matrix.columns + column, values, columns * sizeof(float));
}

template <class Dot>
void multiply_as(Pool& pool, const Matrix& matrix, const float* rows, int count, float* out) {
  Activations<float> numbers(matrix.inner);
  numbers.resize(count);
  for (int row = 0; row < count; ++row)
    std::copy_n(rows + size_t(row) * matrix.inner, matrix.inner, numbers.row(row));
  Operands<typename Dot::Element> operands;
  multiply<Dot>(pool, operands.of(pool, numbers, count, matrix, nullptr), matrix,
                [&](int row, int column, const Floats* values) { store_columns(matrix, row, column, values, out); });
}

// Rows that become parts. Their memory is kept from call to call: to clear it would take as long as the product.
void multiply_in_parts(Pool& pool, const Matrix& matrix, const float* rows, int count, float* out) {
  static thread_local Operands<float> operands;
  operands.reserve(count, operands.row_bytes(matrix));
  auto* own = &operands;
  run_rows(pool, count,
           [&, own](int row, int) { own->put(row, rows + size_t(row) * matrix.inner, matrix, nullptr); });
  multiply<Float32Dot>(pool, operands.some(0, count), matrix, [&](int row, int column, const Floats* values) {
    store_columns(matrix, row, column, values, out);
  });
}

// Rows that are read where they are.
void multiply_in_place(Pool& pool, const Matrix& matrix, const float* rows, int count, float* out) {
  const Rows own{reinterpret_cast<const uint32_t*>(rows), size_t(matrix.inner), count};
  multiply<Float32Dot>(pool, own, matrix,
                       [&](int row, int column, const Floats* values) { store_columns(matrix, row, column, values, out); });
}

}  // namespace

void multiply_floats(Pool& pool, const Matrix& matrix, const float* rows, int count, float* out) {
  if (matrix.kind == Kind::kFloat32 && row_form(matrix) == RowForm::kElements && matrix.order.size() == 0) {
    multiply_in_place(pool, matrix, rows, count, out);
    return;
  }
  if (matrix.kind == Kind::kFloatParts)
    multiply_in_parts(pool, matrix, rows, count, out);
  else if (matrix.kind == Kind::kBFloat16)
    multiply_as<BFloat16Dot>(pool, matrix, rows, count, out);
  else
    multiply_as<Float32Dot>(pool, matrix, rows, count, out);
}

}  // namespace baton
