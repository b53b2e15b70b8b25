#include "transfer/bf16_stream.h"

#include <algorithm>
#include <cstring>

#include "vectors/simd.h"

namespace baton {
namespace {

constexpr char kMagic[4] = {'B', 'T', 'P', 'K'};
constexpr uint16_t kVersion = 1;
constexpr size_t kGroup = 64;  // numbers that are coded together
constexpr size_t kGroupBytes = 2 * kGroup;
constexpr size_t kChunk = 2048;  // numbers
constexpr size_t kChunkBytes = 2 * kChunk;
constexpr size_t kChunkHeader = 4;
// A group with more escapes than this on average does not shrink enough for its work.
constexpr size_t kMostEscapes = kGroup / 8;
constexpr int kEscape = 15;
constexpr int kLastCode = 14;

enum class Chunk : uint8_t { kPacked = 1, kKept = 2 };

// Exponents of the codes; an escape's is written over.
struct Table {
  alignas(16) uint8_t exponents[16];
  explicit Table(uint8_t first) {
    exponents[0] = exponents[kEscape] = 0;
    for (int code = 1; code <= kLastCode; ++code) exponents[code] = uint8_t(first + code);
  }
};

#if defined(__AVX2__)

inline __m256i load32(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void store32(void* to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
inline __m256i splat8(int x) { return _mm256_set1_epi8(char(x)); }

int largest_exponent(const uint8_t* from, size_t groups) {
  __m256i most = _mm256_setzero_si256();
  const __m256i exponent = _mm256_set1_epi16(0x7f80);
  for (size_t at = 0; at < groups * kGroupBytes; at += 64) {
    const __m256i a = _mm256_and_si256(load32(from + at), exponent);
    const __m256i b = _mm256_and_si256(load32(from + at + 32), exponent);
    most = _mm256_max_epu16(most, _mm256_max_epu16(a, b));
  }
  uint16_t each[16];
  store32(each, most);
  return *std::max_element(each, each + 16) >> 7;
}

struct Codes32 {
  __m256i codes;
  uint32_t escapes;  // a bit for each
};

// 32 numbers: their codes, and sign and mantissa at `low`.
inline Codes32 code_half(const uint8_t* from, uint8_t* low, __m256i first, __m256i table) {
  const __m256i byte = _mm256_set1_epi16(0xff);
  const __m256i a = load32(from), b = load32(from + 32);
  // Packing takes the halves of its operands in turn.
  const __m256i lower = _mm256_permute4x64_epi64(
      _mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte)), 0xd8);
  const __m256i upper = _mm256_permute4x64_epi64(
      _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)), 0xd8);
  const __m256i exponents = _mm256_or_si256(_mm256_add_epi8(upper, upper),
                                            _mm256_and_si256(_mm256_srli_epi16(lower, 7), splat8(1)));
  store32(low, _mm256_or_si256(_mm256_and_si256(lower, splat8(0x7f)), _mm256_and_si256(upper, splat8(0x80))));
  const __m256i codes = _mm256_min_epu8(_mm256_subs_epu8(exponents, first), splat8(kEscape));
  const __m256i right = _mm256_cmpeq_epi8(_mm256_shuffle_epi8(table, codes), exponents);
  return {_mm256_or_si256(codes, _mm256_andnot_si256(right, splat8(kEscape))), ~uint32_t(_mm256_movemask_epi8(right))};
}

inline __m256i table_of(const uint8_t* sixteen) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(sixteen)));
}

// Codes a group; returns a bit for each escape.
inline uint64_t code_group(const uint8_t* from, uint8_t first, const Table& table, uint8_t* low, uint8_t* codes) {
  const __m256i firsts = splat8(first), exponents = table_of(table.exponents);
  const Codes32 a = code_half(from, low, firsts, exponents);
  const Codes32 b = code_half(from + kGroup, low + 32, firsts, exponents);
  store32(codes, _mm256_or_si256(a.codes, _mm256_slli_epi16(b.codes, 4)));
  return a.escapes | uint64_t(b.escapes) << 32;
}

