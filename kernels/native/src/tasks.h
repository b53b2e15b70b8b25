// How a product is split into tasks for the pool.
#pragma once

#include <algorithm>

#include "matrix.h"
#include "operands.h"
#include "pool.h"

namespace baton {

inline int blocks_of(const Rows& rows) { return (rows.count + kTaskRows - 1) / kTaskRows; }

// Panels that one task takes one after the other: what it fetches ahead at the end of one is the next.
constexpr int kRunWords = 64 * 1024;
// Runs for each thread at least, if there are so many panels.
constexpr int kRunsPerThread = 8;

// Panels of a run at most, of `panels` that all threads share.
inline int longest_run(const Pool& pool, int panels) {
  return std::max(1, panels / (kRunsPerThread * pool.num_threads()));
}

// The tasks of one product. Its panels are taken in runs, and the last quarter of the last product one
// by one, so that threads end at about the same time. Blocks of a panel are neighbours: it is read from
// memory once.
struct Tasks {
  int blocks;
  int size;      // panels of a run
  int num_runs;  // with several blocks none, nor without rows
  int count;

  Tasks(const Rows& rows, const Matrix& matrix, int longest, bool is_last)
      : blocks(blocks_of(rows)),
        size(std::clamp(kRunWords / (matrix.words * kPanel), 1, longest)) {
    const int panels = matrix.num_panels();
    num_runs = blocks == 1 ? (is_last ? panels * 3 / 4 : panels) / size : 0;
    count = num_runs + (panels - num_runs * size) * blocks;
  }

  // Calls body(panel, block) for what task `task` takes.
  template <class Body>
  void take(int task, Body&& body) const {
    if (task < num_runs) {
      for (int i = 0; i < size; ++i) body(task * size + i, 0);
      return;
    }
    const int own = task - num_runs;
    body(num_runs * size + own / blocks, own % blocks);
  }
};

}  // namespace baton
