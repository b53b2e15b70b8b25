#include "decoder/choice.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <new>
#include <vector>

#include "vectors/simd.h"

namespace baton {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kNever = -std::numeric_limits<float>::infinity();
// Numbers that are added up before they are added to a sum in 64 bits.
constexpr int kPiece = 256;
constexpr int kBuckets = 1024;
constexpr uint32_t kAllLanes = (uint32_t(1) << kLanes) - 1;

// A row, and what is known of it: its largest number, and the number below which tokens are cut.
class Row {
 public:
  Row(const float* logits, int vocab) : logits_(logits), vocab_(vocab) {}

  int64_t choose(const RowChoice& choice) {
    if (!find_peak()) return -1;
    if (choice.temperature == 0.0f) return first_from(peak_);
    // A weight is exp2 of a number's distance from the largest one times this.
    factor_ = std::min(kLog2E / choice.temperature, 1e30f);
    if (choice.min_p > 0.0f) floor_ = peak_ + choice.temperature * std::log(choice.min_p);
    if (choice.top_k > 0 && choice.top_k < vocab_) cut_to_most_likely(int(choice.top_k));
    if (choice.top_p < 1.0f) cut_to_mass(choice.top_p);
    return invert(choice.number);
  }

 private:
  int num_pieces() const { return (vocab_ + kPiece - 1) / kPiece; }
  int end_of(int piece) const { return std::min(vocab_, (piece + 1) * kPiece); }

  // Whether there is a largest number that is finite, and none is NaN.
  bool find_peak() {
    Floats largest = splat(kNever);
    Ints unordered{};
    int i = 0;
    for (; i + kLanes <= vocab_; i += kLanes) {
      const Floats x = load<Floats>(logits_ + i);
      largest = max(largest, x);
      unordered |= x != x;
    }
    peak_ = max_lane(largest);
    bool is_ordered = !lanes_where(unordered);
    for (; i < vocab_; ++i) {
      peak_ = std::max(peak_, logits_[i]);
      is_ordered &= logits_[i] == logits_[i];
    }
    return is_ordered && std::isfinite(peak_);
  }

  int first_from(float floor) const {
    int i = 0;
    for (; i + kLanes <= vocab_; i += kLanes)
      if (lanes_where(load<Floats>(logits_ + i) >= floor)) break;
    while (logits_[i] < floor) ++i;
    return i;
  }

  Floats weights(Floats x) const { return exp2((x - peak_) * factor_); }
  float weight(float x) const { return weights(splat(x))[0]; }

  // The weights of a piece's tokens that are not cut, each from a place of `out`; their sum.
  float weigh(int piece, float* out) const {
    Floats total{};
    const int start = piece * kPiece, end = end_of(piece);
    int i = start;
    for (; i + kLanes <= end; i += kLanes) {
      const Floats x = load<Floats>(logits_ + i);
      const Floats w = x >= floor_ ? weights(x) : Floats{};
      store(out + i - start, w);
      total += w;
    }
    float sum_of = sum(total);
    for (; i < end; ++i) {
      out[i - start] = logits_[i] >= floor_ ? weight(logits_[i]) : 0.0f;
      sum_of += out[i - start];
    }
    return sum_of;
  }

  // Writes the numbers from `floor` on to `found`, in their order, and what fills the last vector: the
  // largest one. Returns how many there are without that.
  size_t gather(float floor, std::vector<float>& found) const {
    found.resize(vocab_ + kLanes);
    float* to = found.data();
    int i = 0;
    for (; i + kLanes <= vocab_; i += kLanes) {
      const Floats x = load<Floats>(logits_ + i);
      uint32_t lanes = lanes_where(x >= floor);
      if (lanes == kAllLanes) {
        store(to, x);
        to += kLanes;
        continue;
      }
      for (; lanes != 0; lanes &= lanes - 1) *to++ = logits_[i + __builtin_ctz(lanes)];
    }
    for (; i < vocab_; ++i)
      if (logits_[i] >= floor) *to++ = logits_[i];
    const size_t count = to - found.data();
    while ((to - found.data()) % kLanes != 0) *to++ = peak_;
    return count;
  }

  // As many pieces of the row as there are tokens to keep have a largest number from some number on: no
  // fewer tokens do, so that all others can be left out before anything is put into an order.
  void cut_to_most_likely(int count) {
    static thread_local std::vector<float> found;
    constexpr int kStep = 64;
    const int num_steps = vocab_ / kStep;
    float floor = kNever;
    if (count <= num_steps) {
      found.clear();
      for (int step = 0; step < num_steps; ++step) {
        Floats largest = load<Floats>(logits_ + step * kStep);
        for (int i = kLanes; i < kStep; i += kLanes)
          largest = max(largest, load<Floats>(logits_ + step * kStep + i));
        found.push_back(max_lane(largest));
      }
      floor = largest_but(count, found);
    }
    found.resize(gather(floor, found));
    floor_ = std::max(floor_, largest_but(count, found));
  }

