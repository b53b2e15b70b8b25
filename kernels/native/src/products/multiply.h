// Rows times a packed matrix, split over the pool; what happens to the results is up to the caller.
#pragma once

#include <algorithm>
#include <vector>

#include "matrix/matrix.h"
#include "products/code_tiles.h"
#include "products/codes.h"
#include "products/operands.h"
#include "products/piece_tiles.h"
#include "products/pieces.h"
#include "products/tasks.h"
#include "products/wide.h"
#include "vectors/amx.h"
#include "vectors/rows.h"

namespace baton {

// Words that a group of rows goes through before the next group does, while few rows share a panel
// that comes from memory. Half of a piece is what one group fetches of the next piece.
constexpr int kPieceWords = 64;
// How far few rows that share no panel fetch ahead: farther costs a tenth of what a core of Zen 3 reads.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kAheadWords = 8;
#else
constexpr int kAheadWords = 32;
#endif

// sums: [count][kPanelVectors] of rows first.. against the whole panel.
template <class Dot>
void multiply_panel(const Rows& rows, int first, int count, const uint32_t* panel, int words,
                    typename Dot::Accumulator* sums) {
  const uint32_t* start = rows.words + size_t(first) * rows.stride;
#if defined(BATON_HAS_AMX)
  if constexpr (std::is_same_v<Dot, BFloat16Dot> || std::is_same_v<Dot, Int8Dot>) {
    const bool is_exact = std::is_same_v<Dot, Int8Dot>;
    if ((!is_exact || count >= kLeastAmxRows) && may_use_amx()) {
      multiply_by_amx<Dot>(start, rows.stride, count, panel, 1, words, sums, count, true, true);
      return;
    }
  }
#endif
  if (count <= kTileRows) {
    multiply_rows<Dot, 2>(count, start, rows.stride, panel, words, sums, true,
                          panel + kAheadWords * kPanel);
    return;
  }
  if constexpr (Dot::kIsWider) {
    multiply_wide<Dot>(rows, first, count, panel, words, sums);
    return;
  }
  if (count > 4 * kTileRows) {  // the panel is read from a cache most of the time
    for_row_groups(count, [&](int row, int n) {
      multiply_rows<Dot, 0>(n, start + row * rows.stride, rows.stride, panel, words,
                            sums + row * kPanelVectors, true);
    });
    return;
  }
  for (int word = 0; word < words; word += kPieceWords) {
    const int piece = std::min(kPieceWords, words - word);
    const uint32_t* here = panel + size_t(word) * kPanel;
    const uint32_t* ahead = here + kPieceWords * kPanel;
    int group = 0;
    for_row_groups(count, [&](int row, int n) {
      const uint32_t* from = start + row * rows.stride + word;
      auto* to = sums + row * kPanelVectors;
      if (group < 2)
        multiply_rows<Dot, 1>(n, from, rows.stride, here, piece, to, word == 0,
                              ahead + group * kPieceWords * kLineWords);
      else
        multiply_rows<Dot, 0>(n, from, rows.stride, here, piece, to, word == 0);
      ++group;
    });
  }
}

// Scales the exact sums of int8 of a panel. Both may be the same memory.
inline void scale_exact(const Rows& rows, int first, int count, const Matrix& matrix, int panel,
                        const Ints* exact, Floats* sums) {
  for (int v = 0; v < kPanelVectors; ++v) {
    const size_t column = size_t(panel) * kPanel + v * kLanes;
    const Ints total = load<Ints>(matrix.totals.data() + column);
    const Floats scale = load<Floats>(matrix.scales.data() + column);
    for (int r = 0; r < count; ++r) {
      const Ints sum = exact[r * kPanelVectors + v] - total * rows.offsets[first + r];
      sums[r * kPanelVectors + v] =
          __builtin_convertvector(sum, Floats) * (scale * rows.scales[first + r]);
    }
  }
}

// multiply_panel for int8.
inline void multiply_int8(const Rows& rows, int first, int count, const Matrix& matrix, int panel,
                          Floats* sums) {
  Ints* exact = reinterpret_cast<Ints*>(sums);
  multiply_panel<Int8Dot>(rows, first, count, matrix.panel(panel), matrix.words, exact);
  scale_exact(rows, first, count, matrix, panel, exact, sums);
}

// multiply_panel for stored codes. The rows are elements, unless they are rounded.
template <class Code, class Element>
void multiply_stored(const Rows& rows, int first, int count, const Matrix& matrix, int panel,
                     Floats* sums) {
  const uint32_t* words = rows.words + first * rows.stride;
#if defined(BATON_HAS_AMX)
  if (has_code_tiles<Element>(matrix)) {
    multiply_codes_by_amx(words, rows.stride, count, matrix, panel, sums);
    return;
  }
#endif
  auto multiply = [&](auto* elements) {
    constexpr int kPerWord = sizeof(uint32_t) / sizeof(*elements);
    multiply_codes<Code>(elements, rows.stride * kPerWord, count, matrix, panel, sums);
  };
  if (row_form(matrix) == RowForm::kRounded)
    multiply(reinterpret_cast<const float*>(words));
  else
    multiply(reinterpret_cast<const Element*>(words));
}

// sums: [count][kPanelVectors] of rows first.. against a panel of any kind.
template <class Element>
__attribute__((noinline)) void multiply_kind(const Rows& rows, int first, int count,
                                             const Matrix& matrix, int panel, Floats* sums) {
  if (row_form(matrix) == RowForm::kPieces) {
#if defined(BATON_HAS_AMX)
    if (count >= kLeastPieceRows && has_piece_tiles(matrix)) {
      multiply_pieces_by_amx(rows, first, count, matrix, panel, sums);
      return;
    }
#endif
    multiply_integers(rows, first, count, matrix, panel, sums);
    return;
  }
  switch (matrix.kind) {
    case Kind::kInt8:
      multiply_int8(rows, first, count, matrix, panel, sums);
      return;
    case Kind::kFours:
      multiply_stored<Nibbles, Element>(rows, first, count, matrix, panel, sums);
      return;
    case Kind::kEights:
      multiply_stored<SignedBytes, Element>(rows, first, count, matrix, panel, sums);
      return;
    case Kind::kSixes:  // only in pieces
      return;
    case Kind::kLooked:
      multiply_stored<LookedBytes, Element>(rows, first, count, matrix, panel, sums);
      return;
    case Kind::kFloat8s:
      multiply_stored<Floats8, Element>(rows, first, count, matrix, panel, sums);
      return;
    case Kind::kFloat32:
      multiply_panel<Float32Dot>(rows, first, count, matrix.panel(panel), matrix.words, sums);
      return;
    case Kind::kBFloat16:
      multiply_panel<BFloat16Dot>(rows, first, count, matrix.panel(panel), matrix.words, sums);
      return;
    case Kind::kFloatParts:
      multiply_parts(rows.words + size_t(first) * rows.stride, rows.stride, count, matrix.panel(panel), 1, matrix.words,
                     sums, count);
  }
}

// Compiled once, in multiply.cpp: most of the time that the library takes.
extern template void multiply_kind<float>(const Rows&, int, int, const Matrix&, int, Floats*);
extern template void multiply_kind<uint16_t>(const Rows&, int, int, const Matrix&, int, Floats*);

// multiply_kind of one row and several panels of elements or int8. sums: [num_panels][kPanelVectors].
inline void multiply_row(const Rows& rows, int row, const Matrix& matrix, int panel, int num_panels, Floats* sums) {
  const uint32_t* words = rows.words + size_t(row) * rows.stride;
  auto multiply = [&]<class Dot>(auto* to) {
    multiply_panels_at_once<Dot>(num_panels, words, matrix.panel(panel), matrix.words, to);
  };
  if (matrix.kind == Kind::kFloat32) {
    multiply.template operator()<Float32Dot>(sums);
  } else if (matrix.kind == Kind::kBFloat16) {
    multiply.template operator()<BFloat16Dot>(sums);
  } else {
    multiply.template operator()<Int8Dot>(reinterpret_cast<Ints*>(sums));
    for (int p = 0; p < num_panels; ++p) {
      Floats* own = sums + p * kPanelVectors;
      scale_exact(rows, row, 1, matrix, panel + p, reinterpret_cast<const Ints*>(own), own);
    }
  }
}

// sums: [num_panels][count][kPanelVectors]. Several panels only where Tasks takes them together.
template <class Element>
inline void multiply_panels(const Rows& rows, int first, int count, const Matrix& matrix, int panel,
                            int num_panels, Floats* sums) {
#if defined(BATON_HAS_AMX)
  if (blocks_of(rows) > 1 && has_code_tiles<Element>(matrix)) {
    multiply_block_by_amx(rows.words + size_t(first) * rows.stride, rows.stride, count, matrix, panel, num_panels,
                          first == 0, sums);
    return;
  }
  if (num_panels > 1) {
    auto multiply = [&]<class Dot>(auto* to) {
      multiply_by_amx<Dot>(rows.words + size_t(first) * rows.stride, rows.stride, count, matrix.panel(panel),
                           num_panels, matrix.words, to, count, true, true);
    };
    if (matrix.kind == Kind::kFloatParts) {
      multiply_parts(rows.words + size_t(first) * rows.stride, rows.stride, count, matrix.panel(panel), num_panels,
                     matrix.words, sums, count);
      return;
    }
    if (row_form(matrix) == RowForm::kPieces) {
      for (int p = 0; p < num_panels; ++p)
        multiply_pieces_by_amx(rows, first, count, matrix, panel + p, sums + size_t(p) * count * kPanelVectors);
      return;
    }
    if (matrix.kind == Kind::kBFloat16) {
      multiply.template operator()<BFloat16Dot>(sums);
      return;
    }
    multiply.template operator()<Int8Dot>(reinterpret_cast<Ints*>(sums));
    for (int p = 0; p < num_panels; ++p) {
      Floats* own = sums + size_t(p) * count * kPanelVectors;
      scale_exact(rows, first, count, matrix, panel + p, reinterpret_cast<const Ints*>(own), own);
    }
    return;
  }
#endif
  if (num_panels > 1)
    multiply_row(rows, first, matrix, panel, num_panels, sums);
  else
    multiply_kind<Element>(rows, first, count, matrix, panel, sums);
}

// What is added to the sums of some rows with panels.
struct Added {
  virtual ~Added() = default;
  // Fetches what `add` will read.
  virtual void prefetch_panel(int first, int count, int panel) const = 0;
  // sums: [num_panels][count][kPanelVectors] of rows first..
  virtual void add(int first, int count, int panel, int num_panels, Floats* sums) const = 0;
};

// One block of the rows times some panels. added: or null.
template <class Dot, class Put>
void multiply_block(const Rows& rows, const Matrix& matrix, int panel, int num_panels, int block, Put&& put,
                    const Added* added = nullptr) {
  const int blocks = blocks_of(rows);
  const int first = int(int64_t(rows.count) * block / blocks);
  const int count = int(int64_t(rows.count) * (block + 1) / blocks) - first;
  alignas(64) Floats all[kMostPanels * kTaskRows * kPanelVectors];
  if (added) added->prefetch_panel(first, count, panel);
  multiply_panels<typename Dot::Element>(rows, first, count, matrix, panel, num_panels, all);
  if (added) added->add(first, count, panel, num_panels, all);
  // Row by row: what is written to a row lies together.
  for (int r = 0; r < count; ++r)
    for (int p = 0; p < num_panels; ++p) {
      const Floats* sums = all + (size_t(p) * count + r) * kPanelVectors;
      const int column = (panel + p) * kPanel;
      const float* bias = matrix.bias.data() + column;
      Floats values[kPanelVectors];
      for (int v = 0; v < kPanelVectors; ++v) values[v] = sums[v] + load<Floats>(bias + v * kLanes);
      put(first + r, column, values);
    }
}

// Calls put(row, column, values) with float32 results, bias added: values[v] are the columns from
// column + v * kLanes on. The columns past the matrix's last one are zero. Each (row, panel) once,
// from any thread. whole: see Tasks; of so many panels from a multiple of it on, a row's are put one after the other.
template <class Dot, class Put>
void multiply(Pool& pool, const Rows& rows, const Matrix& matrix, Put&& put,
              const Added* added = nullptr, int whole = 1) {
  const Tasks<typename Dot::Element> tasks(pool, rows, matrix, 0, whole);
  pool.run(tasks.count(), [&](int task, int) {
    tasks.take(task, [&](int panel, int num_panels, int block) {
      multiply_block<Dot>(rows, matrix, panel, num_panels, block, put, added);
    });
  });
}

// Some rows and the matrix that they are multiplied with.
struct Product {
  Rows rows;
  const Matrix* matrix;
  int first;  // the number of the first row among those of all products
  const Added* added = nullptr;  // to its own rows
};

// The same for several products at once; `row` counts the rows of all of them.
template <class Dot, class Put>
void multiply_each(Pool& pool, const std::vector<Product>& products, Put&& put) {
  int behind = 0;
  for (const Product& product : products) behind += product.matrix->num_panels();
  std::vector<Tasks<typename Dot::Element>> tasks;
  std::vector<int> ends;
  int total = 0;
  for (const Product& product : products) {
    behind -= product.matrix->num_panels();
    tasks.emplace_back(pool, product.rows, *product.matrix, behind);
    ends.push_back(total += tasks.back().count());
  }
  pool.run(total, [&](int task, int) {
    const size_t index = std::upper_bound(ends.begin(), ends.end(), task) - ends.begin();
    const Product& product = products[index];
    tasks[index].take(task - (index ? ends[index - 1] : 0), [&](int panel, int num_panels, int block) {
      multiply_block<Dot>(product.rows, *product.matrix, panel, num_panels, block,
                          [&](int row, int column, const Floats* values) {
                            put(product.first + row, column, values);
                          },
                          product.added);
    });
  });
}

}  // namespace baton
