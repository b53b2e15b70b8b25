#include "ranks/members.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>

namespace baton {
namespace {

enum State : uint32_t { kNotYet = 0, kHere = 1, kGone = 2 };

// A sleeper looks after this time whether its peer still lives, and then less and less often.
constexpr int64_t kFirstLookNs = 10'000'000;
constexpr int64_t kLookNs = 160'000'000;
// Rounds of spinning between two looks at the clock.
constexpr int kRounds = 32;
// Who spins for longer may have the core that its peer waits for.
constexpr int64_t kYieldNs = 200'000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// The counts of long-lived groups wrap around.
inline bool is_reached(uint32_t count, uint32_t wanted) { return int32_t(count - wanted) >= 0; }

// Not the private kind: ranks of one process may have mapped the file at two places.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, int64_t for_ns) {
  const timespec limit{for_ns / 1'000'000'000, for_ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}
void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

size_t lines_end(int size) { return sizeof(GroupHeader) + size_t(size) * sizeof(MemberLine); }

}  // namespace

Members::Members(int rank, int size, size_t body, int64_t timeout_ns, int64_t spin_ns)
    : rank_(rank), size_(size), bytes_(bytes(size, body)), timeout_ns_(timeout_ns), spin_ns_(spin_ns) {}

size_t Members::bytes(int size, size_t body) {
  constexpr size_t kPage = 4096;
  return (lines_end(size) + kPage - 1) / kPage * kPage + (body + kPage - 1) / kPage * kPage;
}

Join Members::join(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) return Join::kSystem;
  if (size_t(status.st_size) != bytes_) return Join::kSize;
  // Locks belong to an opened file, so every rank opens it by itself.
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  fd_ = open(path, O_RDWR | O_CLOEXEC);
  if (fd_ < 0) return Join::kSystem;
  if (!lock_own_byte()) return errno == EAGAIN || errno == EACCES ? Join::kTaken : Join::kSystem;
  void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED) return Join::kSystem;
  header_ = static_cast<GroupHeader*>(base);
  lines_ = reinterpret_cast<MemberLine*>(header_ + 1);
  body_ = static_cast<char*>(base) + bytes(size_, 0);
  // One life per rank: a second one would begin with stages that are over.
  if (lines_[rank_].state.load() != kNotYet) return Join::kTaken;
  lines_[rank_].state.store(kHere);
  member_pid_ = getpid();
  return Join::kDone;
}

Members::~Members() {
  // A fork is not the rank.
  if (member_pid_ == getpid()) {
    lines_[rank_].state.store(kGone);
    futex_wake(lines_[rank_].count);
  }
  if (header_ != nullptr) munmap(header_, bytes_);
  if (fd_ >= 0) close(fd_);
}

void Members::publish(uint32_t count) {
  MemberLine& own = lines_[rank_];
  // In one order with `sleepers`: either this rank sees the sleeper, or that one the count.
  own.count.store(count, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(own.count);
}

Failure Members::failure() const {
  const uint64_t packed = header_->failure.load(std::memory_order_acquire);
  return {Reason(packed & 0xff), int32_t(packed >> 8 & 0xffff), int32_t(packed >> 24 & 0xffff),
          Act(packed >> 40 & 0xff), Act(packed >> 48 & 0xff)};
}

void Members::fail(Reason reason, int peer, Act act, Act other) {
  const uint64_t packed = uint64_t(reason) | uint64_t(peer) << 8 | uint64_t(rank_) << 24 |
                          uint64_t(act) << 40 | uint64_t(other) << 48;
  uint64_t none = 0;
  if (!header_->failure.compare_exchange_strong(none, packed)) return;
  for (int rank = 0; rank < size_; ++rank) futex_wake(lines_[rank].count);
}

Waited Members::wait_for(int peer, uint32_t count, Act act, int64_t limit_ns, bool is_limit_late) {
  const std::atomic<uint32_t>& theirs = lines_[peer].count;
  if (is_reached(theirs.load(std::memory_order_acquire), count)) return Waited::kReached;
  const int64_t start = now_ns();
  for (int64_t spun = 0; spun == 0 || spun < spin_ns_; spun = now_ns() - start) {
    if (spun > kYieldNs) sched_yield();
    for (int round = 0; round < kRounds; ++round) {
      pause();
      if (is_reached(theirs.load(std::memory_order_acquire), count)) return Waited::kReached;
    }
  }
  return sleep_for(peer, count, act, start + limit_ns, is_limit_late);
}

Waited Members::sleep_for(int peer, uint32_t count, Act act, int64_t until_ns, bool is_limit_late) {
  MemberLine& line = lines_[peer];
  for (int64_t look_ns = kFirstLookNs;; look_ns = std::min(2 * look_ns, kLookNs)) {
    if (is_broken()) return Waited::kBroken;
    const int64_t left = until_ns - now_ns();
    line.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = line.count.load(std::memory_order_seq_cst);
    if (!is_reached(seen, count)) futex_wait(line.count, seen, std::clamp<int64_t>(left, 1, look_ns));
    line.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    // What a rank published before it went is good.
    const Reason gone = why_gone(peer);
    if (is_reached(line.count.load(std::memory_order_acquire), count)) return Waited::kReached;
    if (gone != Reason::kNone) {
      fail(gone, peer, act);
    } else if (left <= 0) {
      if (!is_limit_late) return Waited::kNothing;
      fail(line.state.load() == kNotYet ? Reason::kAbsent : Reason::kLate, peer, act);
    }
  }
}

Reason Members::why_gone(int peer) const {
  const uint32_t state = lines_[peer].state.load();
  if (state == kNotYet) return Reason::kNone;
  if (state == kGone) return Reason::kLeft;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = peer;
  lock.l_len = 1;
  if (fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) return Reason::kNone;
  // It may have left between the two looks.
  return lines_[peer].state.load() == kGone ? Reason::kLeft : Reason::kDead;
}

bool Members::lock_own_byte() const {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank_;
  lock.l_len = 1;
  return fcntl(fd_, F_OFD_SETLK, &lock) == 0;
}

}  // namespace baton
