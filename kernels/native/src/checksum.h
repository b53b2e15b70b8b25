// XXH3-64 (Collet's specification, seed 0, default secret) of long inputs, alone or while copying.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton {

// Shorter inputs are hashed in another way, which is not written here.
constexpr size_t kShortestChecksum = 241;

uint64_t checksum(const void* data, size_t size);

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
