#pragma once

// Attention over int8 keys and values beside double precision.
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "attention/attention.h"

namespace int8_keys {

using namespace baton;

enum class Query { kUsual, kOneHuge, kNone, kFalling };

struct Case {
  const char* name;
  int dim = 64;
  int group = 3;
  int block_size = 16;
  int context = 300;
  int tokens = 40;  // the last ones of the context
  Seen seen = {0, false};
  Query query = Query::kUsual;
  bool is_given = false;  // the scales
  float cap = 0.0f;
  bool has_sink = false;  // the first value is next to nothing, and the first key has most of the weight
};

constexpr int kKvHeads = 2;

class Attention {
 public:
  explicit Attention(const Case& now) : now_(now), steps_((now.cap != 0.0f ? 1.0f : kScale) * kLog2E) {
    const int num_blocks = (now.context + now.block_size - 1) / now.block_size;
    for (int i = 0; i < num_blocks; ++i) table_.push_back(num_blocks - 1 - i);
    const size_t head_bytes = size_t(now.block_size) * (now.dim + (now.is_given ? 0 : 4));
    // What no token sees is not a number.
    memory_.resize(num_blocks * 2 * kKvHeads * head_bytes, 0xff);
    for (int i = 0; i < 2 * kKvHeads * now.block_size; ++i) given_.push_back(0.01f);
    cache_ = std::make_unique<Cache<uint16_t>>(
        Cache<uint16_t>{reinterpret_cast<uint16_t*>(memory_.data()), KvFormat::kInt8, 2 * kKvHeads * head_bytes, 2,
                        kKvHeads, now.block_size, now.dim, now.is_given ? given_.data() : nullptr});
    for (int kind = 0; kind < 2; ++kind)
      for (int head = 0; head < kKvHeads; ++head)
        for (int key = 0; key < now.context; ++key) fill(kind, head, key);
    query_.resize(size_t(now.tokens) * heads() * now.dim);
    for (size_t i = 0; i < query_.size(); ++i) query_[i] = bfloat16(query_number(int(i % now.dim)));
    tables_[0] = table_.data();
    starts_[1] = lens_[1] = now.tokens;
    lens_[0] = now.context;
    batch_.num_tokens = now.tokens;
    batch_.num_seqs = 1;
    batch_.query_start_loc = starts_;
    batch_.seq_lens = lens_;
    batch_.block_tables = tables_;
    batch_.max_blocks = num_blocks;
  }

  // [tokens][heads][dim], tokens of a task and key/value heads of one at most
  std::vector<uint16_t> run(int tokens, int kv_heads) {
    std::vector<uint16_t> out(query_.size());
    for (int first = 0; first < now_.tokens; first += tokens)
      for (int head = 0; head < kKvHeads; head += kv_heads) {
        const int count = std::min(tokens, now_.tokens - first);
        AttentionTask task{0, first, count, head, 0, now_.group, first};
        task.num_kv_heads = std::min(kv_heads, most_heads<BFloat16Dot>(task.head_rows(), now_.dim));
        kernel(out, nullptr)(task, nullptr, scratch());
        for (int more = head + task.num_kv_heads; more < head + kv_heads; ++more) {
          task.kv_head = more, task.num_kv_heads = 1;
          kernel(out, nullptr)(task, nullptr, scratch());
        }
      }
    return out;
  }

  // The largest error before results become bfloat16: spans leave float32.
  double error() {
    const int num_spans = (now_.context + kSpan - 1) / kSpan, panels = panels_of(now_.dim);
    double worst = 0.0;
    for (int token = 0; token < now_.tokens; ++token)
      for (int head = 0; head < kKvHeads; ++head) {
        AttentionTask task{0, token, 1, head, 0, now_.group, token};
        task.num_spans = num_spans;
        const size_t size = Sums::num_floats(task.rows(), panels);
        std::vector<uint16_t> out(query_.size());
        Buffer<float> parts(num_spans * size);
        kernel(out, parts.data())(task, nullptr, scratch());
        for (int row = 0; row < now_.group; ++row) worst = std::max(worst, row_error(task, row, parts.data(), size));
      }
    return worst;
  }

