// What attention computes: a batch, and tasks that are parts of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/chunk.h"

namespace baton {

struct AdapterRows;

// Keys whose weighted values are gathered apart: few enough that a short window is work for several threads.
constexpr int kSpan = 4 * kChunk;

// One packed batch; see AttentionMetadata in Python.
struct Batch {
  int num_tokens;
  int num_seqs;
  const int64_t* token_ids;
  const int64_t* positions;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  // By group of layers that share block tables: [num_seqs][max_blocks], and [num_tokens].
  const int32_t* const* block_tables;
  int max_blocks;
  const int64_t* const* slots;
  // Ascending tokens whose hidden states are wanted, and how many; -1: all.
  const int64_t* wanted;
  int num_wanted;
  // Layers, the number of layers for what leaves the last one, whose inputs of all tokens are
  // copied to `captured` [num_captured][num_tokens][hidden].
  const int32_t* captured_layers;
  int num_captured;
  float* captured;
  // By group of layers with states: the first block, float32 numbers from block to block, and by sequence
  // the block that is read (-1: zeros) and the one that is written.
  float* const* states;
  const size_t* state_strides;
  const int32_t* state_blocks;  // [groups][num_seqs][2]
  // Rows [..][hidden] in place of embeddings, and by token the number of its row, -1: its embedding is
  // read. Null: that of every token.
  const float* given;
  const int32_t* given_at;
  // The rows of tokens that have an adapter.
  const AdapterRows* adapter_rows;
  int num_adapter_rows;
  // Rows [num_tokens][hidden] of the residual stream, from the stage before; null: the decoder begins with
  // embeddings.
  const float* stream;
};

struct AttentionTask {
  int seq;
  int first_token;  // among the sequence's new tokens
  int num_tokens;
  int kv_head;
  int first_head;  // among the query heads that share it
  int num_heads;
  int row;  // of the first token, among those of queries and of results
  // The spans that the task computes, and where in `parts` it leaves their sums; none: it computes all.
  int first_span = 0;
  int num_spans = 0;
  size_t part = 0;
  int num_kv_heads = 1;  // from kv_head on; more only if rows are few
  // Rows of a key/value head, and of all, head by head.
  int head_rows() const { return num_tokens * num_heads; }
  int rows() const { return num_kv_heads * head_rows(); }
};

// Some of a task's rows.
struct TaskRows {
  int first;
  int count;
};

// Which of the keys up to its own a query sees.
struct Seen {
  int window;    // so many, itself among them; 0: all
  bool chunked;  // those from the last multiple of `window` on instead

  bool operator==(const Seen& other) const = default;
  // The first one; below 0 stands for 0.
  int first(int position) const {
    if (window == 0) return 0;
    return chunked ? position - position % window : position - window + 1;
  }
};

// The keys that rows of a task may see. The table's entries and the cache's rows in front of them
// and behind them may be anything: they are not read.
struct Keys {
  int first;
  int end;
  bool contains(int key) const { return first <= key && key < end; }
};

}  // namespace baton
