// Jobs that compute nothing.
#pragma once

#include <time.h>

#include <cstdint>

#include "threads/pool.h"

namespace baton {

// When a task of a job was computed, by the monotonic clock, and where.
struct SpunTask {
  int64_t begin_ns;
  int64_t end_ns;
  int32_t thread;
  int32_t core;  // the borrowed one, as the lease numbers it; -1: one of the pool's own
};

inline int64_t spin_clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Each of `count` tasks takes `ns`.
inline int spin(Pool& pool, int count, int64_t ns, SpunTask* tasks) {
  pool.run(count, [&](int task, int thread) {
    SpunTask& own = tasks[task];
    own.thread = thread;
    own.core = pool.borrowed_core(thread);
    own.begin_ns = own.end_ns = spin_clock_ns();
    while (own.end_ns < own.begin_ns + ns) own.end_ns = spin_clock_ns();
  });
  return pool.width();
}

}  // namespace baton
