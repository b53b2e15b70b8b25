// XXH3-64 (Collet's specification, seed 0, default secret) of long inputs, alone or while copying.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton {

// Shorter inputs are hashed in another way, which is not written here.
constexpr size_t kShortestChecksum = 241;

uint64_t checksum(const void* data, size_t size);

// The checksum of bytes that are read, or written, from their beginning on: the caches have them still.
class RunningChecksum {
 public:
  RunningChecksum(const void* data, size_t size);
  // All before `end` are there.
  void read_to(size_t end);
  // All are there.
  uint64_t result();

 private:
  const uint8_t* data_;
  size_t size_;
  size_t blocks_ = 0;  // that were read
  alignas(64) uint64_t sums_[8];
};

// Copies, and returns the checksum of what was written: every byte is read once.
uint64_t copy_checksum(void* to, const void* from, size_t size);

// Ranges of memory, as many for each item as lie between its end and that of the one before.
struct Ranges {
  void* const* starts;
  const size_t* sizes;
  const int64_t* ends;  // [count of items]
};

// Copies the bytes of each item from its sources to its targets, which are cut in another way, and
// returns the checksum of what was written; without targets, of what was read. scratch has room for
// an item's bytes, at least kShortestChecksum each.
void copy_ranges(const Ranges* to, const Ranges& from, int64_t count, uint8_t* scratch,
                 uint64_t* checksums);

}  // namespace baton
