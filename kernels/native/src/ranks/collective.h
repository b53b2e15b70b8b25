// Operations of all ranks of one host, through one mapping.
//
// An operation is a row of stages. In a stage a rank writes into its buffer, publishes the stage's
// number, waits for that of every other rank, and reads their buffers. Stages take two buffers per
// rank by turns: a rank that publishes stage s + 1 has read what it wants of stage s, so in stage
// s + 2 the buffer of stage s is free.
#pragma once

#include <memory>

#include "ranks/members.h"

namespace baton {

// What is added up; kernels/native/ranks.py names the same numbers.
enum class Summand : int32_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };

// The same number on every rank of a group.
struct CollectiveShape {
  int32_t size;
  size_t buffer_bytes;    // of one buffer, a multiple of 128
  size_t one_shot_bytes;  // larger sums are cut among the ranks; at most buffer_bytes
};

class Collective {
 public:
  Collective(int rank, const CollectiveShape& shape, int64_t timeout_ns, int64_t spin_ns);

  static size_t bytes(const CollectiveShape& shape);
  Join join(int fd) { return members_.join(fd); }
  int size() const { return members_.size(); }

  // False: the group is broken, and `failure` says why.
  bool all_reduce(void* data, size_t count, Summand kind);
  // Row i of `out` [rows, size, row_bytes] becomes the ranks' rows i of `data` [rows, row_bytes].
  bool all_gather(const char* data, size_t rows, size_t row_bytes, char* out);
  bool broadcast(char* data, size_t bytes, int source);
  bool barrier();
  Failure failure() const { return members_.failure(); }

 private:
  template <class Number>
  bool reduce(Number* data, size_t count, Summand kind);
  template <class Number>
  bool reduce_once(Number* data, size_t count, uint64_t terms);
  template <class Number>
  bool reduce_pieces(Number* data, size_t count, uint64_t terms);
  template <class Number>
  void offer_numbers(const Number* chunk, size_t count);
  template <class Number>
  void add_piece(Number* chunk, size_t count);
  template <class Number>
  void take_sums(Number* chunk, size_t count);

  // Says what the coming stage is, and publishes it.
  void publish(Act act, uint64_t terms);
  // Wait until every rank, or one, has published the stage on this rank's terms.
  bool wait_all();
  bool wait_for(int peer);
  bool stage(Act act, uint64_t terms) {
    publish(act, terms);
    return wait_all();
  }
  // Sums of pieces lie in the second half of a buffer.
  template <class Number>
  size_t chunk_numbers() const {
    return shape_.buffer_bytes / 2 / sizeof(Number);
  }
  // The buffer of a rank in a stage.
  char* buffer(int rank, uint32_t stage) const {
    return members_.body() + (size_t(rank) * 2 + (stage & 1)) * shape_.buffer_bytes;
  }

  const CollectiveShape shape_;
  Members members_;
  // Stages that this rank has published.
  uint32_t stage_ = 0;
};

}  // namespace baton
