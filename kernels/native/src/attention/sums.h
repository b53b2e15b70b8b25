// What rows of attention gathered from some of their keys.
#pragma once

#include <algorithm>

#include "attention/task.h"

namespace baton {

constexpr float kMasked = -1e30f;

// It owns nothing.
struct Sums {
  float* largest;  // [rows]: what weights are relative to, a score that is not scaled unless it is capped
  Floats* total;   // [rows]: of the weights, by lane
  float* out;      // [panel of the head][rows, `apart` apart][32 dims]: of the weighted values
  int rows;
  int apart;
  int panels;

  static size_t num_floats(int rows, int panels) {
    return round_up(rows, kLineWords) + size_t(rows) * (kLanes + panels * kPanel);
  }
  Sums(float* memory, int rows, int panels)
      : largest(memory),
        total(reinterpret_cast<Floats*>(memory + round_up(rows, kLineWords))),
        out(reinterpret_cast<float*>(total + rows)),
        rows(rows),
        apart(rows),
        panels(panels) {}

  Sums some(const TaskRows& which) const {
    Sums some = *this;
    some.largest += which.first;
    some.total += which.first;
    some.out += size_t(which.first) * kPanel;
    some.rows = which.count;
    return some;
  }

  Floats* out_row(int panel, int row) const {
    return reinterpret_cast<Floats*>(out) + (size_t(panel) * apart + row) * kPanelVectors;
  }
  void clear() const {
    std::fill(largest, largest + rows, kMasked);
    std::fill(total, total + rows, Floats{});
    clear_out();
  }
  void clear_out() const {
    for (int panel = 0; panel < panels; ++panel)
      std::fill(out_row(panel, 0), out_row(panel, rows), Floats{});
  }
  void scale(int row, Floats factor) const {
    total[row] *= factor;
    for (int panel = 0; panel < panels; ++panel)
      for (int v = 0; v < kPanelVectors; ++v) out_row(panel, row)[v] *= factor;
  }
  // Adds what other keys of the same rows gave. `steps`: what makes a difference of scores a power of two.
  void add(const Sums& other, float steps) const {
    for (int row = 0; row < rows; row += kLanes) {
      const int count = std::min(kLanes, rows - row);
      float own[kLanes] = {}, its[kLanes] = {};
      std::copy_n(largest + row, count, own);
      std::copy_n(other.largest + row, count, its);
      const Floats before = load<Floats>(own), now = max(before, load<Floats>(its));
      const Floats factor = exp2((before - now) * steps), other_factor = exp2((load<Floats>(its) - now) * steps);
      for (int i = 0; i < count; ++i) {
        largest[row + i] = now[i];
        add_row(other, row + i, splat(factor[i]), splat(other_factor[i]));
      }
    }
  }

 private:
  void add_row(const Sums& other, int row, Floats mine, Floats its) const {
    total[row] = total[row] * mine + other.total[row] * its;
    for (int panel = 0; panel < panels; ++panel)
      for (int v = 0; v < kPanelVectors; ++v) {
        Floats& sum = out_row(panel, row)[v];
        sum = sum * mine + other.out_row(panel, row)[v] * its;
      }
  }
};

}  // namespace baton
