// The ranks that share one mapping: who is there, how far each is, and what broke the group.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace baton {

// What a rank was doing; kernels/native/ranks.py names the same numbers.
enum class Act : int32_t {
  kNone = 0,
  kAllReduce = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kBarrier = 4,
  kSend = 5,
  kDrain = 6,
  kReceive = 7,
};

// Why a group is broken.
enum class Reason : int32_t {
  kNone = 0,
  kLate = 1,    // the rank did not come in time
  kDead = 2,    // its process ended
  kLeft = 3,    // it closed
  kOther = 4,   // it is in another operation, or in this one on other terms
  kAbsent = 5,  // it never joined
};

// The first failure of a group: what every rank of it is told.
struct Failure {
  Reason reason;
  int32_t rank;      // the one that is missing
  int32_t found_by;  // the one that says so
  Act act;           // what that one was doing
  Act other;         // of kOther: what the missing one was doing
};

// Why a mapping was not joined.
enum class Join : int32_t {
  kDone = 0,
  kTaken = 1,   // another process or thread is this rank, or was it
  kSize = 2,    // the file has another size: the ranks have different settings
  kSystem = 3,  // the system refused
};

enum class Waited : int32_t { kReached = 0, kBroken = 1, kNothing = 2 };

// What one rank says of itself. Others write `sleepers` only. Neighbouring lines are fetched in pairs.
struct alignas(128) MemberLine {
  // How much of the rank's work the others may look at; a futex.
  std::atomic<uint32_t> count;
  // Threads that sleep until `count` grows.
  std::atomic<uint32_t> sleepers;
  std::atomic<uint32_t> state;
  // By the parity of a stage: its operation, and what its ranks must agree on besides. Written before
  // `count`.
  struct {
    Act act;
    uint64_t terms;
  } said[2];
};

struct alignas(128) GroupHeader {
  std::atomic<uint64_t> failure;  // a packed Failure, or 0
};

// One rank of a mapping, which it joins for as long as it lives. Not for two threads at a time.
//
// A rank holds a lock on one byte of the file, which the kernel lets go when its process ends: so a
// dead rank is known from a slow one. A fork that keeps the descriptor keeps the lock; then a dead
// rank is found late, not dead.
class Members {
 public:
  // `body` bytes follow the lines in the mapping. Waits at most `timeout_ns`, and spins for
  // `spin_ns` of that before it sleeps.
  Members(int rank, int size, size_t body, int64_t timeout_ns, int64_t spin_ns);
  ~Members();
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  static size_t bytes(int size, size_t body);

  // Maps the file, which stays the caller's. Once.
  Join join(int fd);

  int rank() const { return rank_; }
  int size() const { return size_; }
  char* body() const { return body_; }
  MemberLine& line(int rank) const { return lines_[rank]; }

  // Lets the others see all that this rank has written before.
  void publish(uint32_t count);

  // Returns when `peer` has published `count`. Otherwise the group is broken, by this rank if need be.
  Waited wait(int peer, uint32_t count, Act act) { return wait_for(peer, count, act, timeout_ns_, true); }
  // The same, but that the peer is slow breaks nothing: kNothing after `patience_ns`.
  Waited look(int peer, uint32_t count, Act act, int64_t patience_ns) {
    return wait_for(peer, count, act, patience_ns, false);
  }

  bool is_broken() const { return header_->failure.load(std::memory_order_acquire) != 0; }
  Failure failure() const;
  // Breaks the group unless it is broken.
  void fail(Reason reason, int peer, Act act, Act other = Act::kNone);

 private:
  Waited wait_for(int peer, uint32_t count, Act act, int64_t limit_ns, bool is_limit_late);
  Waited sleep_for(int peer, uint32_t count, Act act, int64_t until_ns, bool is_limit_late);
  Reason why_gone(int peer) const;
  bool lock_own_byte() const;

  const int rank_;
  const int size_;
  const size_t bytes_;
  const int64_t timeout_ns_;
  const int64_t spin_ns_;
  int fd_ = -1;
  int member_pid_ = 0;
  GroupHeader* header_ = nullptr;
  MemberLine* lines_ = nullptr;
  char* body_ = nullptr;
};

}  // namespace baton
