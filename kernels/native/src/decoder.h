// A whole decoder of the Llama family on packed weights: one call computes one step.
#pragma once

#include <memory>
#include <vector>

#include "attention.h"
#include "matrix.h"
#include "pool.h"

namespace baton {

struct Shape {
  int hidden_size;
  int intermediate_size;
  int num_layers;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int vocab_size;
  float rms_norm_eps;
  int num_positions;
};

// Borrowed: whoever makes the decoder keeps what these point to.
struct LayerWeights {
  const float* attention_norm;
  const Matrix* qkv;
  const float* q_norm;  // null without norms of the heads
  const float* k_norm;
  const Matrix* output;
  const float* mlp_norm;
  const Matrix* gate_up;  // paired
  const Matrix* down;
  int window;  // 0: none
  int kv_group;  // whose block tables it follows
  int kv_place;  // among the layers that a block of its group holds
};

struct Weights {
  const LayerWeights* layers;
  const float* norm;
  const Matrix* head;
  // The embedding's rows; null if they are the head's columns.
  const void* embedding;
  Kind embedding_kind;
  const float* cos_sin;  // [positions][head dim]: cosines, then sines
};

// Not for two threads at a time: the activations between the calls' steps are kept.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Writes the tokens' keys and values into the cache, and float32 hidden states [wanted][hidden]
  // behind the last norm to `hidden`.
  virtual void forward(const Batch& batch, void* cache, KvFormat format, size_t block_stride,
                       int block_size, float* hidden) = 0;
  // float32 [count][hidden]: the embeddings of tokens.
  virtual void embeddings(const int64_t* token_ids, int count, float* out) = 0;
  // float32 [rows][vocab] of float32 [rows][hidden].
  virtual void logits(const float* hidden, int rows, float* out) = 0;
};

// element: of a KV cache that is not quantised, and between the products (float32 or bfloat16). weight: of the products
// (the same as element, or int8 with bfloat16). Null if the two do not go together.
std::unique_ptr<Decoder> make_decoder(Pool& pool, const Shape& shape, const Weights& weights,
                                      Kind element, Kind weight);

}  // namespace baton
