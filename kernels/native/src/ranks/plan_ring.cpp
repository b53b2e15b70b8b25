#include "ranks/plan_ring.h"

#include <algorithm>
#include <cstring>

namespace baton {

PlanRing::PlanRing(int rank, const RingShape& shape, int64_t timeout_ns, int64_t spin_ns)
    : shape_(shape), members_(rank, shape.size, bytes(shape), timeout_ns, spin_ns) {}

bool PlanRing::send(const char* data, size_t bytes) {
  if (members_.is_broken()) return false;
  size_t begin = 0;
  do {
    for (int peer = 1; peer < members_.size(); ++peer)
      if (members_.wait(peer, count_ + 1 - shape_.slots, Act::kSend) != Waited::kReached) return false;
    const size_t length = std::min(bytes - begin, shape_.slot_bytes);
    Slot* to = slot(count_);
    to->message_bytes = bytes;
    std::memcpy(to->data, data + begin, length);
    members_.publish(++count_);
    begin += length;
  } while (begin < bytes);
  return true;
}

bool PlanRing::drain() {
  for (int peer = 1; peer < members_.size(); ++peer)
    if (members_.is_broken() || members_.wait(peer, count_, Act::kDrain) != Waited::kReached) return false;
  return true;
}

Waited PlanRing::receive(char* to, size_t room, int64_t patience_ns, size_t* bytes) {
  const Waited first = members_.look(0, count_ + 1, Act::kReceive, patience_ns);
  if (first != Waited::kReached) return first;
  *bytes = slot(count_)->message_bytes;
  if (*bytes > room) return Waited::kReached;
  size_t begin = 0;
  do {
    if (members_.wait(0, count_ + 1, Act::kReceive) != Waited::kReached) return Waited::kBroken;
    const size_t length = std::min(*bytes - begin, shape_.slot_bytes);
    std::memcpy(to + begin, slot(count_)->data, length);
    members_.publish(++count_);
    begin += length;
  } while (begin < *bytes);
  return Waited::kReached;
}

}  // namespace baton
