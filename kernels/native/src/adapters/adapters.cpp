#include "adapters/adapters.h"

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

// Ranks of a part, with those that words add.
int ranks_of(const Delta& delta, const DeltaPart& part) { return round_up(part.rank, delta.per_word()); }

// By half panel: the ranks that its columns have numbers of.
std::vector<Ranks> ranks_of_halves(const Delta& delta, const AdaptedMatrix& own, int num_panels) {
  std::vector<Ranks> halves(size_t(num_panels) * kHalves);
  int rank = 0;
  for (int i = 0; i < own.num_parts; rank += ranks_of(delta, own.parts[i++]))
    for (int column = 0; column < own.parts[i].columns; ++column) {
      const int to = packed_column(own.parts[i].first_column + column, own.columns, own.paired != 0);
      halves[to / kHalfPanel].take(rank, rank + ranks_of(delta, own.parts[i]));
    }
  return halves;
}

// Plans where the numbers of a matrix lie, from `begin` on; returns the end.
size_t plan(Delta& to, const AdaptedMatrix& own, bool by_tiles, size_t begin) {
  constexpr int kHalfVectors = kPanelVectors / kHalves;
  to.by_tiles = by_tiles;
  to.inner = own.matrix->inner;
  to.stride = round_up(to.inner, by_tiles ? to.per_word() : kLanes);
  for (int i = 0; i < own.num_parts; ++i)
    to.scales.insert(to.scales.end(), ranks_of(to, own.parts[i]), own.parts[i].scale);
  to.num_ranks = int(to.scales.size());
  to.scales.resize(round_up(to.num_ranks, kPanel));
  to.a = begin;
  size_t end = to.end_of_a();
  const int panels = own.matrix->num_panels();
  const std::vector<Ranks> halves = ranks_of_halves(to, own, panels);
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
  for (int i = 0; i < own.num_parts; first_rank += ranks_of(delta, own.parts[i++])) {
    const DeltaPart& part = own.parts[i];
    const Element *a = static_cast<const Element*>(part.a), *b = static_cast<const Element*>(part.b);
    for (int k = 0; k < part.rank; ++k)
      for (int at = 0; at < delta.inner; ++at)
        numbers[delta.place_of_a(first_rank + k, at)] = a[size_t(k) * delta.inner + at];
    for (int column = 0; column < part.columns; ++column) {
      const int to = packed_column(part.first_column + column, own.columns, own.paired != 0);
      const int panel = to / kPanel, at = to % kPanel;
      for (int n = delta.first_blocks[panel]; n < delta.first_blocks[panel + 1]; ++n) {
        const Delta::Block& block = delta.blocks[n];
        const int offset = at - block.first_vector * kLanes;
        if (offset < 0 || offset >= block.num_vectors * kLanes) continue;
        for (int k = 0; k < part.rank; ++k)
          numbers[delta.place_of_b(block, first_rank - block.first_rank + k, offset)] =
              b[size_t(column) * part.rank + k];
      }
    }
  }
}

}  // namespace

Adapter::Adapter(Kind element, const AdaptedMatrix* matrices, int count) {
  const size_t size = element == Kind::kFloat32 ? sizeof(float) : sizeof(uint16_t);
  const size_t line = kLineWords * sizeof(uint32_t) / size;
  const bool by_tiles = multiplies_by_tiles(element);
  size_t end = 0;
  for (int i = 0; i < count; ++i)
    end = plan(deltas_[matrices[i].matrix], matrices[i], by_tiles, (end + line - 1) / line * line);
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
