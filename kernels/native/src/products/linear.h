// One product alone: those of encoders, and for tests and measurements.
#pragma once

#include "matrix/matrix.h"

namespace baton {

// out float32 [count][columns] = rows float32 [count][inner] times the matrix, plus its bias. The
// rows are rounded to what the matrix is multiplied with.
void multiply_floats(Pool& pool, const Matrix& matrix, const float* rows, int count, float* out);

}  // namespace baton
