// Where the keys and values of a chunk of tokens are: blocks of the cache lie anywhere.
#pragma once

#include <algorithm>

#include "attention_task.h"

namespace baton {

constexpr float kNoScale = 0.0f;

template <class Element>
struct KvPlaces {
  const Cache<Element>& cache;
  const Batch& batch;
  int group_of_layers;
  int layer;             // among those of its group
  const uint8_t* zeros;  // stand for keys and values that no row of the task sees

  // Of kChunk keys from `first_key` on.
  template <class Stored>
  void locate(const AttentionTask& task, int first_key, const Keys& keys, ChunkRows& places) const {
    const int32_t* table = batch.block_tables[group_of_layers] + size_t(task.seq) * batch.max_blocks;
    for (int i = 0; i < kChunk;) {
      const int key = first_key + i;
      if (!keys.contains(key)) {
        places.keys[i] = places.values[i] = zeros;
        if constexpr (Stored::kHasScales) places.key_scales[i] = places.value_scales[i] = &kNoScale;
        ++i;
        continue;
      }
      const int block = table[key / cache.block_size];
      const int slot = key % cache.block_size;
      const uint8_t* head_keys = cache.bytes(block, layer, 0, task.kv_head);
      const uint8_t* head_values = cache.bytes(block, layer, cache.kinds - 1, task.kv_head);
      const int count =
          std::min({kChunk - i, cache.block_size - slot, keys.end - key});
      const size_t row_bytes = cache.row_bytes();
      for (int n = 0; n < count; ++n) {
        places.keys[i + n] = head_keys + (slot + n) * row_bytes;
        places.values[i + n] = head_values + (slot + n) * row_bytes;
      }
      if constexpr (Stored::kHasScales) {
        const float* key_scales = cache.scales(0, task.kv_head, head_keys) + slot;
        const float* value_scales =
            cache.scales(cache.kinds - 1, task.kv_head, head_values) + slot;
        prefetch(key_scales);
        prefetch(value_scales);
        for (int n = 0; n < count; ++n) {
          places.key_scales[i + n] = key_scales + n;
          places.value_scales[i + n] = value_scales + n;
        }
      }
      i += count;
    }
  }
};

inline void read_scales(const float* const* from, float* to) {
  for (int i = 0; i < kChunk; i += kLanes) {
    if (from[i + kLanes - 1] - from[i] == kLanes - 1)  // of one block
      store(to + i, load<Floats>(from[i]));
    else
      for (int lane = 0; lane < kLanes; ++lane) to[i + lane] = *from[i + lane];
  }
}

}  // namespace baton
