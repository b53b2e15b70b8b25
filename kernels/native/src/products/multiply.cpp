#include "products/multiply.h"

namespace baton {

template void multiply_kind<float>(const Rows&, int, int, const Matrix&, int, Floats*);
template void multiply_kind<uint16_t>(const Rows&, int, int, const Matrix&, int, Floats*);

}  // namespace baton
