// What two cores can do at best: copies of 4 MiB on one core, the same bytes from one core to the
// other, and the way of one cache line there and back. Prints JSON.
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr size_t kBytes = size_t(4) << 20;
constexpr int kCopies = 100;
constexpr int kTurns = 50'000;

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void stay_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

char* touched() {
  char* data = static_cast<char*>(std::aligned_alloc(4096, kBytes));
  std::memset(data, 1, kBytes);
  return data;
}

double median(std::vector<int64_t> times) {
  std::sort(times.begin(), times.end());
  return double(times[times.size() / 2]);
}

template <class Work>
int64_t timed(Work&& work) {
  const int64_t before = now_ns();
  work();
  return now_ns() - before;
}

struct alignas(128) Word {
  std::atomic<int> value{0};
  void wait(int wanted) const {
    while (value.load(std::memory_order_acquire) != wanted) {
    }
  }
};

double copy_ns(char* to, const char* from) {
  std::vector<int64_t> times;
  for (int i = 0; i < kCopies; ++i) times.push_back(timed([&] { std::memcpy(to, from, kBytes); }));
  return median(times);
}

// One core writes what the other reads, by turns: the time of both.
double across_ns(char* shared, const char* from, int second) {
  Word turn;
  std::vector<int64_t> times(kCopies);
  std::thread reader([&] {
    stay_on(second);
    char* to = touched();
    for (int i = 0; i < kCopies; ++i) {
      turn.wait(2 * i + 1);
      times[i] += timed([&] { std::memcpy(to, shared, kBytes); });
      turn.value.store(2 * i + 2, std::memory_order_release);
    }
    std::free(to);
  });
  for (int i = 0; i < kCopies; ++i) {
    turn.wait(2 * i);
    times[i] += timed([&] { std::memcpy(shared, from, kBytes); });
    turn.value.store(2 * i + 1, std::memory_order_release);
  }
  reader.join();
  return median(times);
}

double round_trip_ns(int second) {
  Word there, back;
  std::thread other([&] {
    stay_on(second);
    for (int i = 1; i <= kTurns; ++i) {
      there.wait(i);
      back.value.store(i, std::memory_order_release);
    }
  });
  const int64_t all = timed([&] {
    for (int i = 1; i <= kTurns; ++i) {
      there.value.store(i, std::memory_order_release);
      back.wait(i);
    }
  });
  other.join();
  return double(all) / kTurns;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int first = std::atoi(argv[1]), second = std::atoi(argv[2]);
  stay_on(first);
  char *a = touched(), *b = touched();
  std::printf("{\"copy_gb_per_s\": %.2f, \"across_gb_per_s\": %.2f, \"round_trip_ns\": %.0f}\n",
              kBytes / copy_ns(b, a), kBytes / across_ns(b, a, second), round_trip_ns(second));
}