inline uint32_t number_half(__m256i codes, const uint8_t* low, __m256i table, uint8_t* to) {
  const __m256i exponents = _mm256_shuffle_epi8(table, codes), rest = load32(low);
  const __m256i last_bit = _mm256_and_si256(_mm256_slli_epi16(exponents, 7), splat8(0x80));
  const __m256i others = _mm256_and_si256(_mm256_srli_epi16(exponents, 1), splat8(0x7f));
  // Unpacking takes halves in turn, as above.
  const __m256i lower = _mm256_permute4x64_epi64(_mm256_or_si256(_mm256_and_si256(rest, splat8(0x7f)), last_bit), 0xd8);
  const __m256i upper = _mm256_permute4x64_epi64(_mm256_or_si256(_mm256_and_si256(rest, splat8(0x80)), others), 0xd8);
  store32(to, _mm256_unpacklo_epi8(lower, upper));
  store32(to + 32, _mm256_unpackhi_epi8(lower, upper));
  return uint32_t(_mm256_movemask_epi8(_mm256_cmpeq_epi8(codes, splat8(kEscape))));
}

// Undoes code_group, but for the exponents of escapes.
inline uint64_t number_group(const uint8_t* low, const uint8_t* codes, const Table& table, uint8_t* to) {
  const __m256i both = load32(codes), half = splat8(15), exponents = table_of(table.exponents);
  const uint32_t a = number_half(_mm256_and_si256(both, half), low, exponents, to);
  const __m256i above = _mm256_and_si256(_mm256_srli_epi16(both, 4), half);
  return a | uint64_t(number_half(above, low + 32, exponents, to + kGroup)) << 32;
}

#else

int largest_exponent(const uint8_t* from, size_t groups) {
  uint16_t most = 0;
  for (size_t at = 0; at < groups * kGroupBytes; at += 2)
    most = std::max(most, uint16_t(load<uint16_t>(from + at) & 0x7f80));
  return most >> 7;
}

inline uint64_t code_group(const uint8_t* from, uint8_t first, const Table& table, uint8_t* low, uint8_t* codes) {
  uint8_t each[kGroup];
  uint64_t escapes = 0;
  for (size_t i = 0; i < kGroup; ++i) {
    const uint16_t number = load<uint16_t>(from + 2 * i);
    const uint8_t exponent = uint8_t(number >> 7);
    low[i] = uint8_t((number & 0x7f) | ((number >> 8) & 0x80));
    const int code = exponent < first ? 0 : std::min(exponent - first, kEscape);
    const bool is_escape = table.exponents[code] != exponent;
    each[i] = uint8_t(is_escape ? kEscape : code);
    escapes |= uint64_t(is_escape) << i;
  }
  for (size_t i = 0; i < kGroup / 2; ++i) codes[i] = uint8_t(each[i] | each[i + kGroup / 2] << 4);
  return escapes;
}

inline uint64_t number_group(const uint8_t* low, const uint8_t* codes, const Table& table, uint8_t* to) {
  uint64_t escapes = 0;
  for (size_t i = 0; i < kGroup; ++i) {
    const int code = i < kGroup / 2 ? codes[i] & 15 : codes[i - kGroup / 2] >> 4;
    const int exponent = table.exponents[code];
    store(to + 2 * i, uint16_t((low[i] & 0x7f) | exponent << 7 | (low[i] & 0x80) << 8));
    escapes |= uint64_t(code == kEscape) << i;
  }
  return escapes;
}

#endif