  static float largest_but(int count, std::vector<float>& numbers) {
    const auto place = numbers.begin() + (count - 1);
    std::nth_element(numbers.begin(), place, numbers.end(), std::greater<float>());
    return *place;
  }

  // Keeps the smallest set of most likely tokens whose mass reaches a share of that of all that are left.
  void cut_to_mass(float share) {
    static thread_local std::vector<float> found, bucket;
    float piece_weights[kPiece];
    double total = 0.0;
    for (int piece = 0; piece < num_pieces(); ++piece) total += weigh(piece, piece_weights);
    const double wanted = double(share) * total;
    // All tokens with less than this weight have less mass than what is cut.
    const double least = (1.0 - double(share)) * total / vocab_;
    const float reach = float(-std::log2(std::max(least, 1e-300))) / factor_ * 1.0001f + 1e-6f;
    const float floor = std::max({floor_, peak_ - std::max(reach, 0.0f), kLowest});
    const size_t count = gather(floor, found);

    // Their mass by distance from the largest number, so that few have to be put into an order.
    const float lowest = *std::min_element(found.begin(), found.begin() + count);
    const float per_number = lowest < peak_ ? (kBuckets - 1) / (peak_ - lowest) : 0.0f;
    auto buckets_of = [&](size_t first) {
      return __builtin_convertvector((peak_ - load<Floats>(&found[first])) * per_number, Ints);
    };
    double mass[kBuckets + 1] = {};
    for (size_t first = 0; first < count; first += kLanes) {
      float own[kLanes];
      int32_t places[kLanes];
      store(own, weights(load<Floats>(&found[first])));
      store(places, buckets_of(first));
      const int num = int(std::min(count - first, size_t(kLanes)));
      for (int i = 0; i < num; ++i) mass[places[i]] += own[i];
    }
    int at = 0;
    double before = 0.0;
    while (at < kBuckets && before + mass[at] < wanted) before += mass[at++];
    bucket.clear();
    for (size_t first = 0; first < count; first += kLanes)
      for (uint32_t lanes = lanes_where(buckets_of(first) == at); lanes != 0; lanes &= lanes - 1)
        if (first + __builtin_ctz(lanes) < count) bucket.push_back(found[first + __builtin_ctz(lanes)]);
    std::sort(bucket.begin(), bucket.end(), std::greater<float>());
    float last = bucket.empty() ? lowest : bucket.front();
    for (const float x : bucket) {
      if (before >= wanted) break;
      last = x;
      before += weight(x);
    }
    floor_ = std::max(floor_, last);
  }

  // The token at which the cumulative distribution passes the number, in the order of the vocabulary.
  int64_t invert(double number) {
    static thread_local std::vector<double> reached;
    float piece_weights[kPiece];
    reached.clear();
    double total = 0.0;
    for (int piece = 0; piece < num_pieces(); ++piece)
      reached.push_back(total += weigh(piece, piece_weights));
    // Rounding must not move the number past the end, where only weights of zero follow.
    const double target = std::min(number * total, std::nextafter(total, 0.0));
    const int piece = int(std::upper_bound(reached.begin(), reached.end(), target) - reached.begin());
    weigh(piece, piece_weights);
    double before = piece == 0 ? 0.0 : reached[piece - 1];
    int chosen = piece * kPiece;
    for (int i = chosen; i < end_of(piece); ++i) {
      const float own = piece_weights[i - piece * kPiece];
      if (own == 0.0f) continue;
      chosen = i;
      before += own;
      if (before > target) break;
    }
    return chosen;
  }

  const float* logits_;
  int vocab_;
  float peak_ = kNever;
  float floor_ = kNever;
  float factor_ = 1.0f;
};

}  // namespace

void choose_tokens(Pool* pool, const float* logits, size_t stride, int rows, int vocab,
                   const RowChoice* choices, int64_t* tokens) {
  std::atomic<bool> failed{false};
  auto choose = [&](int row, int) {
    try {
      tokens[row] = Row(logits + size_t(row) * stride, vocab).choose(choices[row]);
    } catch (const std::bad_alloc&) {  // no caller of a pool's thread would catch it
      failed = true;
    }
  };
  if (pool != nullptr)
    pool->run(rows, choose);
  else
    for (int row = 0; row < rows; ++row) choose(row, 0);
  if (failed) throw std::bad_alloc();
}

double draw_uniform(const RowDraw& draw, uint32_t position) {
  uint32_t c0 = position, c1 = draw.index, c2 = draw.purpose, c3 = 0;
  uint32_t k0 = uint32_t(draw.seed), k1 = uint32_t(draw.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t(c0) * 0xD2511F53u, right = uint64_t(c2) * 0xCD9E8D57u;
    c0 = uint32_t(right >> 32) ^ c1 ^ k0;
    c1 = uint32_t(right);
    c2 = uint32_t(left >> 32) ^ c3 ^ k1;
    c3 = uint32_t(left);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return double(uint64_t(c0) << 21 | c1 >> 11) * 0x1p-53;
}

}  // namespace baton
