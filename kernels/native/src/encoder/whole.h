// Attention of whole texts: each token sees those before and behind it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "threads/pool.h"

namespace baton {

// Texts one behind the other; numbers of a token `..._stride` floats apart, its heads beside each other.
struct Texts {
  const float* queries;
  const float* keys;
  const float* values;
  int64_t query_stride, key_stride, value_stride;
  float* out;  // [tokens][heads][head_dim]
  const int32_t* lengths;
  int32_t count, heads, kv_heads, head_dim;
  // A token sees those closer than this; 0: all of its text.
  int32_t window;
  float scale;
};

void attend_whole(Pool& pool, const Texts& texts);

}  // namespace baton