// Returns the bytes of the chunk, or 0 if it does not shrink; what is at `to` is of no use then.
size_t pack_chunk(const uint8_t* from, size_t size, uint8_t* to) {
  const size_t groups = size / kGroupBytes, rest = size % kGroupBytes;
  const int largest = largest_exponent(from, groups);
  const uint8_t first = uint8_t(std::max(0, largest - kLastCode));
  const Table table(first);
  uint8_t* low = to + kChunkHeader;
  uint8_t* codes = low + groups * kGroup;
  uint8_t* const listed = codes + groups * kGroup / 2;
  size_t count = 0;
  const size_t most = groups * kMostEscapes;
  for (size_t group = 0; group < groups; ++group) {
    const uint8_t* numbers = from + group * kGroupBytes;
    uint64_t escapes = code_group(numbers, first, table, low + group * kGroup, codes + group * kGroup / 2);
    if (escapes == 0) continue;
    if (count + size_t(__builtin_popcountll(escapes)) > most) return 0;
    for (; escapes; escapes &= escapes - 1)
      listed[count++] = uint8_t(load<uint16_t>(numbers + 2 * __builtin_ctzll(escapes)) >> 7);
  }
  const uint16_t escaped = uint16_t(count);
  to[0] = first;
  to[1] = uint8_t(Chunk::kPacked);
  std::memcpy(to + 2, &escaped, sizeof(escaped));
  std::memcpy(listed + count, from + size - rest, rest);
  return size_t(listed + count + rest - to);
}

// Returns the bytes of the chunk, or 0 if it is none of `size` bytes.
size_t unpack_chunk(const uint8_t* from, size_t left, uint8_t* to, size_t size, Unpacked* fault) {
  *fault = Unpacked::kTorn;
  if (left < kChunkHeader) return 0;
  uint16_t count;
  std::memcpy(&count, from + 2, sizeof(count));
  if (from[1] == uint8_t(Chunk::kKept)) {
    if (left - kChunkHeader < size) return 0;
    std::memcpy(to, from + kChunkHeader, size);
    return kChunkHeader + size;
  }
  const size_t groups = size / kGroupBytes, rest = size % kGroupBytes;
  const size_t used = kChunkHeader + groups * (kGroup + kGroup / 2) + count + rest;
  const uint8_t first = from[0];
  if (from[1] != uint8_t(Chunk::kPacked) || first > 255 - kLastCode) {
    *fault = Unpacked::kChunk;
    return 0;
  }
  if (left < used) return 0;
  const Table table(first);
  const uint8_t* low = from + kChunkHeader;
  const uint8_t* codes = low + groups * kGroup;
  const uint8_t* const listed = codes + groups * kGroup / 2;
  size_t next = 0;
  for (size_t group = 0; group < groups; ++group) {
    uint8_t* numbers = to + group * kGroupBytes;
    uint64_t escapes = number_group(low + group * kGroup, codes + group * kGroup / 2, table, numbers);
    for (; escapes && next < count; escapes &= escapes - 1) {
      uint8_t* number = numbers + 2 * __builtin_ctzll(escapes);
      store(number, uint16_t(load<uint16_t>(number) | listed[next++] << 7));
    }
    if (escapes) next = count + 1;
  }
  std::memcpy(to + size - rest, listed + count, rest);
  *fault = next == count ? Unpacked::kDone : Unpacked::kChunk;
  return next == count ? used : 0;
}

struct Header {
  char magic[4];
  uint16_t version;
  uint16_t chunk;
  uint64_t size;
  uint64_t packed;
};
static_assert(sizeof(Header) == kStreamHeader);

// Where an item's bytes lie together: in its own place, or in `scratch`.
uint8_t* together(const Ranges& ranges, int64_t first, int64_t end, uint8_t* scratch, size_t* size) {
  *size = 0;
  for (int64_t at = first; at < end; ++at) *size += ranges.sizes[at];
  return end - first == 1 ? static_cast<uint8_t*>(ranges.starts[first]) : scratch;
}

// What packing and unpacking of one item tells of its bytes.
struct ItemChecksum {
  RunningChecksum running;
  bool is_wanted;
  ItemChecksum(const uint8_t* data, size_t size, const uint64_t* wanted)
      : running(data, size), is_wanted(wanted && size >= kShortestChecksum) {}
  RunningChecksum* get() { return is_wanted ? &running : nullptr; }
  uint64_t result() { return is_wanted ? running.result() : 0; }
};

}  // namespace

