// Mixers with a state of constant size for each sequence: short convolutions, the gated delta rule and
// Mamba-2. shared/model/recurrent.py computes the same with PyTorch.
//
// A state is float32. The tokens of a sequence change it one after the other. Numbers of a state that
// do not depend on each other are the tasks, and a task takes all tokens of its sequence in the step. So
// the result of a token depends neither on how a prompt was cut nor on the other sequences.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/task.h"
#include "matrix/matrix.h"
#include "ranks/ranks.h"
#include "threads/pool.h"
#include "vectors/rows.h"

namespace baton {

enum class RecurrentKind : int {
  kShortConv = 0,  // out = c * conv(b * x)
  kDelta = 1,      // S = g * S, S += outer(k, (v - S^T k) * rate), out = S^T q
  kMamba = 2,      // S = g * S + outer(step * x, b), out = S c + skip * x
};

// A layer with states. Borrowed: the maker of the decoder keeps what these point to.
//
// Columns of the product with `inputs`: [b | c | x] of a short convolution, [q | k | v | gate] of the
// delta rule, [gate | x | b | c | steps] of Mamba-2. A state is [the convolution's last inputs, oldest
// first | S of each head], S being [key_dim][head_dim] of the delta rule, [head_dim][key_dim] of Mamba-2.
struct Recurrent {
  const Matrix* inputs;
  const Matrix* rates;     // of the delta rule: [rates | steps] by head; or null
  const float* kernel;     // [kernel_size][channels]
  const float* bias;       // of the convolution, by channel; or null
  const float* decay;      // by head: -exp(A); or null
  const float* step_bias;  // by head; or null
  const float* skip;       // of Mamba-2, by head; or null
  const float* norm;       // the weight of the norm of what S returns; or null
  const float* factors;    // of Mamba-2, by column of the product; or null
  RecurrentKind kind;
  int is_norm_first;  // of Mamba-2: what the norm returns is gated, not what it reads
  int channels;  // of the convolution
  int kernel_size;
  int num_heads;
  int num_groups;  // heads of keys and queries (b and c of Mamba-2), each for as many neighbours
  int key_dim;
  int head_dim;
  float min_step;
  float max_step;
  // Of Mamba-2: of each of `whole_groups` groups of all ranks several have a part, this one of the groups from
  // `first_group` on; 0: each rank has its groups whole.
  int whole_groups;
  int first_group;
  int whole_size;  // numbers of a whole group

  int num_kept() const { return kernel_size - 1; }
  int inner_size() const { return kind == RecurrentKind::kShortConv ? channels : num_heads * head_dim; }
  int num_inputs() const { return inputs->columns; }
  int num_rates() const { return 2 * num_heads; }
  int key_size() const { return num_groups * key_dim; }
  int heads_per_group() const { return num_heads / num_groups; }
  size_t conv_size() const { return size_t(num_kept()) * channels; }
  size_t head_size() const { return size_t(key_dim) * head_dim; }
  size_t state_size() const { return conv_size() + num_heads * head_size(); }
  // Where columns of the product begin.
  int first_channel() const { return kind == RecurrentKind::kMamba ? inner_size() : 0; }
  int first_value() const { return kind == RecurrentKind::kDelta ? 2 * key_size() : inner_size(); }
  int first_gate() const { return kind == RecurrentKind::kDelta ? channels : 0; }
  int first_key() const { return kind == RecurrentKind::kDelta ? key_size() : 2 * inner_size(); }
  int first_query() const {
    return kind == RecurrentKind::kDelta ? 0 : 2 * inner_size() + key_size();
  }
  int first_step() const { return inner_size() + channels; }  // of Mamba-2
};

// Channels of a convolution that one task takes.
constexpr int kConvChannels = 256;
// Rows of S of Mamba-2 that one task takes.
constexpr int kStateRows = 16;

// Columns of S of the delta rule that one task takes: with some hundred keys they stay in the
// first-level cache.
constexpr int kStateColumns = 4 * kLanes;

// Memory of one thread.
struct RecurrentScratch {
  Buffer<float> inputs;              // [kernel_size][kConvChannels]: what a convolution reads
  std::vector<const float*> places;  // where each of them is, oldest first
  Buffer<float> part;                // of an S
  Buffer<float> keys;                // a key and a query, padded with zeros

