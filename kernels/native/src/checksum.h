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

}  // namespace baton
