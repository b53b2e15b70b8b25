// The cores of one host, which its workers lend to each other.
//
// Each worker maps the same file. A core is one word in it: who owns the core and who uses it. Every change is one
// atomic step on one word, so a process that is killed between any two instructions leaves nothing half done. What it
// left claimed is known by its lock on the file, which the kernel lets go of, and is taken by the next that looks.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace baton {

constexpr int kMaxMembers = 64;
constexpr int kMaxCores = 512;

// Why a file was not joined; kernels/native/cores.py names the same numbers.
enum class CoresJoin : int32_t {
  kDone = 0,
  kFull = 1,     // too many members, or cores
  kForeign = 2,  // others than its user may write it, or it is no plain file
  kFormat = 3,   // another version has made it, or it is another kind of file
  kBusy = 4,     // another process has been joining for too long
  kSystem = 5,   // the system refused; see errno
};

// What a member has and uses.
struct CoreUse {
  int32_t own;
  int32_t lent;      // own ones that others use now
  int32_t borrowed;  // of others, used now
  int64_t borrowed_ns;
  int64_t recalled;  // times that an owner took a borrowed core back
};

// One member, for as long as it is joined. `holds` and `use` are for any thread, the rest for one at a time.
class CoreLease {
 public:
  CoreLease() = default;
  ~CoreLease();
  CoreLease(const CoreLease&) = delete;
  CoreLease& operator=(const CoreLease&) = delete;

  // Makes the file if there is none. The member is idle: its cores are lent. Once. num_usable: the cores that it may
  // use, its own among them.
  CoresJoin join(const char* path, int num_own, int num_usable);
  // Of the system, behind kSystem.
  int error() const { return error_; }
  // Gives everything back; the last member removes the file. Idempotent. `holds` is false from then on.
  void leave();

  // The own cores from now on, whoever used them: that one is told by `holds`.
  void take();
  // Lends them until `take`. What is borrowed is not given back by it.
  void lend();
  bool is_busy() const { return is_busy_; }
  bool owns(int core) const {
    return place_ != 0 && owner_of(claims_[core].load(std::memory_order_relaxed)) == uint64_t(place_);
  }

  // A core of another that nobody uses, or -1.
  int borrow();
  void give_back(int core);
  // Whether a borrowed core may still be used. One load of shared memory.
  bool holds(int core) const {
    return claims_[core].load(std::memory_order_relaxed) >> 16 == own_.load(std::memory_order_relaxed);
  }

  // Of all members, present and past.
  int num_cores() const { return int(header_->num_cores.load(std::memory_order_acquire)); }
  CoreUse use() const;

 private:
  struct Header {
    std::atomic<uint64_t> format;
    std::atomic<uint32_t> num_cores;
    // The number of the life of each member's place: a claim of an earlier one is nobody's.
    std::atomic<uint32_t> lives[kMaxMembers];
    // The most cores that a member may use.
    std::atomic<uint32_t> num_usable;
  };
  static constexpr int kClaimsAt = 512;
  static constexpr int kBytes = kClaimsAt + kMaxCores * 8;

  // The owner in the low 16 bits, then the user with the number of its life. 0: none.
  using Claim = std::atomic<uint64_t>;
  // In place of the owner: the core is not used, because those of the members are as many as there may be.
  static constexpr uint64_t kRetired = 0xffff;
  static uint64_t owner_of(uint64_t claim) { return claim & 0xffff; }
  static uint64_t user_of(uint64_t claim) { return claim >> 16; }
  static uint64_t place_of(uint64_t user) { return user & 0xffff; }

  CoresJoin enter();
  bool is_at_path() const;
  CoresJoin join_behind_door(int num_own, int num_usable);
  bool is_locked(int place) const;
  bool has_owner(uint64_t claim) const;
  bool take_cores(int num_own);
  void retire_surplus();
  bool is_gone(uint64_t user) const;
  bool free_cores_of_gone();

  std::string path_;
  int pid_ = 0;
  int error_ = 0;
  int fd_ = -1;
  Header* header_ = nullptr;
  Claim* claims_ = nullptr;
  int place_ = 0;  // from 1 on; 0: not joined
  // Place and life, as in a claim; 0 would be nobody.
  std::atomic<uint64_t> own_{~uint64_t(0)};
  bool is_busy_ = false;
  int64_t looked_ns_ = 0;
  std::atomic<int64_t> since_ns_[kMaxCores] = {};
  std::atomic<int64_t> borrowed_ns_{0};
  std::atomic<int64_t> recalled_{0};
};

}  // namespace baton
