// How a format rounds rows before a product; shared/model/matrix/inputs.py computes the same numbers.
//
// A row is rounded by itself, so its result does not depend on the batch.
#pragma once

#include <cmath>

#include "vectors/rows.h"

namespace baton {

// What numbers become.
enum class Grid : int {
  kNone = 0,  // rows are not rounded
  kInt = 1,
  kE2M1 = 2,
  kE2M3 = 3,
  kE3M2 = 4,
  kE4M3 = 5,
  kE5M2 = 6,
};

// How the scale of a group follows from its largest magnitude.
enum class ScaleRule : int {
  kFloat = 0,       // the magnitude by the grid's largest number
  kPower = 1,       // a power of two: the magnitude's exponent, less that of the grid's largest number
  kPowerAbove = 2,  // a power of two: the float, rounded up
  kE4M3 = 3,        // E4M3, by a stored scale
  kE4M3Times = 4,   // E4M3, times a stored scale; it may be 0
};

struct Rounding {
  Grid grid = Grid::kNone;
  ScaleRule rule;
  int bits;          // of kInt
  int group;         // numbers that share a scale; 0: the whole row
  int is_static;     // the scale is `stored`, the zero `zero`
  int is_symmetric;  // the zero is 0
  int even_bits;     // of kPower: mantissa bits to which the magnitude is rounded first; -1: it is not
  int is_shared;     // ranks have parts of the row, which has one scale; of rows of bytes with kNone, too
  float bound;       // magnitudes above it count as this one
  float stored;      // the scale, or the factor of scales in E4M3
  float zero;
};

// Instead of a scale that would be 0.
constexpr float kLeastScale = 0x1p-23f;

// The scale of a group of numbers, and the code of 0.
struct InputScale {
  float scale;
  float zero;
};

// Of floats: bits of the mantissa, exponents of the smallest normal and of the largest number, and that one.
struct FloatGrid {
  int mantissa;
  int normal;
  int exponent;
  float largest;
};

inline FloatGrid float_grid(Grid grid) {
  switch (grid) {
    case Grid::kE2M1:
      return {1, 0, 2, 6.0f};
    case Grid::kE2M3:
      return {3, 0, 2, 7.5f};
    case Grid::kE3M2:
      return {2, -2, 4, 28.0f};
    case Grid::kE5M2:
      return {2, -14, 15, 57344.0f};
    case Grid::kE4M3:
    case Grid::kInt:
    case Grid::kNone:
      break;
  }
  return {3, -6, 8, 448.0f};
}

// Numbers of a grid, ties to even. x is in its range.
class Rounder {
 public:
  explicit Rounder(const Rounding& own) {
    if (own.grid == Grid::kInt) {
      bottom = -std::ldexp(1.0f, own.bits - 1);
      top = -bottom - 1.0f;
      is_integer_ = true;
      return;
    }
    const FloatGrid floats = float_grid(own.grid);
    top = floats.largest;
    bottom = -top;
    normal_ = std::ldexp(1.0f, floats.normal);
    // A sum with 1.5 * 2^23 steps is rounded to whole steps.
    rounds_ = std::ldexp(1.5f, 23 - floats.mantissa);
  }

  Floats clamp(Floats x) const {
    x = x < bottom ? splat(bottom) : x;
    return x > top ? splat(top) : x;
  }

  Floats round(Floats x) const {
    Floats far = splat(12582912.0f);
    if (!is_integer_) {
      // The distance of neighbours is that of their binade, and of all small ones the same.
      const Floats power = bits_as<Floats>(reinterpret_cast<Words>(x) & 0x7f800000u);
      far = max(power, splat(normal_)) * rounds_;
    }
    return (x + far) - far;
  }

  float bottom;
  float top;

