#include "ranks/collective.h"

#include <algorithm>
#include <cstring>

#include "vectors/halves.h"
#include "vectors/simd.h"

namespace baton {
namespace {

constexpr int kMaxRanks = 64;

// Pieces begin on cache lines, so that no two ranks write the same one.
template <class Number>
constexpr size_t kNumbersPerLine = 64 / sizeof(Number);

// The sum of the ranks' numbers, first rank first. Each result is written twice if `also` is given.
template <class Number>
void add_up(const Number* const* from, int ranks, size_t count, Number* to, Number* also) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Floats sum = widen(from[0] + i);
    for (int rank = 1; rank < ranks; ++rank) sum = sum + widen(from[rank] + i);
    narrow(to + i, sum);
    if (also != nullptr) narrow(also + i, sum);
  }
  if (i == count) return;
  // The rest as a whole vector, of which some is not written.
  const size_t rest = (count - i) * sizeof(Number);
  alignas(64) Number lanes[kLanes] = {};
  std::memcpy(lanes, from[0] + i, rest);
  Floats sum = widen(lanes);
  for (int rank = 1; rank < ranks; ++rank) {
    std::memcpy(lanes, from[rank] + i, rest);
    sum = sum + widen(lanes);
  }
  narrow(lanes, sum);
  std::memcpy(to + i, lanes, rest);
  if (also != nullptr) std::memcpy(also + i, lanes, rest);
}

// Which numbers of a chunk a rank adds up.
struct Piece {
  size_t first;
  size_t count;
};
template <class Number>
Piece piece_of(size_t count, int rank, int size) {
  constexpr size_t kLine = kNumbersPerLine<Number>;
  const size_t lines = (count + kLine - 1) / kLine;
  const size_t first = std::min(count, lines * rank / size * kLine);
  return {first, std::min(count, lines * (rank + 1) / size * kLine) - first};
}

}  // namespace

Collective::Collective(int rank, const CollectiveShape& shape, int64_t timeout_ns, int64_t spin_ns)
    : shape_(shape), members_(rank, shape.size, bytes(shape), timeout_ns, spin_ns) {}

size_t Collective::bytes(const CollectiveShape& shape) {
  return 2 * size_t(shape.size) * shape.buffer_bytes;
}

bool Collective::all_reduce(void* data, size_t count, Summand kind) {
  switch (kind) {
    case Summand::kFloat32:
      return reduce(static_cast<float*>(data), count, kind);
    case Summand::kBfloat16:
      return reduce(static_cast<uint16_t*>(data), count, kind);
    case Summand::kFloat16:
      return reduce(static_cast<Float16*>(data), count, kind);
  }
  return false;
}

template <class Number>
bool Collective::reduce(Number* data, size_t count, Summand kind) {
  if (members_.is_broken()) return false;
  const uint64_t terms = uint64_t(count) << 2 | uint64_t(kind);
  return count * sizeof(Number) <= shape_.one_shot_bytes ? reduce_once(data, count, terms)
                                                         : reduce_pieces(data, count, terms);
}

// Every rank reads all numbers of all ranks.
template <class Number>
bool Collective::reduce_once(Number* data, size_t count, uint64_t terms) {
  std::memcpy(buffer(members_.rank(), stage_ + 1), data, count * sizeof(Number));
  if (!stage(Act::kAllReduce, terms)) return false;
  const Number* from[kMaxRanks];
  for (int rank = 0; rank < members_.size(); ++rank)
    from[rank] = reinterpret_cast<const Number*>(buffer(rank, stage_));
  from[members_.rank()] = data;
  add_up<Number>(from, members_.size(), count, data, nullptr);
  return true;
}

// Of each chunk a rank adds up one piece, and takes the other sums from the other ranks. A stage
// carries the numbers of a chunk, and the sums of the chunk before it.
template <class Number>
bool Collective::reduce_pieces(Number* data, size_t count, uint64_t terms) {
  const size_t chunk = chunk_numbers<Number>();
  Number* before = nullptr;
  size_t before_count = 0;
  for (size_t begin = 0; begin < count || before != nullptr; begin += chunk) {
    const size_t length = begin < count ? std::min(chunk, count - begin) : 0;
    offer_numbers(data + begin, length);
    if (before != nullptr) add_piece(before, before_count);
    if (!stage(Act::kAllReduce, terms)) return false;
    if (before != nullptr) take_sums(before, before_count);
    before = length > 0 ? data + begin : nullptr;
    before_count = length;
  }
  return true;
}