 private:
  static constexpr float kScale = 0.125f;

  int heads() const { return kKvHeads * now_.group; }
  AttentionScratch<BFloat16Dot>& scratch() {
    if (!scratch_) scratch_ = std::make_unique<AttentionScratch<BFloat16Dot>>(now_.dim);
    return *scratch_;
  }
  AttentionKernel<BFloat16Dot> kernel(std::vector<uint16_t>& out, float* parts) const {
    const size_t stride = size_t(heads()) * now_.dim;
    return {*cache_, batch_, 0,       0,      now_.seen,     kScale, now_.cap,
            nullptr, heads(), query_.data(), stride, out.data(), stride, parts};
  }

  static uint16_t bfloat16(float x) {
    float lanes[kLanes] = {x};
    uint16_t narrow_lanes[kLanes];
    narrow(narrow_lanes, load<Floats>(lanes));
    return narrow_lanes[0];
  }
  float query_number(int dim) {
    switch (now_.query) {
      case Query::kUsual:
        return normal_(random_);
      case Query::kOneHuge:
        return dim == 5 ? 300.0f : 0.01f * normal_(random_);
      case Query::kNone:
        return 0.0f;
      case Query::kFalling:  // the first key has 2^30 times the weight of the last one
        return dim == 0 ? 30.0f / (kLog2E * kScale * 254 * 0.01f) : 0.0f;
    }
    return 0.0f;
  }

  int8_t* codes(int kind, int head, int key) const {
    return reinterpret_cast<int8_t*>(const_cast<uint8_t*>(
               cache_->bytes(table_[key / now_.block_size], 0, kind, head))) +
           size_t(key % now_.block_size) * now_.dim;
  }
  float& scale_of(int kind, int head, int key) const {
    const uint8_t* rows = cache_->bytes(table_[key / now_.block_size], 0, kind, head);
    return const_cast<float&>(cache_->scales(kind, head, rows)[key % now_.block_size]);
  }
  void fill(int kind, int head, int key) {
    const int least = now_.is_given ? -128 : -127;
    for (int dim = 0; dim < now_.dim; ++dim)
      codes(kind, head, key)[dim] = int8_t(least + int(random_() % (128 - least)));
    if (now_.is_given && key % 3 == 0) codes(kind, head, key)[key % now_.dim] = -128;
    if (kind == 0 && now_.query == Query::kFalling)
      codes(kind, head, key)[0] = int8_t(127 - 254 * key / (now_.context - 1));
    if (now_.is_given) return;
    const bool is_fixed = kind == 0 && now_.query == Query::kFalling;
    scale_of(kind, head, key) = is_fixed ? 0.01f : 0.002f + 0.02f * float(random_() % 1000) / 1000;
    if (now_.has_sink && key == 0) scale_of(kind, head, key) = kind == 0 ? 0.05f : 1e-7f;
  }

