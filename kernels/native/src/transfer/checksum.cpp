#include "transfer/checksum.h"

#include <algorithm>
#include <cstring>

#include "vectors/simd.h"

namespace baton {
namespace {

typedef uint64_t U64x8 __attribute__((vector_size(64)));

constexpr uint64_t kPrime32_1 = 0x9E3779B1u, kPrime32_2 = 0x85EBCA77u, kPrime32_3 = 0xC2B2AE3Du;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87u, kPrime64_2 = 0xC2B2AE3D27D4EB4Fu,
                   kPrime64_3 = 0x165667B19E3779F9u, kPrime64_4 = 0x85EBCA77C2B2AE63u,
                   kPrime64_5 = 0x27D4EB2F165667C5u;
constexpr size_t kStripe = 64, kStripesPerBlock = 16, kBlock = kStripe * kStripesPerBlock;

constexpr uint8_t kSecret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

inline U64x8 secret_at(size_t offset) { return load<U64x8>(kSecret + offset); }

inline void accumulate(U64x8& sums, U64x8 data, U64x8 secret) {
  const U64x8 key = data ^ secret;
  sums += __builtin_shuffle(data, U64x8{1, 0, 3, 2, 5, 4, 7, 6});
#if defined(__AVX512F__)
  sums += (U64x8)_mm512_mul_epu32((__m512i)key, _mm512_srli_epi64((__m512i)key, 32));
#else
  sums += (key & 0xffffffffu) * (key >> 32);
#endif
}

inline void scramble(U64x8& sums) {
  sums ^= sums >> 47;
  sums ^= secret_at(sizeof(kSecret) - kStripe);
  sums *= kPrime32_1;
}

inline uint64_t fold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = (unsigned __int128)a * b;
  return uint64_t(product) ^ uint64_t(product >> 64);
}

uint64_t finish(U64x8 sums, size_t size) {
  uint64_t result = size * kPrime64_1;
  for (int i = 0; i < 4; ++i) {
    uint64_t secret[2];
    std::memcpy(secret, kSecret + 11 + 16 * i, sizeof(secret));
    result += fold(sums[2 * i] ^ secret[0], sums[2 * i + 1] ^ secret[1]);
  }
  result ^= result >> 37;
  result *= 0x165667919E3779F9u;
  return result ^ (result >> 32);
}

// Past the caches: what is copied is read later, and reading its old content first costs a third.
inline void put(uint8_t* to, U64x8 data) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)data);
#else
  store(to, data);
#endif
}

enum class Copy { kNone, kCached, kStreamed };

inline U64x8 first_sums() {
  return U64x8{kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
}

template <Copy kCopy>
uint64_t run(uint8_t* to, const uint8_t* from, size_t size) {
  U64x8 sums = first_sums();
  const size_t blocks = (size - 1) / kBlock;
  const size_t stripes = (size - 1 - blocks * kBlock) / kStripe;
  for (size_t block = 0; block <= blocks; ++block) {
    const size_t count = block < blocks ? kStripesPerBlock : stripes;
    for (size_t stripe = 0; stripe < count; ++stripe) {
      const size_t at = block * kBlock + stripe * kStripe;
      const U64x8 data = load<U64x8>(from + at);
      if constexpr (kCopy == Copy::kCached) store(to + at, data);
      if constexpr (kCopy == Copy::kStreamed) put(to + at, data);
      accumulate(sums, data, secret_at(stripe * 8));
    }
    if (block < blocks) scramble(sums);
  }
  const U64x8 last = load<U64x8>(from + size - kStripe);
  if constexpr (kCopy != Copy::kNone) {
    const size_t done = blocks * kBlock + stripes * kStripe;
    std::memcpy(to + done, from + done, size - done);
  }
  accumulate(sums, last, secret_at(sizeof(kSecret) - kStripe - 7));
  return finish(sums, size);
}

}  // namespace

uint64_t checksum(const void* data, size_t size) {
  return run<Copy::kNone>(nullptr, static_cast<const uint8_t*>(data), size);
}

RunningChecksum::RunningChecksum(const void* data, size_t size)
    : data_(static_cast<const uint8_t*>(data)), size_(size) {
  store(sums_, first_sums());
}

void RunningChecksum::read_to(size_t end) {
  // The last byte is never one of a whole block.
  const size_t blocks = std::min(end / kBlock, (size_ - 1) / kBlock);
  U64x8 sums = load<U64x8>(sums_);
  for (; blocks_ < blocks; ++blocks_) {
    for (size_t stripe = 0; stripe < kStripesPerBlock; ++stripe)
      accumulate(sums, load<U64x8>(data_ + blocks_ * kBlock + stripe * kStripe), secret_at(stripe * 8));
    scramble(sums);
  }
  store(sums_, sums);
}

uint64_t RunningChecksum::result() {
  read_to(size_);
  U64x8 sums = load<U64x8>(sums_);
  const size_t stripes = (size_ - 1 - blocks_ * kBlock) / kStripe;
  for (size_t stripe = 0; stripe < stripes; ++stripe)
    accumulate(sums, load<U64x8>(data_ + blocks_ * kBlock + stripe * kStripe), secret_at(stripe * 8));
  accumulate(sums, load<U64x8>(data_ + size_ - kStripe), secret_at(sizeof(kSecret) - kStripe - 7));
  return finish(sums, size_);
}

uint64_t copy_checksum(void* to, const void* from, size_t size) {
  uint8_t* target = static_cast<uint8_t*>(to);
  const uint8_t* source = static_cast<const uint8_t*>(from);
  constexpr size_t kLarge = size_t(128) << 10;
  if (size < kLarge || reinterpret_cast<uintptr_t>(to) % kStripe != 0)
    return run<Copy::kCached>(target, source, size);
  const uint64_t result = run<Copy::kStreamed>(target, source, size);
#if defined(__AVX512F__)
  _mm_sfence();  // before anybody is told
#endif
  return result;
}

void copy_ranges(const Ranges* to, const Ranges& from, int64_t count, uint8_t* scratch,
                 uint64_t* checksums) {
  int64_t source = 0, target = 0;
  for (int64_t item = 0; item < count; ++item) {
    const int64_t end = from.ends[item], target_end = to ? to->ends[item] : 0;
    const bool is_scattered = to && target_end - target > 1;
    uint8_t* together = to && !is_scattered ? static_cast<uint8_t*>(to->starts[target]) : scratch;
    size_t size = 0;
    if (end - source == 1) {
      size = from.sizes[source];
      checksums[item] = to ? copy_checksum(together, from.starts[source], size)
                           : checksum(from.starts[source], size);
      source = end;
    } else {
      for (; source < end; size += from.sizes[source++])
        std::memcpy(together + size, from.starts[source], from.sizes[source]);
      checksums[item] = checksum(together, size);
    }
    if (is_scattered)
      for (const uint8_t* data = scratch; target < target_end; data += to->sizes[target++])
        std::memcpy(to->starts[target], data, to->sizes[target]);
    target = target_end;
  }
}

}  // namespace baton
