// Packs bfloat16 numbers without loss. The exponents of KV take few values at the top of their range, so
// that four bits do for nearly all of them; sign and mantissa stay as they are. Three quarters of the bytes
// are left. Any bytes may be packed: what does not shrink is kept.
//
// A stream, little-endian:
//   "BTPK" | version u16 | numbers of a chunk u16 | bytes u64 | bytes of all that follows u64
// then chunks of 2,048 numbers, the last one shorter:
//   first exponent u8 | kind u8 | escapes u16
//   packed:  64 bytes of sign and mantissa per 64 numbers, 32 bytes of codes per 64 numbers, one exponent
//            per escape in the order of the numbers, the bytes after the last 64 numbers
//   kept:    the bytes
// Code 0 is exponent 0, codes 1 to 14 are those from the first exponent plus 1, 15 is an escape. Byte i of
// 32 has the code of number i below and that of number i + 32 above.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transfer/checksum.h"

namespace baton {

constexpr size_t kStreamHeader = 24;

enum class Unpacked : int {
  kDone = 0,
  kHeader = 1,  // another magic number, version or chunk size
  kSize = 2,    // of another number of bytes
  kTorn = 3,    // ends early
  kChunk = 4,   // a chunk contradicts itself
  kLong = 5,    // goes on after its end
};

// The most bytes of a stream of `size` bytes.
size_t stream_room(size_t size);

// Returns the bytes of the stream at `to`, which has the room that stream_room tells. `checksum`: null, or of `from`.
size_t pack_stream(const uint8_t* from, size_t size, uint8_t* to, RunningChecksum* checksum = nullptr);

// Unpacks a stream that begins at `from`, of at most `from_size` bytes, to exactly `size` bytes at `to`. Reads and
// writes nothing outside these, whatever is there. `used`: the bytes of the stream. `checksum`: null, or of `to`.
Unpacked unpack_stream(const uint8_t* from, size_t from_size, uint8_t* to, size_t size, size_t* used,
                       RunningChecksum* checksum = nullptr);

// Packs each item's bytes to a stream, one after the other at `to`; returns their bytes, and unless it is null
// the checksums of what was packed: 0 for items of less than kShortestChecksum. `scratch` has room for an item of several ranges.
size_t pack_ranges(const Ranges& from, int64_t count, uint8_t* scratch, uint8_t* to, uint64_t* checksums);

// Unpacks the streams of `count` items, and no more, to the items' ranges; with the checksums of what was written.
Unpacked unpack_ranges(const uint8_t* from, size_t size, const Ranges& to, int64_t count, uint8_t* scratch,
                       uint64_t* checksums);

}  // namespace baton
