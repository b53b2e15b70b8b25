// Choice of a token per row of logits: temperature, min-p, top-k, top-p, then the inverse CDF.
#pragma once

#include <cstddef>
#include <cstdint>

#include "threads/pool.h"

namespace baton {

// How one row is chosen from. Of tokens with equal logits a filter keeps all or none.
struct RowChoice {
  double number;      // in [0, 1)
  int64_t top_k;      // 0: off
  float temperature;  // 0: the first of the most likely tokens
  float top_p;        // 1: off
  float min_p;        // 0: off
};

// logits: float32 [rows][vocab], rows `stride` numbers apart; tokens: -1 for a row that has NaN or +inf, or
// only -inf. A row's token depends on that row alone. Without a pool the caller does all rows.
void choose_tokens(Pool* pool, const float* logits, size_t stride, int rows, int vocab,
                   const RowChoice* choices, int64_t* tokens);

// The stream that a row's numbers come from.
struct RowDraw {
  uint64_t seed;
  uint32_t index;  // of the sample
  uint32_t purpose;
};

// The number of a position in [0, 1), with 53 random bits: Philox4x32-10 of J. K. Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011).
double draw_uniform(const RowDraw& draw, uint32_t position);

}  // namespace baton
