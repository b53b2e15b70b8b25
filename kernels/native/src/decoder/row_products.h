// Rows of a step times matrices.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "adapters/deltas.h"
#include "decoder/workspace.h"
#include "products/multiply.h"
#include "products/operands.h"

namespace baton {

// The products of a step's rows. What adapters add to them is planned here.
template <class Dot>
class RowProducts {
  using Element = typename Dot::Element;

 public:
  explicit RowProducts(Workspace<Dot>& work) : work_(work) {}

  // Which rows have an adapter.
  void set_adapters(const AdapterRows* rows, int count) { adapter_rows_.assign(rows, rows + count); }
  void clear_adapters() { adapter_rows_.clear(); }
  bool has_adapters() const { return !adapter_rows_.empty(); }

  // Makes the rows that have an adapter those of the wanted tokens.
  void keep_adapters(const Batch& batch) {
    adapter_rows_.clear();
    const AdapterRows *now = batch.adapter_rows, *end = now + batch.num_adapter_rows;
    for (int i = 0; i < batch.num_wanted; ++i) {
      const int token = int(batch.wanted[i]);
      while (now != end && now->end <= token) ++now;
      if (now == end) return;
      if (token < now->first) continue;
      if (!adapter_rows_.empty() && adapter_rows_.back().end == i &&
          adapter_rows_.back().adapter == now->adapter)
        ++adapter_rows_.back().end;
      else
        adapter_rows_.push_back({i, i + 1, now->adapter});
    }
  }

  // The next product has the rows of this norm, which are not in the operand.
  void join_norm(const Operation& norm) { joined_norm_ = &norm; }

  // Rows times a matrix, which says in which form it takes them, and what adapters add to that. put: see
  // `multiply` of products/multiply.h.
  template <class From, class Put>
  void multiply(const Matrix& matrix, Activations<From>& from, int rows, Put&& put, int whole = 1) {
    const Range* ranges = nullptr;
    if (shares_scale(matrix))
      ranges = share_ranges(0, rows, [&](int row) { return range_of(from.row(row), matrix.inner); });
    const Operation* const joined = std::exchange(joined_norm_, nullptr);
    const Rows operands =
        joined ? norm_operands(*joined, matrix, rows) : operands_.of(work_.pool, from, rows, matrix, ranges);
    const bool adapted = !adapter_rows_.empty() && deltas_.plan(work_.pool, adapter_rows_, matrix, from, operands);
    baton::multiply<Dot>(work_.pool, operands, matrix, put, adapted ? &deltas_ : nullptr, whole);
  }

  // to = operand * matrix
  void multiply_to(Activations<float>& to, const Matrix& matrix, int rows) {
    multiply(matrix, work_.operand, rows, [&](int row, int column, const Floats* values) {
      std::memcpy(to.row(row) + column, values, kPanel * sizeof(float));
    });
  }

  // By row, the ranges of rows of which each rank has a part; of rows from `first` on, others are not there.
  template <class Own>
  const Range* share_ranges(int first, int end, Own&& own) {
    const int count = end - first, size = work_.ranks.size();
    if (count == 0) return nullptr;
    own_ranges_.resize(count);
    every_range_.resize(size_t(count) * size);
    ranges_.resize(end);
    work_.rows_of(count, [&](int i, int) { own_ranges_[i] = own(first + i); });
    work_.ranks.gather(&own_ranges_.data()->below, count, 2, &every_range_.data()->below);
    for (int i = 0; i < count; ++i) {
      Range& range = ranges_[first + i] = every_range_[size_t(i) * size];
      for (int rank = 1; rank < size; ++rank) range.add(every_range_[size_t(i) * size + rank]);
    }
    return ranges_.data();
  }

  // Plans what adapters add to a product with the matrix that is one of several. from: its rows.
  template <class From>
  void adapt(Product& product, const Matrix& matrix, RowsFrom<From> from) {
    if (deltas_.plan(work_.pool, adapter_rows_, matrix, from, product.rows)) product.added = &deltas_;
  }

  Operands<Element>& operands() { return operands_; }

 private:
  // What a norm returns as rows of a product, without those of the operand.
  Rows norm_operands(const Operation& now, const Matrix& matrix, int rows) {
    operands_.reserve(rows, operands_.row_bytes(matrix));
    work_.rows_of(rows, [&](int row, int thread) {
      float* numbers = work_.float_rows[thread].data();
      work_.norm_row(now, row, numbers);
      operands_.put(row, numbers, matrix, nullptr);
    });
    return operands_.some(0, rows);
  }

  Workspace<Dot>& work_;
  Operands<Element> operands_;
  std::vector<AdapterRows> adapter_rows_;  // of the rows that are left
  Deltas<Element> deltas_;
  const Operation* joined_norm_ = nullptr;  // of the next product
  std::vector<Range> own_ranges_, every_range_, ranges_;
};

// The function of a panel of a product; with `paired` it holds gates and ups.
template <class Element>
void put_activated(Element* row, const Operation& now, int column, const Floats* values) {
  constexpr int kHalf = kPanelVectors / 2;
  const Activation kind = now.activation;
  if (now.paired) {
    for (int v = 0; v < kHalf; ++v)
      narrow(row + column / 2 + v * kLanes,
             gated(kind, values[v] * now.scale, values[v + kHalf]));
    return;
  }
  for (int v = 0; v < kPanelVectors; ++v)
    narrow(row + column + v * kLanes, activate(kind, values[v]));
}

}  // namespace baton
