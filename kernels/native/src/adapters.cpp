#include "adapters.h"

#include <algorithm>

namespace baton {
namespace {

constexpr int kHalves = kPanel / kHalfPanel;
static_assert(kPanelVectors % kHalves == 0 && kHalfPanel % kLanes == 0);

// Ranks first .. end - 1; none, if end is not above first.
struct Ranks {
  int first = 1 << 30;
  int end = 0;

  void take(int from, int to) {
    first = std::min(first, from);
    end = std::max(end, to);
  }
  bool operator==(const Ranks& other) const { return first == other.first && end == other.end; }
};

// By half panel: the ranks that its columns have numbers of.
std::vector<Ranks> ranks_of_halves(const AdaptedMatrix& own, int num_panels) {
  std::vector<Ranks> halves(size_t(num_panels) * kHalves);
  int rank = 0;
  for (int i = 0; i < own.num_parts; rank += own.parts[i++].rank)
    for (int column = 0; column < own.parts[i].columns; ++column) {
      const int to = packed_column(own.parts[i].first_column + column, own.columns, own.paired != 0);
      halves[to / kHalfPanel].take(rank, rank + own.parts[i].rank);
    }
  return halves;
}

// Plans where the numbers of a matrix lie, from `begin` on; returns the end.
size_t plan(Delta& to, const AdaptedMatrix& own, size_t begin) {
  constexpr int kHalfVectors = kPanelVectors / kHalves;
  to.inner = own.matrix->inner;
  to.stride = round_up(to.inner, kLanes);
  for (int i = 0; i < own.num_parts; ++i)
    to.scales.insert(to.scales.end(), own.parts[i].rank, own.parts[i].scale);
  to.num_ranks = int(to.scales.size());
  to.a = begin;
  size_t end = begin + size_t(to.num_ranks) * to.stride;
  const int panels = own.matrix->num_panels();
  const std::vector<Ranks> halves = ranks_of_halves(own, panels);
  auto add = [&](const Ranks& ranks, int vector, int vectors) {
    if (ranks.end <= ranks.first) return;
    to.blocks.push_back({vector, vectors, ranks.first, ranks.end - ranks.first, end});
    end += size_t(ranks.end - ranks.first) * vectors * kLanes;
  };
  for (int panel = 0; panel < panels; ++panel) {
    const Ranks *low = &halves[size_t(panel) * kHalves], *high = low + 1;
    to.first_blocks.push_back(int(to.blocks.size()));
    if (*low == *high) {
      add(*low, 0, kPanelVectors);
    } else {
      add(*low, 0, kHalfVectors);
      add(*high, kHalfVectors, kHalfVectors);
    }
  }
  to.first_blocks.push_back(int(to.blocks.size()));
  return end;
}

template <class Element>
void fill(const Delta& delta, const AdaptedMatrix& own, Element* numbers) {
  int first_rank = 0;
  for (int i = 0; i < own.num_parts; first_rank += own.parts[i++].rank) {
    const DeltaPart& part = own.parts[i];
    const Element *a = static_cast<const Element*>(part.a), *b = static_cast<const Element*>(part.b);
    for (int k = 0; k < part.rank; ++k)
      std::copy_n(a + size_t(k) * delta.inner, delta.inner,
                  numbers + delta.a + size_t(first_rank + k) * delta.stride);
    for (int column = 0; column < part.columns; ++column) {
      const int to = packed_column(part.first_column + column, own.columns, own.paired != 0);
      const int panel = to / kPanel, at = to % kPanel;
      for (int n = delta.first_blocks[panel]; n < delta.first_blocks[panel + 1]; ++n) {
        const Delta::Block& block = delta.blocks[n];
        const int width = block.num_vectors * kLanes, offset = at - block.first_vector * kLanes;
        if (offset < 0 || offset >= width) continue;
        Element* target = numbers + block.begin + size_t(first_rank - block.first_rank) * width + offset;
        for (int k = 0; k < part.rank; ++k) target[size_t(k) * width] = b[size_t(column) * part.rank + k];
      }
    }
  }
}

}  // namespace

Adapter::Adapter(Kind element, const AdaptedMatrix* matrices, int count) {
  const size_t size = element == Kind::kFloat32 ? sizeof(float) : sizeof(uint16_t);
  size_t end = 0;
  for (int i = 0; i < count; ++i)
    end = plan(deltas_[matrices[i].matrix], matrices[i], (end + kLineWords - 1) / kLineWords * kLineWords);
  bytes_.reserve((end + kLanes) * size);
  for (int i = 0; i < count; ++i) {
    const Delta& delta = deltas_[matrices[i].matrix];
    if (element == Kind::kFloat32)
      fill(delta, matrices[i], reinterpret_cast<float*>(bytes_.data()));
    else
      fill(delta, matrices[i], reinterpret_cast<uint16_t*>(bytes_.data()));
  }
}

}  // namespace baton
