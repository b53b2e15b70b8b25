#include "linear.h"

#include "multiply.h"
#include "rows.h"

namespace baton {
namespace {

template <class Dot, class Operand>
void multiply_as(Pool& pool, const Matrix& matrix, const float* rows, int count, float* out) {
  const int padded = round_up(matrix.inner, 64);
  Buffer<Operand> operands(size_t(count) * padded);
  Buffer<float> scales(count);
  pool.run(count, [&](int row, int) {
    Buffer<float> x(padded);
    std::copy_n(rows + size_t(row) * matrix.inner, matrix.inner, x.data());
    Operand* to = operands.data() + size_t(row) * padded;
    if constexpr (std::is_same_v<Dot, Int8Dot>)
      scales[row] = quantize_row(to, x.data(), padded);
    else
      narrow_row(to, x.data(), padded);
  });
  const Rows words{reinterpret_cast<const uint32_t*>(operands.data()),
                   size_t(padded) / Dot::kElements, count, scales.data()};
  Operands fitted;
  Rows own = words;
  if constexpr (!std::is_same_v<Dot, Int8Dot>) own = fitted.fit<Operand>(pool, words, matrix);
  multiply<Dot>(pool, own, matrix, [&](int row, int column, const Floats* values) {
    const int columns = std::min(kPanel, matrix.columns - column);
    std::memcpy(out + size_t(row) * matrix.columns + column, values, columns * sizeof(float));
  });
}

}  // namespace

void multiply_floats(Pool& pool, const Matrix& matrix, const float* rows, int count, float* out) {
  if (matrix.kind == Kind::kFloat32 || matrix.kind == Kind::kFours)
    multiply_as<Float32Dot, float>(pool, matrix, rows, count, out);
  else if (matrix.kind == Kind::kBFloat16)
    multiply_as<BFloat16Dot, uint16_t>(pool, matrix, rows, count, out);
  else
    multiply_as<Int8Dot, uint8_t>(pool, matrix, rows, count, out);
}

}  // namespace baton
