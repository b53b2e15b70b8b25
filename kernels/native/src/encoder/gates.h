// The nonlinear function of feed-forwards over many rows, by all threads: for encoders.
#pragma once

#include "threads/pool.h"
#include "vectors/rows.h"

namespace baton {

// out = act(gate), times `up` if there is one. Rows of gates and ups lie `stride` floats apart, those of `out`, which may
// be the gates, `size`.
struct Gates {
  Activation kind;
  const float* gates;
  const float* ups;  // or null
  int64_t stride;
  float* out;
  int32_t count, size;
};

void gate_rows(Pool& pool, const Gates& gates);

}  // namespace baton
