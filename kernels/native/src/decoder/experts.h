// The choice of each token's experts.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "matrix/matrix.h"
#include "vectors/simd.h"

namespace baton {

// The experts of a layer. Borrowed: the maker of the decoder keeps what these point to.
struct Experts {
  const Matrix* router;       // a column per expert, then one for the gate of the shared expert
  const float* choice_bias;   // is added to scores for the choice only; or null
  const float* weight_scales;  // multiply the weights, by expert; or null
  const Matrix* const* up;    // gates and ups by expert; the shared expert is the last; null: other ranks have it
  const Matrix* const* down;
  int num_routed;
  int num_chosen;
  int num_shared;  // 0 or 1
  int has_shared_gate;
  int is_sigmoid;     // scores are sigmoids of logits; otherwise their softmax
  int is_normalised;  // the weights of a token are divided by their sum
  int num_groups;     // experts are chosen in the best groups only
  int num_chosen_groups;
  int is_best_one;    // the best expert's merit is a group's; otherwise the sum of the best two
  int scales_input;   // a routed expert's weight multiplies what it reads, not what it returns
  float scale;  // of the weights

  int count() const { return num_routed + num_shared; }
  int per_token() const { return num_chosen + num_shared; }
};

struct Chosen {
  int expert;
  float weight;
};

// Leaves the merits of the best groups' experts as they are, and makes others the least.
inline void keep_best_groups(const Experts& experts, float* merits) {
  const int size = experts.num_routed / experts.num_groups;
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  auto score = [&](int group) {
    float first = kLeast, second = kLeast;
    for (int i = group * size; i < (group + 1) * size; ++i) {
      if (merits[i] > first) {
        second = first;
        first = merits[i];
      } else if (merits[i] > second) {
        second = merits[i];
      }
    }
    return experts.is_best_one ? first : first + second;
  };
  // A group stays if fewer than the wanted number are better, or as good and in front of it.
  uint64_t out[256] = {};  // 2^14 experts at most
  for (int group = 0; group < experts.num_groups; ++group) {
    const float own = score(group);
    int better = 0;
    for (int other = 0; other < experts.num_groups; ++other) {
      const float its = score(other);
      better += its > own || (its == own && other < group);
    }
    if (better >= experts.num_chosen_groups) out[group / 64] |= uint64_t(1) << (group % 64);
  }
  for (int group = 0; group < experts.num_groups; ++group)
    if (out[group / 64] >> (group % 64) & 1)
      std::fill_n(merits + group * size, size, kLeast);
}

// Writes the experts of a token in the order of their numbers. scores: the logits, which are
// replaced; merits: memory of the same size. Both are whole vectors.
inline void choose(const Experts& experts, float* scores, float* merits, Chosen* to) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  const int count = experts.num_routed;
  const float gate = experts.has_shared_gate ? scores[count] : 0.0f;
  // Of large logits, other scores are equal.
  const bool by_logits = experts.choice_bias == nullptr && experts.num_groups <= 1;
  if (by_logits) std::copy_n(scores, count, merits);
  const float largest = experts.is_sigmoid ? 0.0f : *std::max_element(scores, scores + count);
  for (int i = 0; i < count; i += kLanes) {
    const Floats x = load<Floats>(scores + i);
    store(scores + i, experts.is_sigmoid ? 1.0f / (1.0f + exp2(x * -kLog2E))
                                         : exp2((x - largest) * kLog2E));
  }
  if (!experts.is_sigmoid) {
    float total = 0.0f;
    for (int i = 0; i < count; ++i) total += scores[i];
    for (int i = 0; i < count; ++i) scores[i] /= total;
  }
  for (int i = 0; i < count; ++i) {
    const float merit = by_logits             ? merits[i]
                        : experts.choice_bias ? scores[i] + experts.choice_bias[i]
                                              : scores[i];
    // Comparable in any case, and better than what is not to be chosen.
    merits[i] = merit >= -std::numeric_limits<float>::max() ? merit
                                                            : -std::numeric_limits<float>::max();
  }
  if (experts.num_groups > 1) keep_best_groups(experts, merits);
  float total = 1e-20f;
  for (int n = 0; n < experts.num_chosen; ++n) {
    const int best = int(std::max_element(merits, merits + count) - merits);
    to[n] = {best, scores[best]};
    total += scores[best];
    merits[best] = kLeast;
  }
  const float factor = experts.is_normalised ? experts.scale / total : experts.scale;
  for (int n = 0; n < experts.num_chosen; ++n)
    to[n].weight *= factor * (experts.weight_scales ? experts.weight_scales[to[n].expert] : 1.0f);
  std::sort(to, to + experts.num_chosen,
            [](const Chosen& a, const Chosen& b) { return a.expert < b.expert; });
  if (experts.num_shared)
    to[experts.num_chosen] = {
        count, experts.has_shared_gate ? 1.0f / (1.0f + std::exp(-gate)) : 1.0f};
}

}  // namespace baton
