// Threads that share the tasks of one job at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace baton {

// A thread takes the next task when it is done with its last one. So a thread that loses its core
// to another process holds up one task, not its whole share. A thread that sleeps is not waited for.
class Pool {
 public:
  // The caller of `run` is the first of `num_threads`. With `cpus`, thread i > 0 stays on cpus[i].
  Pool(int num_threads, const int* cpus);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return int(threads_.size()) + 1; }

  // Calls body(task, thread) for every task in [0, num_tasks), and returns when all are done.
  template <class Body>
  void run(int num_tasks, Body&& body) {
    if (threads_.empty() || num_tasks <= 1) {
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

  void run_job(int num_tasks, Call call, void* context);
  void work_on(uint32_t job, int thread);
  void serve(int thread, int cpu);

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
