// Messages of rank 0 to all other ranks of its host, through a ring of slots in one mapping.
//
// Each rank's line counts pieces: rank 0's those that it has written, a follower's those that it has
// read. A message longer than a slot takes several.
#pragma once

#include "ranks/members.h"

namespace baton {

// The same on every rank of a group.
struct RingShape {
  int32_t size;
  uint32_t slots;
  size_t slot_bytes;
};

class PlanRing {
 public:
  PlanRing(int rank, const RingShape& shape, int64_t timeout_ns, int64_t spin_ns);

  static size_t bytes(const RingShape& shape) { return shape.slots * stride(shape); }
  Join join(int fd) { return members_.join(fd); }

  // Rank 0 only. Waits for followers that are a ring behind. False: the ring is broken.
  bool send(const char* data, size_t bytes);
  // Rank 0 only. Waits until every follower has read everything.
  bool drain();

  // Followers only. Waits at most `patience_ns` for a message. kReached: `bytes` is its length, and it
  // was read if it is at most `room`. That rank 0 is slow breaks nothing before a message has begun.
  Waited receive(char* to, size_t room, int64_t patience_ns, size_t* bytes);
  Failure failure() const { return members_.failure(); }

 private:
  struct alignas(64) Slot {
    uint64_t message_bytes;
    char data[];
  };

  static size_t stride(const RingShape& shape) { return sizeof(Slot) + (shape.slot_bytes + 63) / 64 * 64; }
  Slot* slot(uint32_t piece) const {
    return reinterpret_cast<Slot*>(members_.body() + piece % shape_.slots * stride(shape_));
  }

  const RingShape shape_;
  Members members_;
  // Pieces that this rank has written or read. Slots are a power of two, so it may wrap around.
  uint32_t count_ = 0;
};

}  // namespace baton
