// Runs jobs of changing sizes and sleeps in between; exits with 1 if a task ran not exactly once.
//
//   pool_stress THREADS JOBS             one pool
//   pool_stress THREADS JOBS FILE        two, whose cores are lent by FILE
//   pool_stress member FILE OWN SPARE    one with a lease, until it is killed: says on its output what it did
//   pool_stress busy FILE OWN SPARE      the same, but never idle
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "threads/pool.h"
#include "threads/spin.h"

using namespace baton;

namespace {

uint32_t next(uint32_t& random) { return (random = random * 1664525u + 1013904223u) >> 16; }

bool stress(Pool& pool, int num_jobs, uint32_t random) {
  std::vector<std::atomic<int>> runs(512);
  for (int job = 0; job < num_jobs; ++job) {
    if (job % 16 == 0) pool.take();
    const int num_tasks = int(next(random) % (job % 7 == 0 ? 400 : 9));
    for (int task = 0; task < num_tasks; ++task) runs[task] = 0;
    pool.run(num_tasks, [&](int task, int) { ++runs[task]; });
    for (int task = 0; task < num_tasks; ++task)
      if (runs[task] != 1) return false;
    if (job % 32 == 31) pool.lend();
    if (job % 2000 == 0) usleep(300);  // long enough for the threads to fall asleep
  }
  return true;
}

bool stress_two(int num_threads, int num_jobs, const char* file) {
  std::atomic<bool> is_good = true;
  auto live = [&](uint32_t random) {
    CoreLease lease;
    if (lease.join(file, num_threads, 2 * num_threads) != CoresJoin::kDone) is_good = false;
    Pool pool(num_threads, nullptr, num_threads);
    pool.share(lease);
    if (!stress(pool, num_jobs, random)) is_good = false;
  };
  std::thread other(live, 2);
  live(1);
  other.join();
  return is_good && access(file, F_OK) != 0;
}

int64_t now_ns() { return spin_clock_ns(); }

// Lines: "join NS CORES", "take NS CORE" of each own core, "task BEGIN CORE" on a borrowed one, "lend NS",
// "all NS" when it works with every core that there is. Each line is one write, so none is torn by a kill.
void say(const char* what, int64_t ns, int number) {
  char line[64];
  const int size = std::snprintf(line, sizeof(line), "%s %lld %d\n", what, (long long)ns, number);
  if (write(STDOUT_FILENO, line, size) != size) _exit(3);
}

void live(const char* file, int num_own, int num_spare, bool is_ever_idle) {
  CoreLease lease;
  if (lease.join(file, num_own, num_own + num_spare) != CoresJoin::kDone) _exit(2);
  say("join", now_ns(), lease.num_cores());
  Pool pool(num_own, nullptr, num_spare);
  pool.share(lease);
  uint32_t random = uint32_t(getpid());
  SpunTask tasks[64];
  for (;;) {
    pool.take();
    const int64_t taken = now_ns();
    for (int core = 0; core < lease.num_cores(); ++core)
      if (lease.owns(core)) say("take", taken, core);
    for (int jobs = next(random) % 8; jobs >= 0; --jobs) {
      const int count = 8 + next(random) % 24;
      std::memset(tasks, 0, sizeof(tasks));
      const int width = spin(pool, count, 1000 * (10 + next(random) % 90), tasks);
      for (int task = 0; task < count; ++task) {
        if (tasks[task].begin_ns == 0) _exit(1);
        if (tasks[task].core >= 0) say("task", tasks[task].begin_ns, tasks[task].core);
      }
      if (width == lease.num_cores()) say("all", now_ns(), width);
    }
    if (!is_ever_idle) continue;
    say("lend", now_ns(), 0);
    pool.lend();
    usleep(next(random) % 4000);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const bool is_member = std::strcmp(arguments[1], "member") == 0;
  if (is_member || std::strcmp(arguments[1], "busy") == 0) {
    live(arguments[2], std::atoi(arguments[3]), std::atoi(arguments[4]), is_member);
    return 0;
  }
  const int num_threads = std::atoi(arguments[1]), num_jobs = std::atoi(arguments[2]);
  if (count > 3) return !stress_two(num_threads, num_jobs, arguments[3]);
  Pool pool(num_threads, nullptr, 0);
  return !stress(pool, num_jobs, 1);
}
