// Where the keys and values of a chunk of tokens are: blocks of the cache lie anywhere.
#pragma once

#include <algorithm>

#include "attention/task.h"
#include "kv/tiles.h"

namespace baton {

constexpr float kNoScale = 0.0f;

inline void read_scales(const float* const* from, float* to) {
  for (int i = 0; i < kChunk; i += kLanes) {
    if (from[i + kLanes - 1] - from[i] == kLanes - 1)  // of one block
      store(to + i, load<Floats>(from[i]));
    else
      for (int lane = 0; lane < kLanes; ++lane) to[i + lane] = *from[i + lane];
  }
}

template <class Element>
struct KvPlaces {
  const Cache<Element>& cache;
  const Batch& batch;
  int group_of_layers;
  int layer;             // among those of its group
  const uint8_t* zeros;  // stand for keys and values that no row of the task sees

  const int32_t* table_of(const AttentionTask& task) const {
    return batch.block_tables[group_of_layers] + size_t(task.seq) * batch.max_blocks;
  }

  // Of kChunk keys from `first_key` on, of one key/value head of the task.
  template <class Stored>
  void locate(const AttentionTask& task, int head, int first_key, const Keys& keys, ChunkRows& places) const {
    const int32_t* table = table_of(task);
    const int kv_head = task.kv_head + head;
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
      const uint8_t* head_keys = cache.bytes(block, layer, 0, kv_head);
      const uint8_t* head_values = cache.bytes(block, layer, cache.kinds - 1, kv_head);
      const int count =
          std::min({kChunk - i, cache.block_size - slot, keys.end - key});
      const size_t row_bytes = cache.row_bytes();
      for (int n = 0; n < count; ++n) {
        places.keys[i + n] = head_keys + (slot + n) * row_bytes;
        places.values[i + n] = head_values + (slot + n) * row_bytes;
      }
      if constexpr (Stored::kHasScales) {
        const float* key_scales = cache.scales(0, kv_head, head_keys) + slot;
        const float* value_scales =
            cache.scales(cache.kinds - 1, kv_head, head_values) + slot;
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

  // What is fetched: so many keys, fewer if they begin within them, of all key/value heads of the task.
  void aim(const AttentionTask& task, int first_key, const Keys& keys, ChunkFetch& fetch, int num_keys = kChunk) const {
    fetch.clear();
    const size_t head_bytes = cache.head_stride() * (cache.is_quantized() ? 1 : sizeof(Element));
    const int end = std::min(first_key / num_keys * num_keys + num_keys, keys.end);
    for (int key = std::max(first_key, keys.first); key < end;) {
      const int slot = key % cache.block_size, count = std::min(end - key, cache.block_size - slot);
      const int block = table_of(task)[key / cache.block_size];
      for (int kind = 0; kind < cache.kinds; ++kind)
        if (cache.block_size <= kChunk)
          fetch.add(cache.bytes(block, layer, kind, task.kv_head), task.num_kv_heads * head_bytes);
        else
          for (int head = task.kv_head; head < task.kv_head + task.num_kv_heads; ++head) {
            const uint8_t* rows = cache.bytes(block, layer, kind, head);
            fetch.add(rows + slot * cache.row_bytes(), count * cache.row_bytes());
            if (cache.holds_scales())
              fetch.add(reinterpret_cast<const uint8_t*>(cache.scales(kind, head, rows) + slot), count * sizeof(float));
          }
      key += count;
    }
  }

#if defined(BATON_HAS_AMX)
  // Calls body(head, keys, values) for the key/value heads of the task, whose scales are read.
  // rows: where those are found that are not tiles; scales: [heads][kChunk].
  template <class Stored, class Body>
  void for_heads(const AttentionTask& task, int first_key, const Keys& keys, ChunkRows& rows,
                 float* key_scales, float* value_scales, Body&& body) const {
    const bool is_whole = cache.block_size % amx::kRows == 0 && keys.contains(first_key) &&
                          keys.contains(first_key + kChunk - 1);
    TileRows its_keys{{}, is_whole ? nullptr : rows.keys}, values{{}, is_whole ? nullptr : rows.values};
    for (int head = 0; head < task.num_kv_heads; ++head) {
      if (is_whole) {
        for (int at = 0; at < kChunk; at += amx::kRows) {
          const int key = first_key + at, slot = key % cache.block_size, kv_head = task.kv_head + head;
          const int block = table_of(task)[key / cache.block_size];
          const uint8_t* head_keys = cache.bytes(block, layer, 0, kv_head);
          const uint8_t* head_values = cache.bytes(block, layer, cache.kinds - 1, kv_head);
          its_keys.tiles[at / amx::kRows] = head_keys + slot * cache.row_bytes();
          values.tiles[at / amx::kRows] = head_values + slot * cache.row_bytes();
          if constexpr (Stored::kHasScales) {
            store(key_scales + head * kChunk + at, load<Floats>(cache.scales(0, kv_head, head_keys) + slot));
            store(value_scales + head * kChunk + at, load<Floats>(cache.scales(cache.kinds - 1, kv_head, head_values) + slot));
          }
        }
      } else {
        locate<Stored>(task, head, first_key, keys, rows);
        if constexpr (Stored::kHasScales) {
          read_scales(rows.key_scales, key_scales + head * kChunk);
          read_scales(rows.value_scales, value_scales + head * kChunk);
        }
      }
      body(head, its_keys, values);
    }
  }
#endif
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
      if (row_ == 0) places.template locate<Stored>(*task_, 0, key_, keys_, chunk_);
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

}  // namespace baton
