// Runs jobs of changing sizes and sleeps in between; exits with 1 if a task ran not exactly once.
#include <unistd.h>

#include <cstdlib>

#include "pool.h"

int main(int, char** arguments) {
  baton::Pool pool(std::atoi(arguments[1]), nullptr);
  const int num_jobs = std::atoi(arguments[2]);
  std::vector<std::atomic<int>> runs(512);
  uint32_t random = 1;
  for (int job = 0; job < num_jobs; ++job) {
    random = random * 1664525u + 1013904223u;
    const int num_tasks = int((random >> 20) % (job % 7 == 0 ? 400 : 9));
    for (int task = 0; task < num_tasks; ++task) runs[task] = 0;
    pool.run(num_tasks, [&](int task, int) { ++runs[task]; });
    for (int task = 0; task < num_tasks; ++task)
      if (runs[task] != 1) return 1;
    if (job % 2000 == 0) usleep(300);  // long enough for the threads to fall asleep
  }
  return 0;
}
