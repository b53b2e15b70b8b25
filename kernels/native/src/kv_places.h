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

// Fetches the keys and values of a span beside other work, in so many steps.
template <class Element>
class SpanFetch {
 public:
  // The task, which reads `keys`, must outlive the steps: until `stop`, or until another one begins.
  void begin(const AttentionTask& task, const Keys& keys, const Keys& of_span, int steps) {
    task_ = &task;
    keys_ = keys;
    key_ = of_span.first;
    end_ = of_span.end;
    row_ = 0;
    at_once_ = (2 * kSpan + steps - 1) / steps;
  }

  void stop() { key_ = end_; }

  template <class Stored>
  void step(const KvPlaces<Element>& places) {
    for (int left = at_once_; left > 0 && key_ < end_;) {
      if (row_ == 0) places.template locate<Stored>(*task_, key_, keys_, chunk_);
      const int rows_end = std::min(row_ + left, 2 * kChunk);
      left -= rows_end - row_;
      for (; row_ < rows_end; ++row_) {
        const uint8_t* row = row_ < kChunk ? chunk_.keys[row_] : chunk_.values[row_ - kChunk];
        for (size_t at = 0; at < places.cache.row_bytes(); at += 64) fetch_line(row + at);
      }
      if (row_ < 2 * kChunk) return;
      row_ = 0;
      key_ += kChunk;
    }
  }

 private:
  const AttentionTask* task_ = nullptr;
  Keys keys_{};
  int key_ = 0, end_ = 0;  // of the span
  int row_ = 0;            // of the chunk's keys and then of its values
  int at_once_ = 0;
  ChunkRows chunk_;
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