  void reserve(const Recurrent& own) {
    inputs.reserve(size_t(own.kernel_size) * kConvChannels);
    places.resize(std::max(places.size(), size_t(own.kernel_size)));
    const int padded = round_up(own.key_dim, kLanes);
    part.reserve(std::max(size_t(own.key_dim) * kStateColumns, size_t(kStateRows) * padded));
    keys.reserve(size_t(2) * padded);
  }
};

inline void store_some(float* to, Floats v, int count) { std::memcpy(to, &v, count * sizeof(float)); }

// x, or log(1 + e^x) where that differs from x.
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// The states of one layer.
struct StateView {
  float* data;
  size_t stride;         // from block to block
  const int32_t* blocks; // by sequence: the block that is read, -1 for zeros, and the one written

  const float* before(int seq) const {
    return blocks[2 * seq] < 0 ? nullptr : data + blocks[2 * seq] * stride;
  }
  float* after(int seq) const { return data + blocks[2 * seq + 1] * stride; }
};

// One layer's work on the product of a step, in place; the result goes to `out`.
template <class Element>
class RecurrentKernel {
 public:
  Pool& pool;
  const Recurrent& own;
  const Batch& batch;
  StateView states;
  Activations<float>& product;
  // By head [rate or step | what the state is multiplied with]; in front of the call [rates | steps] of
  // the delta rule.
  Activations<float>& rates;
  Activations<Element>& out;
  std::vector<RecurrentScratch>& scratch;
  const Ranks& ranks;
  Buffer<float>& totals;  // of groups that ranks share, by row
  float eps;

  void operator()() const {
    if (own.factors != nullptr)
      run_rows(pool, batch.num_tokens, [&](int row, int) { scale(product.row(row)); });
    convolve_all();
    if (own.kind == RecurrentKind::kShortConv) return;
    run_rows(pool, batch.num_tokens, [&](int row, int) { prepare(row); });
    const bool corrects = own.kind == RecurrentKind::kDelta;
    const int size = corrects ? kStateColumns : kStateRows;
    const int parts = (own.head_dim + size - 1) / size;
    pool.run(batch.num_seqs * own.num_heads * parts, [&](int task, int thread) {
      const int seq = task / parts / own.num_heads, head = task / parts % own.num_heads;
      const int first = task % parts * size, count = std::min(size, own.head_dim - first);
      if (corrects)
        follow_delta(seq, head, first, count, scratch[thread]);
      else
        follow_mamba(seq, head, first, count, scratch[thread]);
    });
    if (own.whole_groups > 0) share_squares();
    run_rows(pool, batch.num_tokens, [&](int row, int) {
      if (corrects)
        finish_delta(row);
      else
        finish_mamba(row);
    });
  }

 private:
  int first_token(int seq) const { return batch.query_start_loc[seq]; }
  int num_tokens(int seq) const { return first_token(seq + 1) - first_token(seq); }

  void scale(float* x) const {
    for_vectors(own.num_inputs(), [&](int i, auto n) {
      store_some(x + i, load_some(x + i, n) * load_some(own.factors + i, n), n);
    });
  }

  void convolve_all() const {
    const int parts = (own.channels + kConvChannels - 1) / kConvChannels;
    pool.run(batch.num_seqs * parts, [&](int task, int thread) {
      const int seq = task / parts, first = task % parts * kConvChannels;
      const int count = std::min(kConvChannels, own.channels - first);
      if (own.kind == RecurrentKind::kShortConv) {
        const int width = own.channels;
        convolve(
            seq, first, count, scratch[thread],
            [&](const float* x, auto n) { return load_some(x, n) * load_some(x + 2 * width, n); },
            [&](int row, int channel, Floats sum, auto n) {
              write(out.row(row) + channel, load_some(product.row(row) + width + channel, n) * sum, n);
            });
        return;
      }
      convolve(
          seq, first, count, scratch[thread], [](const float* x, auto n) { return load_some(x, n); },
          [&](int row, int channel, Floats sum, auto n) {
            store_some(product.row(row) + own.first_channel() + channel, silu(sum), n);
          });
    });
  }

