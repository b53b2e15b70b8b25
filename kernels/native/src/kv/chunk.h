// A chunk of tokens of one head: where its keys and values lie, and how their numbers are read.
#pragma once

#include <algorithm>
#include <limits>

#include "kv/format.h"
#include "vectors/tile.h"

namespace baton {

constexpr int kChunk = 2 * kPanel;
// Without AVX-512 values are added by runs: the first keys of all runs in their order, then the second ones.
constexpr int kRuns = 4, kRunKeys = kChunk / kRuns;
// Key/value heads of one task at most: what they have of a block is long enough for the hardware to guess.
constexpr int kMostHeads = 4;

// Where the keys and values of a chunk are, and what products with them are multiplied by.
struct ChunkRows {
  const uint8_t* keys[kChunk];
  const uint8_t* values[kChunk];
  const float* key_scales[kChunk];
  const float* value_scales[kChunk];
};

inline void fetch_line(const uint8_t* address) { __builtin_prefetch(address, 0, 2); }

#if defined(__AVX512F__)

// Fetches what is read next, line after line in the order of memory, which the hardware guesses.
class ChunkFetch {
 public:
  void clear() { count_ = run_ = 0, left_ = nullptr; }
  void add(const uint8_t* at, size_t bytes) {
    runs_[count_] = {at, at + bytes};
    if (count_++ == 0) left_ = at;
  }
  // The next `count` lines; behind the last one none.
  void lines(int count) {
    for (; count > 0 && run_ < count_; --count) {
      fetch_line(left_);
      left_ += kLineBytes;
      if (left_ >= runs_[run_].end && ++run_ < count_) left_ = runs_[run_].begin;
    }
  }
  void rest() { lines(std::numeric_limits<int>::max()); }

 private:
  static constexpr int kLineBytes = 64;
  struct Run {
    const uint8_t* begin;
    const uint8_t* end;
  };
  Run runs_[8 * kChunk];
  int count_ = 0;
  int run_ = 0;
  const uint8_t* left_ = nullptr;
};

#else

// Fetches what is read next, a line of some runs by turns: a core of Zen 3 waits for more lines of several runs than
// of one.
class ChunkFetch {
 public:
  void clear() {
    count_ = turn_ = first_ = end_ = 0;
    at_ = longest_ = 0;
  }
  void add(const uint8_t* at, size_t bytes) { runs_[count_++] = {at, bytes}; }
  // The next `count` lines; behind the last one none.
  void lines(int count) {
    for (; count > 0; --count) {
      if (turn_ == end_ && !begin_turn()) return;
      const Run& run = runs_[turn_++];
      if (at_ < run.bytes) fetch_line(run.begin + at_);
    }
  }
  void rest() { lines(std::numeric_limits<int>::max()); }

 private:
  static constexpr int kLineBytes = 64, kTogether = 2 * kRuns;
  struct Run {
    const uint8_t* begin;
    size_t bytes;
  };

  // Of the next line of the same runs, or of the first line of the next ones.
  bool begin_turn() {
    at_ += kLineBytes;
    if (at_ >= longest_) {
      if (end_ == count_) return false;
      at_ = longest_ = 0;
      first_ = end_;
      end_ = std::min(first_ + kTogether, count_);
      for (int i = first_; i < end_; ++i) longest_ = std::max(longest_, runs_[i].bytes);
    }
    turn_ = first_;
    return true;
  }

  Run runs_[8 * kChunk];
  int count_ = 0;
  int first_ = 0, end_ = 0, turn_ = 0;  // runs by turns
  size_t at_ = 0, longest_ = 0;         // of them
};

#endif

// Rows of what is stored, as vectors of float32. Those of kApart neighbouring vectors are taken apart: of
// their numbers, each has every kApart-th. `load` returns one, `load_some` one of a row of `size` numbers, of
// which those behind its end are zero.

template <class T>
struct ElementRow {
  static constexpr bool kHasScales = false;
  static constexpr int kApart = 1;
  static constexpr int kVectorBytes = kLanes * sizeof(T);

  static Floats load(const uint8_t* row, int vector) {
    return baton::load<Floats>(reinterpret_cast<const T*>(row) + vector * kLanes);
  }
  static Floats load_some(const uint8_t* row, int vector, int size) {
    const int dim = vector * kLanes;
    return baton::load_some(reinterpret_cast<const T*>(row) + dim, std::clamp(size - dim, 0, kLanes));
  }
};

// The mask stays in memory: sums and rows take all registers of a tile.
alignas(64) inline constexpr uint32_t kUpperHalves[16] = {
    0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
    0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
    0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
inline Words upper_halves(Words both) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  asm("vpand %1, %0, %0" : "+x"(both) : "m"(*reinterpret_cast<const Words*>(kUpperHalves)));
  return both;
#else
  return both & load<Words>(kUpperHalves);
#endif
}

// A number is one half of a word: one operation makes a vector of one half of each.
template <>
struct ElementRow<uint16_t> {
  static constexpr bool kHasScales = false;
  static constexpr int kApart = 2;
  static constexpr int kVectorBytes = kLanes * sizeof(uint16_t);

  static Floats load(const uint8_t* row, int vector) {
    const Words both = baton::load<Words>(row + vector / kApart * sizeof(Words));
    return bits_as<Floats>(vector % kApart == 0 ? both << 16 : upper_halves(both));
  }
  static Floats load_some(const uint8_t* row, int vector, int size) {
    constexpr int kNumbers = kApart * kLanes;
    const int first = vector / kApart * kNumbers;
    uint16_t some[kNumbers] = {};
    std::memcpy(some, row + first * sizeof(uint16_t),
                std::clamp(size - first, 0, kNumbers) * sizeof(uint16_t));
    return load(reinterpret_cast<const uint8_t*>(some), vector % kApart);
  }
};

// Bytes with a scale, which the caller applies to scores and weights.
template <class T>
struct ByteRow {
  using Kv = T;
  static constexpr bool kHasScales = true;
  static constexpr int kApart = 1;
  static constexpr int kVectorBytes = kLanes;

  static Floats load(const uint8_t* row, int vector) {
    return Kv::decode(baton::load<Bytes>(row + vector * kLanes));
  }
  static Floats load_some(const uint8_t* row, int vector, int size) {
    const int dim = vector * kLanes;
    Bytes stored{};
    std::memcpy(&stored, row + dim, std::clamp(size - dim, 0, kLanes));
    return Kv::decode(stored);
  }
};

}  // namespace baton