 private:
  bool is_integer_ = false;
  float normal_ = 0.0f;
  float rounds_ = 0.0f;
};

// The power of two by which numbers of the largest magnitude `peak` are divided.
inline float power_scale(const Rounding& own, float peak) {
  int32_t bits;
  std::memcpy(&bits, &peak, sizeof(bits));
  if (own.even_bits >= 0) bits += 1 << (23 - own.even_bits - 1);
  const int exponent = (bits >> 23) - 127 - float_grid(own.grid).exponent;
  return std::ldexp(1.0f, std::min(127, std::max(-127, exponent)));
}

inline float round_e4m3(float x) {
  const Rounder rounder(Rounding{Grid::kE4M3});
  return rounder.round(splat(x))[0];
}

inline InputScale symmetric_scale(const Rounding& own, float peak) {
  peak = std::fmin(peak, own.bound);
  if (own.rule == ScaleRule::kPower) return {power_scale(own, peak), 0.0f};
  // Integers reach from -n to n - 1: half of their range is between them.
  const float most = own.grid == Grid::kInt ? (std::ldexp(1.0f, own.bits) - 1.0f) / 2.0f
                                            : float_grid(own.grid).largest;
  float scale = peak / most;
  if (own.rule == ScaleRule::kE4M3) {
    scale = round_e4m3(std::fmin(own.stored * scale, 448.0f));
    return {(scale == 0.0f ? 0.125f : scale) / own.stored, 0.0f};
  }
  if (own.rule == ScaleRule::kE4M3Times)
    return {round_e4m3(std::fmin(scale / own.stored, 448.0f)) * own.stored, 0.0f};
  if (scale == 0.0f) scale = kLeastScale;
  if (own.rule == ScaleRule::kPowerAbove) scale = std::ldexp(1.0f, int(std::ceil(std::log2(scale))));
  return {scale, 0.0f};
}

inline InputScale uneven_scale(const Rounding& own, float least, float most) {
  const Rounder rounder(own);
  least = std::fmin(least, 0.0f);
  most = std::fmax(most, 0.0f);
  const float scale = (most - least) / (rounder.top - rounder.bottom);
  if (scale == 0.0f) return {kLeastScale, 0.0f};
  const float zero = rounder.bottom - least / scale;
  return {scale, std::nearbyint(std::fmin(std::fmax(zero, rounder.bottom), rounder.top))};
}

// range: of the group's numbers and others that share its scale; null: of its own.
template <class From>
inline InputScale group_scale(const Rounding& own, const From* x, int count, const Range* range) {
  if (own.is_static) return {own.stored, own.zero};
  const Range whole = range ? *range : range_of(x, count);
  if (own.is_symmetric) return symmetric_scale(own, whole.peak());
  return uneven_scale(own, -whole.below, whole.above);
}

// What a row of `size` numbers is rounded to, in whole vectors that end with zeros. range: of the whole row, of
// which this is a part; or null.
template <class From>
inline void round_row(const Rounding& own, const From* from, int size, const Range* range, float* to) {
  const Rounder rounder(own);
  const int group = own.group == 0 ? size : own.group;
  for (int first = 0; first < size; first += group) {
    const int end = std::min(size, first + group);
    const InputScale by = group_scale(own, from + first, end - first, range);
    const float divisor = by.scale == 0.0f ? 1.0f : by.scale;
    // A vector ends with zeros, and the next group writes over them.
    for (int i = first; i < end; i += kLanes) {
      const Floats scaled = widen_some(from + i, end - i) / divisor + by.zero;
      store(to + i, (rounder.round(rounder.clamp(scaled)) - by.zero) * by.scale);
    }
  }
  std::fill(to + size, to + round_up(size, kLanes), 0.0f);
}

// Quotients by one number, rounded as `Rounder` says, without a division for each.
class Quotients {
 public:
  Quotients(const Rounder& rounder, const InputScale& by)
      : rounder_(rounder), by_(by), inverse_(by.scale >= kLeastDivisor ? 1.0f / by.scale : 0.0f) {}

  // The same as of x / scale + zero: a product with the inverse is some 1e-4 off at most, so that both are rounded to
  // the same integer unless it lies so near to the middle of two.
  Floats round(Floats x) const {
    if (inverse_ == 0.0f) return exact(x);
    const Floats near = rounder_.clamp(x * inverse_ + by_.zero), code = rounder_.round(near);
    const Floats off = near - code;
    if (lanes_where(max(off, -off) > 0.5f - kDoubt) != 0) return exact(x);
    return code;
  }

 private:
  static constexpr float kDoubt = 0x1p-11f;
  // Inverses of smaller numbers may be infinite.
  static constexpr float kLeastDivisor = 1e-30f;

  Floats exact(Floats x) const { return rounder_.round(rounder_.clamp(x / by_.scale + by_.zero)); }

  const Rounder rounder_;
  const InputScale by_;
  const float inverse_;
};

// The integers that a row is rounded to, with 128 added, in whole vectors; the whole row is one group. range: see
// `round_row`.
template <class Number, class From>
inline InputScale encode_row(const Rounding& own, const From* from, int size, const Range* range, Number* to) {
  const InputScale by = group_scale(own, from, size, range);
  const Quotients quotients(Rounder(own), by);
  for (int i = 0; i < size; i += kLanes) {
    const Floats code = quotients.round(widen_some(from + i, size - i)) + 128.0f;
    store_numbers(to, i, reinterpret_cast<Words>(__builtin_convertvector(code, Ints)));
  }
  return by;
}

}  // namespace baton
