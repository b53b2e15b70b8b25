#include "threads/cores.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace baton {
namespace {

// "BATON", then the version of this layout.
constexpr uint64_t kFormat = 0x4e4f544142000001;
// The lock of those who join or leave, then one of each place.
constexpr int kDoor = 0;
constexpr int kFirstPlace = 1;
constexpr int kDoorTries = 5000;
constexpr int64_t kDoorWaitNs = 1'000'000;
// Who wants a core that another uses looks so often whether that one still lives.
constexpr int64_t kLookNs = 100'000'000;

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

struct flock lock_of(int byte, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

bool try_lock(int fd, int byte) {
  struct flock lock = lock_of(byte, F_WRLCK);
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

void unlock(int fd, int byte) {
  struct flock lock = lock_of(byte, F_UNLCK);
  fcntl(fd, F_OFD_SETLK, &lock);
}

bool wait_lock(int fd, int byte) {
  const timespec pause{0, kDoorWaitNs};
  for (int tries = 0; tries < kDoorTries; ++tries) {
    if (try_lock(fd, byte)) return true;
    nanosleep(&pause, nullptr);
  }
  return false;
}

}  // namespace

CoreLease::~CoreLease() {
  leave();
  if (header_ != nullptr) munmap(header_, kBytes);
}

CoresJoin CoreLease::join(const char* path, int num_own, int num_usable) {
  path_ = path;
  pid_ = getpid();
  CoresJoin joined = enter();
  if (joined == CoresJoin::kDone) joined = join_behind_door(num_own, num_usable);
  if (joined == CoresJoin::kDone) {
    unlock(fd_, kDoor);
  } else {
    error_ = errno;
    leave();
  }
  return joined;
}

// Opens the file and its door.
CoresJoin CoreLease::enter() {
  for (;;) {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat status;
    if (fd_ < 0 || fstat(fd_, &status) != 0) return CoresJoin::kSystem;
    const bool is_plain = S_ISREG(status.st_mode);
    if (!is_plain || status.st_uid != geteuid() || status.st_mode & 022) return CoresJoin::kForeign;
    if (!wait_lock(fd_, kDoor)) return CoresJoin::kBusy;
    if (is_at_path()) return CoresJoin::kDone;
    // Its last member has removed it meanwhile.
    close(fd_);
  }
}

bool CoreLease::is_at_path() const {
  struct stat own, named;
  return fstat(fd_, &own) == 0 && lstat(path_.c_str(), &named) == 0 && own.st_ino == named.st_ino &&
         own.st_dev == named.st_dev;
}

// Behind the door. Zeros are a file without members: who makes one may be killed before its format is written.
CoresJoin CoreLease::join_behind_door(int num_own, int num_usable) {
  struct stat status;
  if (fstat(fd_, &status) != 0) return CoresJoin::kSystem;
  if (status.st_size != 0 && status.st_size != kBytes) return CoresJoin::kFormat;
  // Reserved, not only as long: memory that is not there would be a SIGBUS later.
  const int error = posix_fallocate(fd_, 0, kBytes);
  if (error != 0) {
    errno = error;
    return CoresJoin::kSystem;
  }
  void* base = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED) return CoresJoin::kSystem;
  static_assert(sizeof(Header) <= kClaimsAt);
  header_ = static_cast<Header*>(base);
  claims_ = reinterpret_cast<Claim*>(static_cast<char*>(base) + kClaimsAt);
  const uint64_t format = header_->format.load();
  if (format != 0 && format != kFormat) return CoresJoin::kFormat;
  header_->format.store(kFormat);
  for (int place = 1; place <= kMaxMembers && place_ == 0; ++place)
    if (try_lock(fd_, kFirstPlace + place)) place_ = place;
  if (place_ == 0) return CoresJoin::kFull;
  const uint64_t life = header_->lives[place_ - 1].fetch_add(1) + 1;
  own_.store(life << 16 | uint64_t(place_));
  header_->num_usable.store(std::max(header_->num_usable.load(), uint32_t(num_usable)));
  if (!take_cores(num_own)) return CoresJoin::kFull;
  retire_surplus();
  return CoresJoin::kDone;
}

// Behind the door, where owners are written. Cores of the dead first, then new ones.
bool CoreLease::take_cores(int num_own) {
  int missing = num_own;
  for (int core = 0; core < num_cores(); ++core) {
    uint64_t claim = claims_[core].load();
    const bool is_mine = missing > 0 && !has_owner(claim);
    const bool is_of_earlier_life = owner_of(claim) == uint64_t(place_);
    if (!is_mine && !is_of_earlier_life) continue;
    missing -= is_mine;
    // Who borrows it goes on.
    while (!claims_[core].compare_exchange_weak(claim, (claim & ~uint64_t(0xffff)) | (is_mine ? place_ : 0))) {
    }
  }
  for (; missing > 0; --missing) {
    const int core = num_cores();
    if (core == kMaxCores) return false;
    claims_[core].store(place_);
    header_->num_cores.store(uint32_t(core + 1), std::memory_order_release);
  }
  return true;
}

// Behind the door. A worker that starts before the one that it replaces has left brings cores of its own, so those
// that the other one leaves would be more than there are.
void CoreLease::retire_surplus() {
  auto is_owned = [&](uint64_t claim) { return owner_of(claim) == uint64_t(place_) || has_owner(claim); };
  int room = int(header_->num_usable.load());
  for (int core = 0; core < num_cores(); ++core) room -= is_owned(claims_[core].load());
  for (int core = 0; core < num_cores(); ++core) {
    uint64_t claim = claims_[core].load();
    if (is_owned(claim)) continue;
    const bool is_kept = room-- > 0;
    while (!is_owned(claim) &&
           !claims_[core].compare_exchange_weak(claim, is_kept ? claim & ~uint64_t(0xffff) : kRetired)) {
    }
  }
}

void CoreLease::leave() {
  // A fork is not the member.
  if (place_ != 0 && pid_ == getpid()) {
    wait_lock(fd_, kDoor);  // without it, too: what is left is known to be a dead one's
    const uint64_t own = own_.exchange(~uint64_t(0));
    bool is_last = true;
    for (int core = 0; core < num_cores(); ++core) {
      uint64_t claim = claims_[core].load(), next;
      do {
        next = user_of(claim) == own ? owner_of(claim) : claim;
        if (owner_of(next) == uint64_t(place_)) next &= ~uint64_t(0xffff);
      } while (next != claim && !claims_[core].compare_exchange_weak(claim, next));
    }
    retire_surplus();
    for (int place = 1; place <= kMaxMembers; ++place) is_last = is_last && (place == place_ || !is_locked(place));
    if (is_last && is_at_path()) unlink(path_.c_str());
    unlock(fd_, kFirstPlace + place_);
  }
  // Closing does not: the mapping keeps the opened file.
  if (fd_ >= 0 && pid_ == getpid()) unlock(fd_, kDoor);
  place_ = 0;
  is_busy_ = false;
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void CoreLease::take() {
  if (place_ == 0 || is_busy_) return;
  is_busy_ = true;
  const uint64_t own = own_.load(std::memory_order_relaxed);
  for (int core = 0; core < num_cores(); ++core)
    if (owns(core)) claims_[core].exchange(own << 16 | uint64_t(place_));
}

void CoreLease::lend() {
  if (!is_busy_) return;
  is_busy_ = false;
  for (int core = 0; core < num_cores(); ++core)
    if (owns(core)) give_back(core);
}

int CoreLease::borrow() {
  if (!is_busy_) return -1;
  const uint64_t own = own_.load(std::memory_order_relaxed);
  bool is_wanted = false;
  for (int core = 0; core < num_cores(); ++core) {
    uint64_t claim = claims_[core].load(std::memory_order_relaxed);
    is_wanted = is_wanted || (user_of(claim) != 0 && user_of(claim) != own);
    if (user_of(claim) != 0 || owner_of(claim) == uint64_t(place_) || owner_of(claim) == kRetired) continue;
    if (!claims_[core].compare_exchange_strong(claim, own << 16 | claim)) continue;
    since_ns_[core].store(now_ns(), std::memory_order_relaxed);
    return core;
  }
  return is_wanted && free_cores_of_gone() ? borrow() : -1;
}

void CoreLease::give_back(int core) {
  const uint64_t own = own_.load(std::memory_order_relaxed);
  uint64_t claim = claims_[core].load(std::memory_order_relaxed);
  bool is_mine = false;
  while (user_of(claim) == own && !is_mine)
    is_mine = claims_[core].compare_exchange_weak(claim, owner_of(claim));
  const int64_t since = since_ns_[core].exchange(0, std::memory_order_relaxed);
  if (since == 0) return;
  borrowed_ns_.fetch_add(now_ns() - since, std::memory_order_relaxed);
  if (!is_mine) recalled_.fetch_add(1, std::memory_order_relaxed);
}

CoreUse CoreLease::use() const {
  CoreUse use = {};
  use.borrowed_ns = borrowed_ns_.load(std::memory_order_relaxed);
  use.recalled = recalled_.load(std::memory_order_relaxed);
  const uint64_t own = own_.load(std::memory_order_relaxed);
  if (own == ~uint64_t(0)) return use;
  for (int core = 0; core < num_cores(); ++core) {
    const uint64_t claim = claims_[core].load(std::memory_order_relaxed);
    const bool is_own = owner_of(claim) == (own & 0xffff);
    use.own += is_own;
    use.lent += is_own && user_of(claim) != 0 && user_of(claim) != own;
    if (is_own || user_of(claim) != own) continue;
    use.borrowed += 1;
    const int64_t since = since_ns_[core].load(std::memory_order_relaxed);
    if (since != 0) use.borrowed_ns += now_ns() - since;
  }
  return use;
}

bool CoreLease::is_locked(int place) const {
  struct flock lock = lock_of(kFirstPlace + place, F_WRLCK);
  return fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

// Whether a member lives that owns the core; false for this one, whose own lock the kernel does not show it.
bool CoreLease::has_owner(uint64_t claim) const {
  const int owner = int(owner_of(claim));
  return owner != 0 && owner <= kMaxMembers && owner != place_ && is_locked(owner);
}

// A place that has begun another life meanwhile is not the one that claimed.
bool CoreLease::is_gone(uint64_t user) const {
  const int place = int(place_of(user));
  if (place < 1 || place > kMaxMembers) return true;
  const uint32_t life = header_->lives[place - 1].load();
  return life != uint32_t(user >> 16) || !is_locked(place);
}

bool CoreLease::free_cores_of_gone() {
  const int64_t now = now_ns();
  if (now - looked_ns_ < kLookNs) return false;
  looked_ns_ = now;
  const uint64_t own = own_.load(std::memory_order_relaxed);
  bool is_any = false;
  for (int core = 0; core < num_cores(); ++core) {
    uint64_t claim = claims_[core].load();
    const uint64_t user = user_of(claim);
    if (user == 0 || user == own || !is_gone(user)) continue;
    is_any = claims_[core].compare_exchange_strong(claim, owner_of(claim)) || is_any;
  }
  return is_any;
}

}  // namespace baton
