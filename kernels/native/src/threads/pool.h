// Threads that share the tasks of one job at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "threads/cores.h"

namespace baton {

// A thread takes the next task when it is done with its last one. So a thread that loses its core
// to another process holds up one task, not its whole share. A thread that sleeps is not waited for.
//
// Spare threads sleep until the pool's lease has a borrowed core for them. They look before each task whether they still
// may use it, so its owner waits for one task at most; the other threads do the rest of the job.
class Pool {
 public:
  // The caller of `run` is the first of `num_own` threads. With `cpus`, thread i > 0 of these stays on cpus[i].
  Pool(int num_own, const int* cpus, int num_spare);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Whose cores the spare threads use. It must outlive the pool. Once; not while a job runs.
  void share(CoreLease& lease) { lease_ = &lease; }
  // Makes the lease busy, or idle: then the spare threads sleep. Not while a job runs.
  void take();
  void lend();

  // Numbers of threads are below it.
  int num_threads() const { return num_own_ + int(spares_.size()); }
  // Threads of the next job, as far as is known now.
  int width() const { return width_; }
  // Of a thread that works on a job: the lease's core that it uses, or -1 if it is an own one.
  int borrowed_core(int thread) const { return thread < num_own_ ? -1 : spares_[thread - num_own_].core; }

  // Calls body(task, thread) for every task in [0, num_tasks), and returns when all are done.
  template <class Body>
  void run(int num_tasks, Body&& body) {
    if (lease_ != nullptr && num_tasks > 1) borrow();
    if (width_ == 1 || num_tasks <= 1) {
      for (int task = 0; task < num_tasks; ++task) body(task, 0);
      return;
    }
    auto call = [](void* context, int task, int thread) {
      (*static_cast<std::remove_reference_t<Body>*>(context))(task, thread);
    };
    run_job(num_tasks, call, &body);
  }

 private:
  using Call = void (*)(void* context, int task, int thread);

  struct alignas(64) Spare {
    // The number of the grant above the core and one; or above 0 if there is none. A futex.
    std::atomic<uint32_t> grant{0};
    // As the caller of `run` knows it; -1: none.
    int core = -1;
  };

  void run_job(int num_tasks, Call call, void* context);
  template <class May>
  void work_on(uint32_t job, int thread, May&& may);
  void serve(int thread, int cpu);
  void serve_spare(int number);
  uint32_t next_job(uint32_t seen) const;
  void borrow();
  void grant(Spare& spare, int core);

  const int num_own_;
  int width_;
  CoreLease* lease_ = nullptr;
  std::vector<Spare> spares_;
  std::vector<std::thread> threads_;
  // What the job is. Read after a task of it was claimed: until that is done, nobody changes them.
  Call call_ = nullptr;
  void* context_ = nullptr;
  uint32_t num_tasks_ = 0;
  // The number of the job above how many of its tasks are unclaimed, so that one step says both.
  alignas(64) std::atomic<uint64_t> unclaimed_{0};
  alignas(64) std::atomic<uint32_t> num_done_{0};
  alignas(64) std::atomic<uint32_t> job_{0};
  std::atomic<bool> closing_{false};
};

// Calls body(row, thread) for every row, several of them per task.
template <class Body>
void run_rows(Pool& pool, int rows, Body&& body) {
  constexpr int kRowsPerTask = 8;
  pool.run((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int task, int thread) {
    const int end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int row = task * kRowsPerTask; row < end; ++row) body(row, thread);
  });
}

}  // namespace baton
