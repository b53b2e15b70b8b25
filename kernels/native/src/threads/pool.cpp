#include "threads/pool.h"

#include <pthread.h>
#include <sched.h>

namespace baton {
namespace {

// Waiting for the next job costs nothing but a core for this many rounds (about 50 microseconds);
// after that the thread sleeps, and waking it takes about as long.
constexpr int kSpins = 2000;
// Of a grant: more than there are cores.
constexpr uint32_t kGrant = 1024;

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

Pool::Pool(int num_own, const int* cpus, int num_spare)
    : num_own_(num_own), width_(num_own), spares_(num_spare) {
  for (int thread = 1; thread < num_own; ++thread)
    threads_.emplace_back([this, thread, cpu = cpus ? cpus[thread] : -1] { serve(thread, cpu); });
  for (int number = 0; number < num_spare; ++number)
    threads_.emplace_back([this, number] { serve_spare(number); });
}

Pool::~Pool() {
  lend();
  closing_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  for (Spare& spare : spares_) {
    spare.grant.fetch_add(kGrant);
    spare.grant.notify_one();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Pool::take() {
  if (lease_ != nullptr) lease_->take();
}

void Pool::lend() {
  if (lease_ == nullptr || !lease_->is_busy()) return;
  lease_->lend();
  for (Spare& spare : spares_)
    if (spare.core >= 0) grant(spare, -1);
  width_ = num_own_;
}

// Has the spare threads use what cores there are for them.
void Pool::borrow() {
  int width = num_own_;
  bool is_more = true;
  for (Spare& spare : spares_) {
    if (spare.core >= 0 && !lease_->holds(spare.core)) grant(spare, -1);
    if (spare.core < 0 && is_more) {
      const int core = lease_->borrow();
      is_more = core >= 0;
      if (is_more) grant(spare, core);
    }
    width += spare.core >= 0;
  }
  width_ = width;
}

// core: -1 for none; the thread learns it before its next task, and is not woken for it.
void Pool::grant(Spare& spare, int core) {
  if (spare.core >= 0) lease_->give_back(spare.core);
  spare.core = core;
  const uint32_t number = spare.grant.load(std::memory_order_relaxed) / kGrant + 1;
  spare.grant.store(number * kGrant + uint32_t(core + 1), std::memory_order_release);
  if (core >= 0) spare.grant.notify_one();
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
  work_on(job, 0, [] { return true; });
  for (int spins = 0; num_done_.load(std::memory_order_acquire) != uint32_t(num_tasks); ++spins) {
    if (spins < kSpins)
      pause();
    else
      sched_yield();  // whoever has the last task may be waiting for this core
  }
}

// may: whether the thread may take one more task.
template <class May>
void Pool::work_on(uint32_t job, int thread, May&& may) {
  uint64_t seen = unclaimed_.load(std::memory_order_acquire);
  while (uint32_t(seen >> 32) == job && uint32_t(seen) > 0 && may()) {
    if (!unclaimed_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                          std::memory_order_acquire))
      continue;
    call_(context_, int(num_tasks_ - uint32_t(seen)), thread);
    num_done_.fetch_add(1, std::memory_order_acq_rel);
    seen = unclaimed_.load(std::memory_order_acquire);
  }
}

// Spins for a job after `seen`; returns the last one.
uint32_t Pool::next_job(uint32_t seen) const {
  uint32_t job = job_.load(std::memory_order_acquire);
  for (int spins = 0; job == seen && spins < kSpins; ++spins) {
    pause();
    job = job_.load(std::memory_order_acquire);
  }
  return job;
}

void Pool::serve(int thread, int cpu) {
  if (cpu >= 0) stay_on(cpu);
  uint32_t seen = 0;
  while (!closing_.load(std::memory_order_acquire)) {
    const uint32_t job = next_job(seen);
    if (job == seen) {
      job_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = job;
    work_on(job, thread, [] { return true; });
  }
}

void Pool::serve_spare(int number) {
  Spare& spare = spares_[number];
  uint32_t seen = 0;
  while (!closing_.load(std::memory_order_acquire)) {
    const uint32_t grant = spare.grant.load(std::memory_order_acquire);
    const int core = int(grant % kGrant) - 1;
    auto may = [&] {
      return core >= 0 && spare.grant.load(std::memory_order_relaxed) == grant && lease_->holds(core);
    };
    if (!may()) {
      spare.grant.wait(grant, std::memory_order_acquire);
      continue;
    }
    const uint32_t job = next_job(seen);
    if (job == seen) {
      if (may()) job_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = job;
    work_on(job, num_own_ + number, may);
  }
}

}  // namespace baton
