// What rows of attention gathered from some of their keys.
#pragma once

#include <algorithm>

#include "tile.h"

namespace baton {

constexpr float kMasked = -1e30f;

// It owns nothing.
struct Sums {
  float* largest;  // [rows]: of the scores, not scaled unless they are capped
  Floats* total;   // [rows]: of the weights, by lane
  float* out;      // [panel of the head][rows][32 dims]: of the weighted values
  int rows;
  int panels;

  static size_t num_floats(int rows, int panels) {
    return round_up(rows, kLineWords) + size_t(rows) * (kLanes + panels * kPanel);
  }
  Sums(float* memory, int rows, int panels)
      : largest(memory),
        total(reinterpret_cast<Floats*>(memory + round_up(rows, kLineWords))),
        out(reinterpret_cast<float*>(total + rows)),
        rows(rows),
        panels(panels) {}

  Floats* out_row(int panel, int row) const {
    return reinterpret_cast<Floats*>(out) + (size_t(panel) * rows + row) * kPanelVectors;
  }
  void clear() const {
    std::fill(largest, largest + rows, kMasked);
    std::fill(total, total + rows, Floats{});
    std::fill(out, out + size_t(panels) * rows * kPanel, 0.0f);
  }
  void scale_out(int row, Floats factor) const {
    for (int panel = 0; panel < panels; ++panel)
      for (int v = 0; v < kPanelVectors; ++v) out_row(panel, row)[v] *= factor;
  }
  // Adds what other keys of the same rows gave. `steps`: what makes a difference of scores a power of two.
  void add(const Sums& other, float steps) const {
    for (int row = 0; row < rows; ++row) {
      const float now = std::max(largest[row], other.largest[row]);
      const Floats mine = exp2(splat((largest[row] - now) * steps));
      const Floats its = exp2(splat((other.largest[row] - now) * steps));
      largest[row] = now;
      total[row] = total[row] * mine + other.total[row] * its;
      for (int panel = 0; panel < panels; ++panel)
        for (int v = 0; v < kPanelVectors; ++v) {
          Floats& sum = out_row(panel, row)[v];
          sum = sum * mine + other.out_row(panel, row)[v] * its;
        }
    }
  }
};

}  // namespace baton