template <class Number>
void Collective::offer_numbers(const Number* chunk, size_t count) {
  Number* to = reinterpret_cast<Number*>(buffer(members_.rank(), stage_ + 1));
  for (int rank = 0; rank < members_.size(); ++rank) {
    const Piece piece = piece_of<Number>(count, rank, members_.size());
    if (rank != members_.rank())
      std::memcpy(to + piece.first, chunk + piece.first, piece.count * sizeof(Number));
  }
}

template <class Number>
void Collective::add_piece(Number* chunk, size_t count) {
  const int own = members_.rank();
  const Piece piece = piece_of<Number>(count, own, members_.size());
  const Number* from[kMaxRanks];
  for (int rank = 0; rank < members_.size(); ++rank)
    from[rank] = reinterpret_cast<const Number*>(buffer(rank, stage_)) + piece.first;
  from[own] = chunk + piece.first;
  Number* sums = reinterpret_cast<Number*>(buffer(own, stage_ + 1)) + chunk_numbers<Number>();
  add_up<Number>(from, members_.size(), piece.count, chunk + piece.first, sums + piece.first);
}

template <class Number>
void Collective::take_sums(Number* chunk, size_t count) {
  for (int rank = 0; rank < members_.size(); ++rank) {
    const Piece piece = piece_of<Number>(count, rank, members_.size());
    const Number* sums = reinterpret_cast<const Number*>(buffer(rank, stage_)) + chunk_numbers<Number>();
    if (rank != members_.rank())
      std::memcpy(chunk + piece.first, sums + piece.first, piece.count * sizeof(Number));
  }
}

bool Collective::all_gather(const char* data, size_t rows, size_t row_bytes, char* out) {
  if (members_.is_broken()) return false;
  const int size = members_.size();
  const size_t bytes = rows * row_bytes;
  size_t begin = 0;
  do {
    const size_t end = std::min(bytes, begin + shape_.buffer_bytes);
    std::memcpy(buffer(members_.rank(), stage_ + 1), data + begin, end - begin);
    publish(Act::kAllGather, bytes);
    for (int rank = 0; rank < size; ++rank) {
      if (!wait_for(rank)) return false;
      const char* from = rank == members_.rank() ? data + begin : buffer(rank, stage_);
      for (size_t at = begin; at < end;) {
        const size_t row = at / row_bytes, column = at % row_bytes;
        const size_t length = std::min(row_bytes - column, end - at);
        std::memcpy(out + (row * size + rank) * row_bytes + column, from + (at - begin), length);
        at += length;
      }
    }
    begin = end;
  } while (begin < bytes);
  return true;
}

bool Collective::broadcast(char* data, size_t bytes, int source) {
  if (members_.is_broken()) return false;
  size_t begin = 0;
  do {
    const size_t length = std::min(bytes - begin, shape_.buffer_bytes);
    const bool is_source = members_.rank() == source;
    if (is_source) std::memcpy(buffer(source, stage_ + 1), data + begin, length);
    // All wait for all: a buffer is free only when every rank has been in the next stage.
    if (!stage(Act::kBroadcast, uint64_t(bytes) << 8 | uint64_t(source))) return false;
    if (!is_source) std::memcpy(data + begin, buffer(source, stage_), length);
    begin += length;
  } while (begin < bytes);
  return true;
}

bool Collective::barrier() { return !members_.is_broken() && stage(Act::kBarrier, 0); }

void Collective::publish(Act act, uint64_t terms) {
  auto& said = members_.line(members_.rank()).said[(stage_ + 1) & 1];
  said.act = act;
  said.terms = terms;
  members_.publish(++stage_);
}

bool Collective::wait_all() {
  for (int rank = 0; rank < members_.size(); ++rank)
    if (!wait_for(rank)) return false;
  return true;
}

// A rank that is one stage ahead has written the other half of `said`.
bool Collective::wait_for(int peer) {
  if (peer == members_.rank()) return true;
  const auto& own = members_.line(members_.rank()).said[stage_ & 1];
  if (members_.wait(peer, stage_, own.act) != Waited::kReached) return false;
  const auto& theirs = members_.line(peer).said[stage_ & 1];
  if (theirs.act == own.act && theirs.terms == own.terms) return true;
  members_.fail(Reason::kOther, peer, own.act, theirs.act);
  return false;
}

}  // namespace baton