size_t stream_room(size_t size) {
  return kStreamHeader + size + (size + kChunkBytes - 1) / kChunkBytes * kChunkHeader;
}

size_t pack_stream(const uint8_t* from, size_t size, uint8_t* to, RunningChecksum* checksum) {
  uint8_t* end = to + kStreamHeader;
  for (size_t at = 0; at < size; at += kChunkBytes) {
    const size_t bytes = std::min(kChunkBytes, size - at);
    if (checksum) checksum->read_to(at + bytes);
    size_t used = pack_chunk(from + at, bytes, end);
    if (used == 0 || used >= kChunkHeader + bytes) {
      const uint8_t kept[kChunkHeader] = {0, uint8_t(Chunk::kKept), 0, 0};
      std::memcpy(end, kept, kChunkHeader);
      std::memcpy(end + kChunkHeader, from + at, bytes);
      used = kChunkHeader + bytes;
    }
    end += used;
  }
  Header header{{}, kVersion, kChunk, size, uint64_t(end - to) - kStreamHeader};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  std::memcpy(to, &header, sizeof(header));
  return size_t(end - to);
}

Unpacked unpack_stream(const uint8_t* from, size_t from_size, uint8_t* to, size_t size, size_t* used,
                       RunningChecksum* checksum) {
  if (from_size < kStreamHeader) return Unpacked::kTorn;
  Header header;
  std::memcpy(&header, from, sizeof(header));
  const bool is_known = std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0 && header.version == kVersion;
  if (!is_known || header.chunk != kChunk) return Unpacked::kHeader;
  if (header.size != size) return Unpacked::kSize;
  if (header.packed > from_size - kStreamHeader) return Unpacked::kTorn;
  *used = kStreamHeader + size_t(header.packed);
  const uint8_t* at = from + kStreamHeader;
  const uint8_t* const end = from + *used;
  for (size_t done = 0; done < size; done += kChunkBytes) {
    Unpacked fault = Unpacked::kDone;
    const size_t bytes = unpack_chunk(at, size_t(end - at), to + done, std::min(kChunkBytes, size - done), &fault);
    if (bytes == 0) return fault;
    at += bytes;
    if (checksum) checksum->read_to(std::min(done + kChunkBytes, size));
  }
  return at == end ? Unpacked::kDone : Unpacked::kLong;
}

size_t pack_ranges(const Ranges& from, int64_t count, uint8_t* scratch, uint8_t* to, uint64_t* checksums) {
  size_t used = 0;
  int64_t first = 0;
  for (int64_t item = 0; item < count; first = from.ends[item++]) {
    const int64_t end = from.ends[item];
    size_t size;
    const uint8_t* data = together(from, first, end, scratch, &size);
    if (end - first > 1)
      for (uint8_t* next = scratch; first < end; next += from.sizes[first++])
        std::memcpy(next, from.starts[first], from.sizes[first]);
    ItemChecksum checksum(data, size, checksums);
    used += pack_stream(data, size, to + used, checksum.get());
    if (checksums) checksums[item] = checksum.result();
  }
  return used;
}

Unpacked unpack_ranges(const uint8_t* from, size_t size, const Ranges& to, int64_t count, uint8_t* scratch,
                       uint64_t* checksums) {
  int64_t first = 0;
  for (int64_t item = 0; item < count; first = to.ends[item++]) {
    const int64_t end = to.ends[item];
    size_t bytes, used;
    uint8_t* data = together(to, first, end, scratch, &bytes);
    ItemChecksum checksum(data, bytes, checksums);
    const Unpacked outcome = unpack_stream(from, size, data, bytes, &used, checksum.get());
    if (outcome != Unpacked::kDone) return outcome;
    from += used, size -= used;
    if (checksums) checksums[item] = checksum.result();
    if (end - first > 1)
      for (const uint8_t* next = scratch; first < end; next += to.sizes[first++])
        std::memcpy(to.starts[first], next, to.sizes[first]);
  }
  return size == 0 ? Unpacked::kDone : Unpacked::kLong;
}

}  // namespace baton
