// Adapters: of a row x one adds scale * b @ (a @ x) to the product with a matrix.
#pragma once

#include <unordered_map>
#include <vector>

#include "matrix/matrix.h"
#include "vectors/amx.h"
#include "vectors/memory.h"

namespace baton {

// Of a matrix's columns, before they were packed: a [rank][inner], b [columns][rank], of elements.
struct DeltaPart {
  int first_column;
  int columns;
  int rank;
  float scale;
  const void* a;
  const void* b;
};

// What an adapter does to a matrix. Ascending parts that do not overlap.
struct AdaptedMatrix {
  const Matrix* matrix;
  int columns;  // before they were packed
  int paired;   // see pack_matrix
  int num_parts;
  const DeltaPart* parts;
};

// Whether adapters with such numbers are multiplied by tiles.
inline bool multiplies_by_tiles([[maybe_unused]] Kind element) {
#if defined(BATON_HAS_AMX)
  return element == Kind::kBFloat16 && may_use_amx();
#else
  return false;
#endif
}

// The same as the kernels read it. Vectors read a as [rank][inner] and b, by block, as [rank][column]. Tiles read two
// numbers of a sum as one word: a in panels of ranks, [word][rank], of which the last one may be half, and b, by
// block, as [word][column]. A part has an even number of ranks then.
struct Delta {
  // Some columns of a panel, a half or all, and the ranks that they have numbers of.
  struct Block {
    int first_vector;
    int num_vectors;
    int first_rank;
    int num_ranks;
    size_t begin;  // of its numbers
  };

  bool by_tiles = false;
  int inner = 0;
  int stride = 0;     // of a rank's numbers of a: whole vectors, or words, ending in zeros
  int num_ranks = 0;  // of all parts
  size_t a = 0;       // where they begin in the adapter's numbers
  std::vector<float> scales;      // by rank, up to a whole panel
  std::vector<Block> blocks;      // of all panels
  std::vector<int> first_blocks;  // by panel, and the end

  // Numbers of a sum that are one word.
  int per_word() const { return by_tiles ? 2 : 1; }
  // Of the panel of a that begins with this rank.
  int columns_of_a(int rank) const { return num_ranks - rank > kHalfPanel ? kPanel : kHalfPanel; }
  size_t panel_of_a(int rank) const { return a + size_t(rank) * stride; }
  size_t end_of_a() const {
    return a + size_t(by_tiles ? round_up(num_ranks, kHalfPanel) : num_ranks) * stride;
  }

  size_t place_of_a(int rank, int i) const {
    if (!by_tiles) return a + size_t(rank) * stride + i;
    const int column = rank % kPanel, first = rank - column;
    return panel_of_a(first) + (size_t(i / 2) * columns_of_a(first) + column) * 2 + i % 2;
  }
  // rank: among those of the block; column: of the block.
  size_t place_of_b(const Block& block, int rank, int column) const {
    const int width = block.num_vectors * kLanes, words = per_word();
    return block.begin + (size_t(rank / words) * width + column) * words + rank % words;
  }
};

// An adapter of a model. Its numbers are elements of the decoder: float32 or bfloat16.
class Adapter {
 public:
  Adapter(Kind element, const AdaptedMatrix* matrices, int count);

  // Null: it does not change the matrix.
  const Delta* find(const Matrix* matrix) const {
    const auto found = deltas_.find(matrix);
    return found == deltas_.end() ? nullptr : &found->second;
  }
  template <class Element>
  const Element* numbers() const {
    return reinterpret_cast<const Element*>(bytes_.data());
  }
  size_t bytes() const { return bytes_.size(); }

 private:
  std::unordered_map<const Matrix*, Delta> deltas_;
  Buffer<char> bytes_;
};

// Rows first .. end - 1 of a step have an adapter. Segments ascend and do not overlap.
struct AdapterRows {
  int first;
  int end;
  const Adapter* adapter;
};

}  // namespace baton
