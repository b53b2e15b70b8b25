// What a decoder does together with those of other ranks, between the operations of its program.
#pragma once

#include <cstddef>

#include "ranks/collective.h"

namespace baton {

// Thrown by the thread that runs a program: the group is broken, and the collective says why.
struct GroupBroken {};

// A norm over the numbers of all ranks' heads.
struct WholeHeads {
  int num_queries;  // numbers of all ranks
  int num_keys;
  int counts_keys;  // no rank before has the same keys
};

// The ranks of a call; alone there is one.
class Ranks {
 public:
  Ranks() = default;
  explicit Ranks(Collective* collective) : collective_(collective) {}

  bool alone() const { return collective_ == nullptr; }
  int size() const { return alone() ? 1 : collective_->size(); }

  // The same numbers become the sums of all ranks' ones.
  void sum(float* numbers, size_t count) const {
    if (alone() || count == 0) return;
    if (!collective_->all_reduce(numbers, count, Summand::kFloat32)) throw GroupBroken();
  }

  // Row i of `out` [rows, ranks, width] becomes the ranks' rows i of `own` [rows, width].
  void gather(const float* own, size_t rows, size_t width, float* out) const {
    const auto* data = reinterpret_cast<const char*>(own);
    if (!collective_->all_gather(data, rows, width * sizeof(float), reinterpret_cast<char*>(out)))
      throw GroupBroken();
  }

 private:
  Collective* collective_ = nullptr;
};

}  // namespace baton
