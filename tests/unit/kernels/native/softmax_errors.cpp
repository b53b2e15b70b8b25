// Prints the largest relative errors of powers of two that are kept, and of those that are rounded to bfloat16,
// and ends with 1 if a power of the second kind is off at a whole number or behind one, or if a largest lane is wrong.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "vectors/simd.h"

using namespace baton;

namespace {

double error(float power, float x) { return std::abs(double(power) / std::exp2(double(x)) - 1.0); }

bool is_exact_at_ends() {
  for (int n = -126; n <= 0; ++n)
    if (exp2_to_round(splat(float(n)))[0] != std::ldexp(1.0f, n)) return false;
  const float nothing = exp2_to_round(splat(-std::numeric_limits<float>::infinity()))[0];
  // A score less itself may be a little more or less than 0.
  const float below = exp2_to_round(splat(-1e-7f))[0], above = exp2_to_round(splat(1e-7f))[0];
  return nothing == 0.0f && std::abs(below - 1.0f) < 1e-6f && std::abs(above - 1.0f) < 1e-6f;
}

bool finds_largest() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Floats vectors[kLanes];
  for (Floats& vector : vectors)
    for (int lane = 0; lane < kLanes; ++lane) vector[lane] = normal(random);
  const Floats found = max_of_each(vectors);
  for (int i = 0; i < kLanes; ++i)
    if (found[i] != max_lane(vectors[i])) return false;
  return true;
}

}  // namespace

int main() {
  double kept = 0.0, rounded = 0.0;
  for (float x = -125.0f; x < 0.0f; x += 0.0007f) {
    kept = std::max(kept, error(exp2(splat(x))[0], x));
    rounded = std::max(rounded, error(exp2_to_round(splat(x))[0], x));
  }
  std::printf("%g %g\n", kept, rounded);
  return is_exact_at_ends() && finds_largest() ? 0 : 1;
}
