#pragma once

// Attention over a prompt beside double precision.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "attention/attention.h"

namespace prompts {

using namespace baton;

constexpr int kTokens = 544, kHeads = 4, kBlockSize = 16, kBlocks = (kTokens + kBlockSize - 1) / kBlockSize;

struct Case {
  float growth;  // of scores from the first key to the last one
  int head_dim = 64;
  Seen seen = {0, false};
  float cap = 0.0f;
  bool has_sinks = false;
  KvFormat format = KvFormat::kElements;
};

const Case kCases[] = {
    {0.0f},
    {4.0f},    // never so much that what was gathered is scaled
    {300.0f},  // again and again
    {-300.0f},
    {60.0f, 80},
    {300.0f, 128, {150, false}},
    {40.0f, 64, {256, true}, 30.0f},
    {40.0f, 32, {0, false}, 0.0f, true},
    {60.0f, 64, {0, false}, 0.0f, false, KvFormat::kInt8},
};

template <class Dot>
class Prompt {
  using Element = typename Dot::Element;

 public:
  explicit Prompt(const Case& all)
      : case_(all),
        memory_(size_t(kBlocks) * block_stride()),
        cache_{reinterpret_cast<Element*>(memory_.data()), all.format, block_stride() / unit(), 2, 1, kBlockSize,
               all.head_dim, nullptr},
        query_(size_t(kTokens) * kHeads * all.head_dim) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int block = 0; block < kBlocks; ++block) table_[block] = (block * 7) % kBlocks;  // anywhere
    std::vector<float> key(all.head_dim), value(all.head_dim);
    for (int token = 0; token < kTokens; ++token) {
      for (float& x : key) x = normal(random);
      for (float& x : value) x = normal(random);
      key[0] = all.growth * token / kTokens;
      store_row(cache_, table_[token / kBlockSize], 0, 0, 0, token % kBlockSize, key.data());
      store_row(cache_, table_[token / kBlockSize], 0, 1, 0, token % kBlockSize, value.data());
    }
    for (size_t row = 0; row < query_.size(); row += all.head_dim) {
      for (float& x : key) x = normal(random);
      key[0] = scale_of_rows();
      narrow_row(query_.data() + row, key.data(), all.head_dim);
    }
  }

  // With tasks of so many tokens, and so many spans; none: all of them.
  std::vector<Element> attend(int tokens_per_task, int spans_per_task) {
    std::vector<Element> out(query_.size());
    const int32_t start[] = {0, kTokens}, length = kTokens;
    const int32_t* table = table_;
    Batch batch{};
    batch.num_tokens = kTokens;
    batch.num_seqs = 1;
    batch.query_start_loc = start;
    batch.seq_lens = &length;
    batch.block_tables = &table;
    batch.max_blocks = kBlocks;
    const size_t stride = size_t(kHeads) * case_.head_dim;
    Buffer<float> parts(4 * Sums::num_floats(kHeads * tokens_per_task, panels_of(case_.head_dim)));
    AttentionScratch<Dot> scratch(case_.head_dim);
    const AttentionKernel<Dot> kernel{cache_,     batch,   0,      0,             case_.seen, scale(),
                                      case_.cap,  sinks(), kHeads, query_.data(), stride,     out.data(),
                                      stride,     parts.data()};
    for (int first = 0; first < kTokens; first += tokens_per_task) {
      AttentionTask task{0, first, std::min(tokens_per_task, kTokens - first), 0, 0, kHeads, first};
      if (spans_per_task == 0)
        kernel(task, nullptr, scratch);
      else
        attend_spans(kernel, task, spans_per_task, scratch);
    }
    return out;
  }

  double error(const std::vector<Element>& out) const {
    double most = 0.0;
    for (int token = 0; token < kTokens; token += 7)
      for (int head = 0; head < kHeads; ++head) most = std::max(most, error_of_row(out, token, head));
    return most;
  }

 private:
  size_t unit() const { return case_.format == KvFormat::kElements ? sizeof(Element) : 1; }
  size_t block_stride() const {
    return 2 * kBlockSize * (case_.head_dim * unit() + (case_.format == KvFormat::kElements ? 0 : sizeof(float)));
  }
  float scale() const { return 1.0f / std::sqrt(float(case_.head_dim)); }
  float scale_of_rows() const { return std::sqrt(float(case_.head_dim)); }
  const float* sinks() const {
    static const float sinks[kHeads] = {1.0f, -2.0f, 30.0f, 5.0f};
    return case_.has_sinks ? sinks : nullptr;
  }

  void attend_spans(const AttentionKernel<Dot>& kernel, AttentionTask task, int spans, AttentionScratch<Dot>& scratch) {
    const int end = task.first_token + task.num_tokens;
    task.first_span = std::max(0, case_.seen.first(task.first_token)) / kSpan;
    task.num_spans = (end + kSpan - 1) / kSpan - task.first_span;
    const AttentionTask all = task;
    const size_t size = Sums::num_floats(task.rows(), panels_of(case_.head_dim));
    for (int left = all.num_spans; left > 0; left -= task.num_spans) {
      task.num_spans = std::min(left, spans);
      kernel(task, nullptr, scratch);
      task.first_span += task.num_spans;
      task.part += task.num_spans * size;
    }
    kernel.combine(all, scratch);
  }

  double stored(int kind, int token, int dim) const {
    const int block = table_[token / kBlockSize], slot = token % kBlockSize;
    const uint8_t* first = cache_.bytes(block, 0, kind, 0);
    const uint8_t* row = first + slot * cache_.row_bytes();
    if (case_.format == KvFormat::kElements) return widen_one(reinterpret_cast<const Element*>(row)[dim]);
    return double(int8_t(row[dim])) * cache_.scales(kind, 0, first)[slot];
  }

  double error_of_row(const std::vector<Element>& out, int token, int head) const {
    const int dims = case_.head_dim;
    const size_t at = (size_t(token) * kHeads + head) * dims;
    std::vector<double> scores, values(dims), sizes(dims);
    const int first = std::max(0, case_.seen.first(token));
    double largest = case_.has_sinks ? sinks()[head] : -1e30, total = 0.0;
    for (int key = first; key <= token; ++key) {
      double score = 0.0;
      for (int dim = 0; dim < dims; ++dim) score += double(widen_one(query_[at + dim])) * stored(0, key, dim);
      score *= scale();
      if (case_.cap != 0.0f) score = case_.cap * std::tanh(score / case_.cap);
      scores.push_back(score);
      largest = std::max(largest, score);
    }
    if (case_.has_sinks) total = std::exp(sinks()[head] - largest);
    for (int key = first; key <= token; ++key) {
      const double weight = std::exp(scores[key - first] - largest);
      total += weight;
      for (int dim = 0; dim < dims; ++dim) {
        values[dim] += weight * stored(1, key, dim);
        sizes[dim] += weight * std::abs(stored(1, key, dim));
      }
    }
    double most = 0.0;
    for (int dim = 0; dim < dims; ++dim) {
      const double off = std::abs(widen_one(out[at + dim]) - values[dim] / total) * total / sizes[dim];
      most = std::max(most, std::isfinite(off) ? off : 1e30);
    }
    return most;
  }

  Case case_;
  Buffer<uint8_t> memory_;
  Cache<Element> cache_;
  std::vector<Element> query_;
  int32_t table_[kBlocks];
};

// Returns whether bits are equal.
template <class Dot>
bool try_all(const char* name) {
  constexpr int kMost = kQueryRows<Dot> / kHeads;
  bool is_same = true;
  double most = 0.0;
  for (const Case& each : kCases) {
    Prompt<Dot> prompt(each);
    const auto out = prompt.attend(kMost, 0);
    most = std::max(most, prompt.error(out));
    for (const int tokens : {1, 3, 7, kMost / 2 + 3})
      for (const int spans : {0, 2}) is_same &= prompt.attend(tokens, spans) == out;
    is_same &= prompt.attend(kMost, 1) == out;
  }
  std::printf("%s %g\n", name, most);
  return is_same;
}

// Prints, for each kind of numbers, how far it is off, as a part of what the weighted values are at most. Returns
// whether a row's bits depend neither on the rows nor on the spans of its task.
inline bool try_prompts() {
  const bool is_same = try_all<BFloat16Dot>("bfloat16");
  return try_all<Float32Dot>("float32") && is_same;
}

}  // namespace prompts