  double row_error(const AttentionTask& task, int row, const float* parts, size_t size) const {
    const int position = now_.context - now_.tokens + task.first_token, head = task.kv_head;
    const uint16_t* query = &query_[(size_t(task.first_token) * heads() + head * now_.group + row) * now_.dim];
    std::vector<double> scores, wanted(now_.dim), found(now_.dim);
    const int first = std::max(0, now_.seen.first(position));
    double peak = -1e300, total = 0.0, most = 0.0;
    for (int key = first; key <= position; ++key) {
      double score = 0.0;
      for (int dim = 0; dim < now_.dim; ++dim) score += double(widen_one(query[dim])) * codes(0, head, key)[dim];
      score *= kScale * double(scale_of(0, head, key));
      if (now_.cap != 0.0f) score = now_.cap * std::tanh(score / now_.cap);
      scores.push_back(score);
      peak = std::max(peak, score);
    }
    for (int key = first; key <= position; ++key) {
      const double weight = std::exp(scores[key - first] - peak), scale = scale_of(1, head, key);
      total += weight;
      most += weight * scale * 127;
      for (int dim = 0; dim < now_.dim; ++dim) wanted[dim] += weight * scale * codes(1, head, key)[dim];
    }
    double sum_of_weights = 0.0;
    const int panels = panels_of(now_.dim);
    for (int span = 0; span < task.num_spans; ++span) {
      const Sums sums(const_cast<float*>(parts) + span * size, task.rows(), panels);
      const double factor = std::exp2((double(sums.largest[row]) - peak / (now_.cap != 0.0f ? 1.0 : kScale)) * steps_);
      for (int lane = 0; lane < kLanes; ++lane) sum_of_weights += factor * sums.total[row][lane];
      for (int dim = 0; dim < now_.dim; ++dim)
        found[dim] += factor * reinterpret_cast<const float*>(sums.out_row(dim / kPanel, row))[dim % kPanel];
    }
    double worst = 0.0;
    for (int dim = 0; dim < now_.dim; ++dim) {
      const double error = std::abs(found[dim] / sum_of_weights - wanted[dim] / total) / (most / total);
      worst = error >= worst ? error : std::isnan(error) ? std::numeric_limits<double>::infinity() : worst;
    }
    return worst;
  }

  Case now_;
  double steps_;
  std::mt19937 random_{1};
  std::normal_distribution<float> normal_;
  std::vector<int32_t> table_;
  std::vector<uint8_t> memory_;
  std::vector<float> given_;
  std::unique_ptr<Cache<uint16_t>> cache_;
  std::vector<uint16_t> query_;
  std::unique_ptr<AttentionScratch<BFloat16Dot>> scratch_;
  const int32_t* tables_[1];
  int32_t starts_[2] = {};
  int32_t lens_[2] = {};
  Batch batch_{};
};

bool test(const Case& now) {
  Attention attention(now);
  std::printf("%s %g\n", now.name, attention.error());
  const std::vector<uint16_t> alone = attention.run(1, 2);
  for (const int tokens : {2, 5, 7, kQueryRows<BFloat16Dot> / now.group})
    for (const int kv_heads : {1, 2})
      if (attention.run(tokens, kv_heads) != alone) {
        std::printf("%s: other bits with %d tokens of %d heads\n", now.name, tokens, kv_heads);
        return false;
      }
  return true;
}

// Prints a line for each case: its name and the largest error, as a share of the largest value that a row's weights
// could give. Returns whether each token gets the same bits alone as beside others.
inline bool try_int8() {
  const Case cases[] = {
      {.name = "of-96", .dim = 96},
      {.name = "of-64"},
      {.name = "of-128", .dim = 128, .group = 2},
      {.name = "of-256", .dim = 256, .group = 7},
      {.name = "one-row", .group = 1},
      {.name = "blocks-of-1", .block_size = 1},
      {.name = "blocks-of-24", .block_size = 24},
      {.name = "blocks-of-128", .block_size = 128, .context = 521},
      {.name = "window", .context = 400, .seen = {70, false}},
      {.name = "window-of-chunks", .context = 400, .seen = {128, true}},
      {.name = "first-keys", .context = 40},
      {.name = "huge", .query = Query::kOneHuge},
      {.name = "none", .query = Query::kNone},
      {.name = "falling", .context = 600, .query = Query::kFalling},
      {.name = "given", .is_given = true},
      {.name = "capped", .cap = 5.0f},
      {.name = "sink", .has_sink = true},
  };
#if defined(BATON_HAS_AMX)
  std::printf("integers %d\n", IntegerSpan::takes(64));
#else
  std::printf("integers %d\n", kHasHalves);
#endif
  bool is_right = true;
  for (const Case& now : cases) is_right = test(now) && is_right;
  return is_right;
}

}  // namespace int8_keys
