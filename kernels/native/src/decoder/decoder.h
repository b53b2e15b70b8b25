// A whole decoder on packed weights, as a program of operations: one call computes one step.
#pragma once

#include <memory>

#include "attention/task.h"
#include "decoder/choice.h"
#include "decoder/program.h"
#include "kv/format.h"
#include "ranks/ranks.h"
#include "threads/pool.h"

namespace baton {

// One step: what it computes, and where the results go.
struct Step {
  Batch batch;
  KvMemory kv;
  Collective* collective;  // null with one rank
  // What is not wanted is null. `hidden`: float32 [wanted][hidden], behind the last norm; of a stage before the last
  // one, of all tokens.
  float* hidden;
  float* logits;      // float32 [wanted][vocab]
  // With logits, what is chosen behind each wanted token.
  RowChoice* choices;
  const RowDraw* draws;  // where the numbers of the choices come from; null: no row needs one
  int64_t* tokens;
};

// Not for two threads at a time: the activations between the calls' steps are kept.
//
// All ranks make the same calls, for the same tokens, and get the same results. Each throws GroupBroken.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Writes the tokens' keys and values into the step's `kv`, and its results.
  //
  // It computes a layer, and more as long as one like the last is over within `room_ns` of the call (negative: all).
  // It returns true at the end. The next call goes on with the same step, unless it `begins` another one. No
  // other call may come in between: another decoder of the same matrices may compute.
  virtual bool advance(const Step& step, bool begins, int64_t room_ns) = 0;
  // Of the step that `advance` has begun: how many layers are computed, and their keys and values written.
  virtual int layers() const = 0;
  // float32 [count][hidden]: the embeddings of tokens.
  virtual void embeddings(const int64_t* token_ids, int count, const Ranks& ranks, float* out) = 0;
  // float32 [rows][vocab] of float32 [rows][hidden].
  virtual void logits(const float* hidden, int rows, const Ranks& ranks, float* out) = 0;
};

// element: of a KV cache that is not quantised, and between the products: float32 or bfloat16, otherwise
// null. A matrix is of elements, or of a kind that says what its products make of them.
std::unique_ptr<Decoder> make_decoder(Pool& pool, const Shape& shape, const Weights& weights,
                                      Kind element);

}  // namespace baton
