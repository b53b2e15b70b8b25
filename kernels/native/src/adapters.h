// Adapters: of a row x one adds scale * b @ (a @ x) to the product with a matrix.
#pragma once

#include <unordered_map>
#include <vector>

#include "matrix.h"
#include "memory.h"

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

// The same as the kernels read it.
struct Delta {
  // Some columns of a panel, a half or all, and the ranks that they have numbers of.
  struct Block {
    int first_vector;
    int num_vectors;
    int first_rank;
    int num_ranks;
    size_t begin;  // of numbers [rank][column]
  };

  int inner = 0;
  int stride = 0;     // numbers from rank to rank of a: whole vectors, ending in zeros
  int num_ranks = 0;  // of all parts
  size_t a = 0;       // where they begin in the adapter's numbers
  std::vector<float> scales;      // by rank
  std::vector<Block> blocks;      // of all panels
  std::vector<int> first_blocks;  // by panel, and the end
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