  // The causal convolution of `count` channels of a sequence's rows. read(x, n): the inputs of n channels
  // whose columns begin at x; put(row, channel, sum, n) takes what comes out.
  template <class Read, class Put>
  void convolve(int seq, int first, int count, RecurrentScratch& s, Read&& read, Put&& put) const {
    const int size = own.kernel_size, kept = own.num_kept(), tokens = num_tokens(seq);
    const float* before = states.before(seq);
    float* after = states.after(seq);
    // Number `index` of the kept inputs and of the tokens' own ones behind them.
    auto input = [&](int index) { return s.inputs.data() + size_t(index % size) * kConvChannels; };
    for (int i = 0; i < kept; ++i) {
      if (before == nullptr)
        std::fill_n(input(i), count, 0.0f);
      else
        std::copy_n(before + size_t(i) * own.channels + first, count, input(i));
    }
    for (int token = 0; token < tokens; ++token) {
      const int row = first_token(seq) + token;
      const float* x = product.row(row) + own.first_channel() + first;
      float* newest = input(token + kept);
      for (int at = 0; at < size; ++at) s.places[at] = input(token + at);
      for_vectors(count, [&](int i, auto n) {
        store_some(newest + i, read(x + i, n), n);
        const float* weights = own.kernel + first + i;
        Floats sum = load_some(s.places[0] + i, n) * load_some(weights, n);
        for (int at = 1; at < size; ++at) {
          weights += own.channels;
          sum += load_some(s.places[at] + i, n) * load_some(weights, n);
        }
        if (own.bias != nullptr) sum += load_some(own.bias + first + i, n);
        put(row, first + i, sum, n);
      });
    }
    for (int i = 0; i < kept; ++i)
      std::copy_n(input(tokens + i), count, after + size_t(i) * own.channels + first);
  }

  // What a token's heads need: rates, decays, and of the delta rule queries and keys of length 1.
  void prepare(int row) const {
    float* x = product.row(row);
    float* rate = rates.row(row);
    const bool corrects = own.kind == RecurrentKind::kDelta;
    const float* steps = corrects ? rate + own.num_heads : x + own.first_step();
    for (int head = 0; head < own.num_heads; ++head) {
      float step = softplus(steps[head] + own.step_bias[head]);
      if (corrects) {
        rate[head] = 1.0f / (1.0f + std::exp(-rate[head]));
      } else {
        step = std::min(std::max(step, own.min_step), own.max_step);
        rate[head] = step;
      }
      rate[own.num_heads + head] = std::exp(own.decay[head] * step);
    }
    if (!corrects) return;
    const float scale = 1.0f / std::sqrt(float(own.key_dim));
    for (int group = 0; group < own.num_groups; ++group) {
      make_unit(x + own.first_query() + group * own.key_dim, scale);
      make_unit(x + own.first_key() + group * own.key_dim, 1.0f);
    }
  }

  void make_unit(float* x, float length) const {
    const float factor = length / std::sqrt(sum_of_squares(x, own.key_dim) + 1e-6f);
    for (int i = 0; i < own.key_dim; ++i) x[i] *= factor;
  }

  // Columns of S of one head. The result takes the place of the values.
  void follow_delta(int seq, int head, int first, int count, RecurrentScratch& s) const {
    const size_t offset = own.conv_size() + head * own.head_size() + first;
    const float* before = states.before(seq);
    float* after = states.after(seq) + offset;
    float* part = s.part.data();
    std::fill_n(part, own.key_dim * kStateColumns, 0.0f);
    if (before != nullptr)
      for (int i = 0; i < own.key_dim; ++i)
        std::copy_n(before + offset + size_t(i) * own.head_dim, count, part + i * kStateColumns);
    const int group = head / own.heads_per_group();
    for (int row = first_token(seq); row < first_token(seq + 1); ++row) {
      float* x = product.row(row);
      const float* rate = rates.row(row) + head;
      follow_token(part, x + own.first_key() + group * own.key_dim,
                   x + own.first_query() + group * own.key_dim, rate[own.num_heads], rate[0],
                   x + own.first_value() + head * own.head_dim + first, count);
    }
    for (int i = 0; i < own.key_dim; ++i)
      std::copy_n(part + i * kStateColumns, count, after + size_t(i) * own.head_dim);
  }

  void follow_token(float* part, const float* key, const float* query, float decay, float rate,
                    float* value, int count) const {
    constexpr int kVectors = kStateColumns / kLanes;
    const int size = own.key_dim;
    float values[kStateColumns] = {};
    std::copy_n(value, count, values);
    Floats known[kVectors] = {}, change[kVectors], result[kVectors] = {};
    for (int i = 0; i < size; ++i)
      for (int v = 0; v < kVectors; ++v)
        known[v] += load<Floats>(part + i * kStateColumns + v * kLanes) * key[i];
    for (int v = 0; v < kVectors; ++v)
      change[v] = (load<Floats>(values + v * kLanes) - known[v] * decay) * rate;
    for (int i = 0; i < size; ++i)
      for (int v = 0; v < kVectors; ++v) {
        float* at = part + i * kStateColumns + v * kLanes;
        const Floats now = load<Floats>(at) * decay + change[v] * key[i];
        store(at, now);
        result[v] += now * query[i];
      }
    for (int v = 0; v < kVectors; ++v) store(values + v * kLanes, result[v]);
    std::copy_n(values, count, value);
  }

