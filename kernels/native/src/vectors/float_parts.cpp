#include "vectors/float_parts.h"

#if defined(BATON_HAS_AMX)

namespace baton {
namespace {

// Steps that all rows and panels of a task go through before the next ones: the rows stay in the second-level cache.
constexpr int kStepsAtOnce = 24;
constexpr int kTile = kTileWords * kHalfPanel;
constexpr int kPanelStep = kStepWords * kPanel;

// Adds the products of one part of the rows and one of the panel to the sums in tiles 0 to 3. Tiles 4 and 5 have the
// part of the rows, 6 and 7 that of the panel.
template <bool kHasLower>
inline void add_products() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kHasLower) {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

template <bool kHasLower>
inline void load_rows(const uint32_t* upper, const uint32_t* lower, size_t stride, int part) {
  _tile_loadd(4, upper + part * kTileWords, 4 * stride);
  if constexpr (kHasLower) _tile_loadd(5, lower + part * kTileWords, 4 * stride);
}

inline void load_panel(const uint32_t* step, int part) {
  _tile_loadd(6, step + 2 * part * kTile, 4 * kHalfPanel);
  _tile_loadd(7, step + (2 * part + 1) * kTile, 4 * kHalfPanel);
}

// The smallest products first.
template <bool kHasLower>
inline void add_step(const uint32_t* upper, const uint32_t* lower, size_t stride, const uint32_t* panel) {
  load_rows<kHasLower>(upper, lower, stride, 2);
  load_panel(panel, 0);
  add_products<kHasLower>();
  load_rows<kHasLower>(upper, lower, stride, 1);
  add_products<kHasLower>();
  load_panel(panel, 1);
  add_products<kHasLower>();
  load_rows<kHasLower>(upper, lower, stride, 0);
  add_products<kHasLower>();
  load_panel(panel, 2);
  add_products<kHasLower>();
  load_panel(panel, 0);
  add_products<kHasLower>();
}

// sums: [upper rows, then lower ones][kPanel], continued unless `is_first`.
template <bool kHasLower>
void multiply_steps(const uint32_t* rows, size_t stride, int upper, const uint32_t* panel, int steps, bool is_first,
                    float* sums) {
  float* lower_sums = sums + upper * kPanel;
  amx::begin_sums<kHasLower>(is_first, sums, lower_sums);
  const uint32_t* lower = rows + upper * stride;
  for (int step = 0; step < steps; ++step, rows += kStepWords, lower += kStepWords, panel += kPanelStep)
    add_step<kHasLower>(rows, lower, stride, panel);
  amx::store_sums<kHasLower>(sums, lower_sums);
}

// Some steps of all rows against one panel.
void multiply_rows(const uint32_t* rows, size_t stride, int count, const uint32_t* panel, int steps, bool is_first,
                   float* sums) {
  int shaped = 0;
  for (int row = 0; row < count; row += 2 * amx::kRows) {
    const int upper = std::min(amx::kRows, count - row), lower = std::min(amx::kRows, count - row - upper);
    if (upper + lower != shaped) amx::shape_tiles(upper, lower);
    shaped = upper + lower;
    const auto multiply = lower ? multiply_steps<true> : multiply_steps<false>;
    multiply(rows + row * stride, stride, upper, panel, steps, is_first, sums + size_t(row) * kPanel);
  }
}

}  // namespace

void multiply_parts(const uint32_t* rows, size_t stride, int count, const uint32_t* panels, int num_panels, int words,
                    Floats* sums, int apart) {
  // The compiler knows of no memory that tiles read or write.
  asm volatile("" ::: "memory");
  const int steps = words / kStepWords;
  for (int step = 0; step < steps; step += kStepsAtOnce)
    for (int panel = 0; panel < num_panels; ++panel)
      multiply_rows(rows + step * kStepWords, stride, count, panels + (size_t(panel) * steps + step) * kPanelStep,
                    std::min(kStepsAtOnce, steps - step), step == 0,
                    reinterpret_cast<float*>(sums) + size_t(panel) * apart * kPanel);
  _tile_release();
  asm volatile("" ::: "memory");
}

}  // namespace baton
#endif
