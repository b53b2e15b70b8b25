// Tokens and their experts, sorted by expert, so that each expert's weights are read once.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "decoder/experts.h"
#include "decoder/row_products.h"
#include "decoder/workspace.h"
#include "products/multiply.h"

namespace baton {

// The experts' part of a step. A pair is a token and an expert of it.
template <class Dot>
class ExpertPairs {
  using Element = typename Dot::Element;

 public:
  ExpertPairs(Workspace<Dot>& work, RowProducts<Dot>& products)
      : work_(work),
        products_(products),
        scores_(most(work.weights, &num_experts) + 1),
        pair_gated_(work.shape.intermediate_size),
        pair_out_(work.shape.hidden_size) {
    for (int thread = 0; thread < work.pool.num_threads(); ++thread) merits_.emplace_back(size_t(scores_.stride));
  }

  // Pairs are sorted by expert, then by token.
  void route(const Experts& experts, int rows) {
    const int per_token = experts.per_token(), pairs = rows * per_token;
    scores_.resize(rows);
    chosen_.resize(pairs);
    pair_rows_.resize(pairs);
    pair_weights_.resize(pairs);
    pair_of_.resize(pairs);
    products_.multiply_to(scores_, *experts.router, rows);
    work_.rows_of(rows, [&](int row, int thread) {
      choose(experts, scores_.row(row), merits_[thread].data(), &chosen_[row * per_token]);
    });
    first_pair_.assign(experts.count() + 1, 0);
    for (const Chosen& one : chosen_)
      if (experts.up[one.expert] != nullptr) ++first_pair_[one.expert + 1];
    for (int i = 0; i < experts.count(); ++i) first_pair_[i + 1] += first_pair_[i];
    next_pair_ = first_pair_;
    for (int i = 0; i < pairs; ++i) {
      pair_of_[i] = kElsewhere;
      if (experts.up[chosen_[i].expert] == nullptr) continue;
      const int pair = next_pair_[chosen_[i].expert]++;
      pair_rows_[pair] = i / per_token;
      pair_weights_[pair] = chosen_[i].weight;
      pair_of_[i] = pair;
    }
  }

  void add_experts(const Operation& now, int rows) {
    const Experts& experts = *now.experts;
    const int per_token = experts.per_token(), pairs = first_pair_[experts.count()];
    const int size = work_.shape.hidden_size;
    pair_gated_.resize(pairs);
    pair_out_.resize(pairs);
    plan_products(experts, experts.up, pairs,
                  [&](int pair) { return work_.operand.row(pair_rows_[pair]); });
    adapt_shared(experts, experts.up, RowsFrom<float>{work_.operand, 0});
    const int num_scaled = experts.scales_input ? first_pair_[experts.num_routed] : 0;
    multiply_each<Dot>(work_.pool, by_expert_, [&](int pair, int column, const Floats* values) {
      Floats scaled[kPanelVectors];
      if (pair < num_scaled) {
        for (int v = 0; v < kPanelVectors; ++v) scaled[v] = values[v] * pair_weights_[pair];
        values = scaled;
      }
      put_activated(pair_gated_.row(pair), now, column, values);
    });
    plan_products(experts, experts.down, pairs, [&](int pair) { return pair_gated_.row(pair); });
    adapt_shared(experts, experts.down,
                 RowsFrom<Element>{pair_gated_, first_pair_[experts.num_routed]});
    multiply_each<Dot>(work_.pool, by_expert_, [&](int pair, int column, const Floats* values) {
      std::memcpy(pair_out_.row(pair) + column, values, kPanel * sizeof(float));
    });
    work_.rows_of(rows, [&](int row, int) {
      float* to = now.apart ? work_.added.row(row) : work_.x.row(row);
      if (now.apart) std::fill_n(to, size, 0.0f);
      for (int n = 0; n < per_token; ++n) {
        const int i = row * per_token + n;
        if (pair_of_[i] == kElsewhere) continue;
        const float weight = pair_of_[i] < num_scaled ? 1.0f : chosen_[i].weight;
        add_row(to, weight, pair_out_.row(pair_of_[i]), size);
      }
    });
  }

 private:
  static constexpr int kElsewhere = -1;

  // The products of all pairs with their experts' matrices. from(pair): the row that it multiplies.
  template <class From>
  void plan_products(const Experts& experts, const Matrix* const* matrices, int pairs, From&& from) {
    int bytes = 0;
    by_expert_.clear();
    for (int expert = 0; expert < experts.count(); ++expert) {
      const int first = first_pair_[expert], count = first_pair_[expert + 1] - first;
      if (count == 0) continue;
      bytes = std::max(bytes, products_.operands().row_bytes(*matrices[expert]));
      by_expert_.push_back({Rows{nullptr, 0, count}, matrices[expert], first});
    }
    products_.operands().reserve(pairs, bytes);
    const Range* ranges = ranges_of(experts, matrices, from);
    work_.rows_of(pairs, [&](int pair, int) {
      const Matrix& matrix = *matrices[expert_of(experts, pair)];
      products_.operands().put(pair, from(pair), matrix, shares_scale(matrix) ? ranges + pair : nullptr);
    });
    for (Product& product : by_expert_)
      product.rows = products_.operands().some(product.first, product.rows.count);
  }

  // By pair, the ranges of rows of which each rank has a part. Experts that share rows are neighbours, and all ranks
  // have as many pairs of them: their chosen experts, the shared one, or both.
  template <class From>
  const Range* ranges_of(const Experts& experts, const Matrix* const* matrices, From&& from) {
    int first = -1, end = 0;
    for (const Product& product : by_expert_) {
      if (!shares_scale(*product.matrix)) continue;
      if (first < 0) first = product.first;
      end = product.first + product.rows.count;
    }
    if (first < 0) return nullptr;
    return products_.share_ranges(first, end, [&](int pair) {
      return range_of(from(pair), matrices[expert_of(experts, pair)]->inner);
    });
  }

  // What adapters add to the products of the expert that all tokens share, which is the last one. Its rows
  // are those of all tokens, in their order; from: the first of them.
  template <class From>
  void adapt_shared(const Experts& experts, const Matrix* const* matrices, RowsFrom<From> from) {
    if (experts.num_shared == 0 || !products_.has_adapters()) return;
    products_.adapt(by_expert_.back(), *matrices[experts.num_routed], from);
  }

  int expert_of(const Experts& experts, int pair) const {
    const auto end = first_pair_.begin() + experts.count() + 1;
    return int(std::upper_bound(first_pair_.begin(), end, pair) - first_pair_.begin()) - 1;
  }

  Workspace<Dot>& work_;
  RowProducts<Dot>& products_;
  Activations<float> scores_;  // by token
  std::vector<Buffer<float>> merits_;
  std::vector<Chosen> chosen_;  // by token
  std::vector<int> pair_of_;    // by place in chosen_; kElsewhere: other ranks have the expert
  // By pair: the token's row, and what is multiplied, gated and to be added.
  std::vector<int> pair_rows_;
  std::vector<float> pair_weights_;
  Activations<Element> pair_gated_;
  Activations<float> pair_out_;
  std::vector<int> first_pair_;  // by expert
  std::vector<int> next_pair_;
  std::vector<Product> by_expert_;
};

}  // namespace baton
