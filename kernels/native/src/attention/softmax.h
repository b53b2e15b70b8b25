// The softmax of a chunk's scores, for rows that share its keys.
//
// Weights are relative to one score of their row: the largest one of its first chunk, and later another one only if
// it is larger by so much that weights could leave the range that float32 sums have to spare. So what a row has
// gathered is seldom scaled down. A row decides by its own scores alone, so that its bits do not depend on others.
#pragma once

#include <limits>

#include "attention/sums.h"
#include "kv/chunk.h"

namespace baton {

// A weight is at most two to the power of it.
constexpr float kSlack = 8.0f;

// The keys that a row sees, counted from the first one of a chunk or of a span.
struct Sight {
  int first;
  int last;
};

// The scores of keys from `at` on, minus infinity for those that the row does not see.
inline Floats hide(Floats scores, int at, Sight sight) {
  Ints key;
  for (int lane = 0; lane < kLanes; ++lane) key[lane] = at + lane;
  return (key <= sight.last) & (key >= sight.first) ? scores : splat(-std::numeric_limits<float>::infinity());
}

// kRows: for how many rows there is room in the scores, [2 panels][kRows][kPanel keys].
template <class Stored, class Operand, int kRows>
struct Softmax {
  static constexpr bool kIsRounded = !std::is_same_v<Operand, float>;

  float scale;  // of scores; positive
  float cap;    // c makes c * tanh(score / c) of scaled scores; 0: none
  // Of the chunk's keys and values, if they are stored with some.
  const float* key_scales;
  const float* value_scales;

  // What a difference of kept scores is multiplied with, as a power of two.
  float steps() const { return (cap != 0.0f ? 1.0f : scale) * kLog2E; }

  // Turns scores into weights [rows][kChunk], and scales down what rows have gathered where it must. Of kChunk keys
  // kPanels are read. Rows see all of them, or those of sight(row). is_first: nothing was gathered. One step for all
  // rows comes before the next one: what a row waits for, others fill.
  template <int kPanels, class Sees>
  void weigh(float* scores, Operand* weights, const Sums& sums, bool is_first, bool sees_all, Sees&& sight) const {
    const float steps = this->steps();
    const bool is_plain = sees_all && !Stored::kHasScales && cap == 0.0f;
    for (int row = 0; row < sums.rows; row += kLanes) {
      const int count = std::min(kLanes, sums.rows - row);
      Floats largest[kLanes];
      if (is_plain && count == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) largest[i] = largest_of<kPanels>(scores, row + i);
      } else {
        std::fill(largest, largest + kLanes, Floats{});
        for (int i = 0; i < count; ++i)
          largest[i] = is_plain ? largest_of<kPanels>(scores, row + i)
                                : prepare<kPanels>(scores, row + i, sees_all ? Sight{0, kChunk} : sight(row + i));
      }
      keep(row, count, max(max_of_each(largest), splat(kMasked)), is_first, steps, sums);
    }
    for (int row = 0; row < sums.rows; ++row) {
      const Floats total = weigh_row<kPanels>(scores, row, steps, sums.largest[row], weights + size_t(row) * kChunk);
      sums.total[row] = is_first ? total : sums.total[row] + total;
    }
  }

 private:
  static float* scores_at(float* scores, int row, int vector) {
    return scores + (size_t(vector / kPanelVectors) * kRows + row) * kPanel + vector % kPanelVectors * kLanes;
  }

  template <int kPanels>
  static Floats largest_of(float* scores, int row) {
    Floats largest = load<Floats>(scores_at(scores, row, 0));
    for (int v = 1; v < kPanels * kPanelVectors; ++v)
      largest = max(largest, load<Floats>(scores_at(scores, row, v)));
    return largest;
  }

  // Makes a row's scores what the softmax takes, and returns the largest one of each lane.
  template <int kPanels>
  Floats prepare(float* scores, int row, Sight sight) const {
    const bool sees_all = sight.first <= 0 && sight.last >= kPanels * kPanel - 1;
    Floats largest = splat(kMasked);
    for (int v = 0; v < kPanels * kPanelVectors; ++v) {
      float* own = scores_at(scores, row, v);
      Floats x = load<Floats>(own);
      if constexpr (Stored::kHasScales) x *= load<Floats>(key_scales + v * kLanes);
      if (cap != 0.0f) x = cap * tanh(x * (scale / cap));
      if (!sees_all) x = hide(x, v * kLanes, sight);
      store(own, x);
      largest = max(largest, x);
    }
    return largest;
  }

  // Chooses what weights of up to kLanes rows are relative to. most: their largest scores.
  static void keep(int row, int count, Floats most, bool is_first, float steps, const Sums& sums) {
    float* kept = sums.largest + row;
    // Behind the last one may be what others have.
    auto keep_some = [&](Floats now) {
      if (count == kLanes) return store(kept, now);
      std::memcpy(kept, &now, count * sizeof(float));
    };
    if (is_first) return keep_some(most);
    const Floats before = load_some(kept, count);
    const Ints grows = most > before + kSlack / steps;
    uint32_t lanes = lanes_where(grows) & ((1u << count) - 1);
    if (lanes == 0) return;
    const Floats now = grows ? most : before;
    keep_some(now);
    float factors[kLanes];
    store(factors, exp2((before - now) * steps));
    for (; lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      sums.scale(row + lane, splat(factors[lane]));
    }
  }

  // Returns the sum of the weights, e^(scale * (x - kept)) as a power of two: one multiplication for all constants.
  template <int kPanels>
  Floats weigh_row(float* scores, int row, float steps, float kept, Operand* weights) const {
    constexpr int kVectors = kPanels * kPanelVectors;
    const Floats base = splat(kept), most = base * steps;
    Floats total{};
    for (int v = 0; v < kVectors; v += 2) {
      Floats weight[2];
      for (int i = 0; i < 2; ++i) {
        const Floats score = load<Floats>(scores_at(scores, row, v + i));
        weight[i] = kIsRounded ? exp2_to_round(score * steps - most) : exp2((score - base) * steps);
        total += weight[i];
        if constexpr (Stored::kHasScales) weight[i] *= load<Floats>(value_scales + (v + i) * kLanes);
      }
      narrow_both(weights + v * kLanes, weight[0], weight[1]);
    }
    if constexpr (kVectors * kLanes < kChunk) std::fill(weights + kVectors * kLanes, weights + kChunk, Operand{});
    return total;
  }
};

}  // namespace baton
