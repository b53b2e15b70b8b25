#include "pool.h"

#include <pthread.h>
#include <sched.h>

namespace baton {
namespace {

// Waiting for the next job costs nothing but a core for this many rounds (about 50 microseconds);
// after that the thread sleeps, and waking it takes about as long.
constexpr int kSpins = 2000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void stay_on(int cpu) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
#endif
}

}  // namespace

Pool::Pool(int num_threads, const int* cpus) {
  for (int thread = 1; thread < num_threads; ++thread)
    threads_.emplace_back([this, thread, cpu = cpus ? cpus[thread] : -1] { serve(thread, cpu); });
}

Pool::~Pool() {
  closing_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::run_job(int num_tasks, Call call, void* context) {
  const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
  call_ = call;
  context_ = context;
  num_tasks_ = uint32_t(num_tasks);
  num_done_.store(0, std::memory_order_relaxed);
  unclaimed_.store(uint64_t(job) << 32 | uint32_t(num_tasks), std::memory_order_release);
  job_.store(job, std::memory_order_release);
  job_.notify_all();
  work_on(job, 0);
  for (int spins = 0; num_done_.load(std::memory_order_acquire) != uint32_t(num_tasks); ++spins) {
    if (spins < kSpins)
      pause();
    else
      sched_yield();  // whoever has the last task may be waiting for this core
  }
}

void Pool::work_on(uint32_t job, int thread) {
  uint64_t seen = unclaimed_.load(std::memory_order_acquire);
  while (uint32_t(seen >> 32) == job && uint32_t(seen) > 0) {
    if (!unclaimed_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                          std::memory_order_acquire))
      continue;
    call_(context_, int(num_tasks_ - uint32_t(seen)), thread);
    num_done_.fetch_add(1, std::memory_order_acq_rel);
    seen = unclaimed_.load(std::memory_order_acquire);
  }
}

void Pool::serve(int thread, int cpu) {
  if (cpu >= 0) stay_on(cpu);
  uint32_t seen = 0;
  while (!closing_.load(std::memory_order_acquire)) {
    uint32_t job = job_.load(std::memory_order_acquire);
    for (int spins = 0; job == seen && spins < kSpins; ++spins) {
      pause();
      job = job_.load(std::memory_order_acquire);
    }
    if (job == seen) {
      job_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = job;
    work_on(job, thread);
  }
}

}  // namespace baton
