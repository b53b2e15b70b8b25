#include "encoder/gates.h"

#include <algorithm>

namespace baton {
namespace {

// Numbers of a task at least: to wake a thread for fewer takes longer than they do.
constexpr int kTaskNumbers = 16384;

void gate_row(const Gates& g, int row) {
  const float* from = g.gates + row * g.stride;
  const float* ups = g.ups != nullptr ? g.ups + row * g.stride : nullptr;
  float* to = g.out + int64_t(row) * g.size;
  for (int i = 0; i < g.size; i += kLanes) {
    const int left = g.size - i;
    const Floats x = widen_some(from + i, left);
    const Floats y = ups != nullptr ? gated(g.kind, x, widen_some(ups + i, left)) : activate(g.kind, x);
    if (left >= kLanes) {
      store(to + i, y);
    } else {
      float some[kLanes];
      store(some, y);
      std::copy_n(some, left, to + i);
    }
  }
}

}  // namespace

void gate_rows(Pool& pool, const Gates& g) {
  const int rows = std::max(1, kTaskNumbers / g.size);
  pool.run((g.count + rows - 1) / rows, [&](int task, int) {
    for (int row = task * rows; row < std::min(g.count, (task + 1) * rows); ++row) gate_row(g, row);
  });
}

}  // namespace baton