  // Rows of S of one head. The result takes the place of x.
  void follow_mamba(int seq, int head, int first, int count, RecurrentScratch& s) const {
    const int size = own.key_dim, padded = round_up(size, kLanes);
    const size_t offset = own.conv_size() + head * own.head_size() + size_t(first) * size;
    const float* before = states.before(seq);
    float* after = states.after(seq) + offset;
    float* part = s.part.data();
    std::fill_n(part, count * padded, 0.0f);
    if (before != nullptr)
      for (int i = 0; i < count; ++i)
        std::copy_n(before + offset + size_t(i) * size, size, part + i * padded);
    float *key = s.keys.data(), *query = key + padded;
    std::fill_n(key, 2 * padded, 0.0f);
    const int group = head / own.heads_per_group();
    for (int row = first_token(seq); row < first_token(seq + 1); ++row) {
      float* x = product.row(row);
      const float step = rates.row(row)[head], decay = rates.row(row)[own.num_heads + head];
      std::copy_n(x + own.first_key() + group * size, size, key);
      std::copy_n(x + own.first_query() + group * size, size, query);
      float* value = x + own.first_value() + head * own.head_dim + first;
      for (int i = 0; i < count; ++i) {
        const float input = value[i] * step;
        Floats result{};
        for (int n = 0; n < padded; n += kLanes) {
          float* at = part + i * padded + n;
          const Floats now = load<Floats>(at) * decay + load<Floats>(key + n) * input;
          store(at, now);
          result += now * load<Floats>(query + n);
        }
        value[i] = sum(result) + own.skip[head] * value[i];
      }
    }
    for (int i = 0; i < count; ++i) std::copy_n(part + i * padded, size, after + size_t(i) * size);
  }

  // Each head's norm, times silu(gate).
  void finish_delta(int row) const {
    float* x = product.row(row) + own.first_value();
    const float* gate = product.row(row) + own.first_gate();
    for (int head = 0; head < own.num_heads; ++head) {
      float* values = x + head * own.head_dim;
      normalize(values, own.norm, own.head_dim, eps, values);
    }
    for_vectors(own.inner_size(), [&](int i, auto n) {
      write(out.row(row) + i, load_some(x + i, n) * silu(load_some(gate + i, n)), n);
    });
  }

  // Each group's norm of what was multiplied with silu(gate); or the norm first, or none.
  void finish_mamba(int row) const {
    float* x = product.row(row) + own.first_value();
    const bool has_norm = own.norm != nullptr, is_gated = own.whole_groups > 0 && !own.is_norm_first;
    if (has_norm && own.is_norm_first) normalize_groups(row);
    if (!is_gated) gate(row);
    if (has_norm && !own.is_norm_first) normalize_groups(row);
    narrow_row(out.row(row), x, own.inner_size());
  }

  void gate(int row) const {
    float* x = product.row(row) + own.first_value();
    const float* gates = product.row(row) + own.first_gate();
    for_vectors(own.inner_size(), [&](int i, auto n) {
      store_some(x + i, load_some(x + i, n) * silu(load_some(gates + i, n)), n);
    });
  }

  // The squares of what the norms go over, of all ranks; behind the gates, unless those come behind it.
  void share_squares() const {
    const int count = own.whole_groups, size = own.inner_size() / own.num_groups;
    totals.reserve(size_t(batch.num_tokens) * count);
    run_rows(pool, batch.num_tokens, [&](int row, int) {
      if (!own.is_norm_first) gate(row);
      const float* x = product.row(row) + own.first_value();
      float* to = totals.data() + size_t(row) * count;
      std::fill_n(to, count, 0.0f);
      for (int group = 0; group < own.num_groups; ++group)
        to[own.first_group + group] = sum_of_squares(x + group * size, size);
    });
    ranks.sum(totals.data(), size_t(batch.num_tokens) * count);
  }

  void normalize_groups(int row) const {
    float* x = product.row(row) + own.first_value();
    const int size = own.inner_size() / own.num_groups;
    for (int group = 0, first = 0; group < own.num_groups; ++group, first += size) {
      if (own.whole_groups == 0) {
        normalize(x + first, own.norm + first, size, eps, x + first);
        continue;
      }
      const float total = totals.data()[size_t(row) * own.whole_groups + own.first_group + group];
      weigh_row(x + first, norm_factor(total, own.whole_size, eps), own.norm + first, size, x + first);
    }
  }

  static void write(Element* to, Floats values, int count) {
    Element narrowed[kLanes];
    narrow(narrowed, values);
    std::memcpy(to, narrowed, count * sizeof(Element));
  }
};

}  // namespace baton
