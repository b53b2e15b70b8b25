// The program of a decoder: operations on rows of a step, and the numbers that they need.
#pragma once

#include <algorithm>

#include "attention/task.h"
#include "decoder/experts.h"
#include "decoder/recurrent.h"
#include "matrix/matrix.h"
#include "ranks/ranks.h"

namespace baton {

struct Shape {
  int hidden_size;
  int intermediate_size;
  int vocab_size;
  // The tokens whose rows the embedding and the head have, and how many each rank has room for.
  int first_token;
  int num_tokens;
  int token_room;
  // All norms are of one kind: of the root mean square, or with `centers` less the mean before.
  float norm_eps;
  int centers;
  float embedding_multiplier;
  float logit_multiplier;
  float logit_cap;  // c makes c * tanh(logit / c) of every logit; 0: none
};

// What a norm of queries and of keys goes over.
enum class HeadNorm : int {
  kHead = 0,      // each head, all with one weight
  kEachHead = 1,  // each head, with a weight of its own
  kWhole = 2,     // all heads together
};

// What one operation does. x is the residual stream, a row per token.
enum class Op : int {
  kCapture = 0,   // copies x if the batch wants what enters layer `layer`
  kNorm = 1,      // operand = norm(x), scaled by `first`, plus `second`; both null: x itself
  kProject = 2,   // product = operand * matrix: queries, keys and values
  kRotate = 3,    // clipping to `limit` and norms (`first`: queries, `second`: keys, `third`: values;
                  // null: none) of the product's heads, rotation of queries and keys, then keys and
                  // values go to the cache
  kAttend = 4,    // attended = attention over the cache; `first`: a sink's score by head, or null; with
                  // a matrix each head's numbers are gated by its column of operand * matrix
  kNarrow = 5,    // only the wanted tokens are computed behind the next kAttend or kRecur: no operation
                  // there may keep keys, values or states
  kOutput = 6,    // x += attended * matrix; with `apart` added = attended * matrix
  kGate = 7,      // gated = act(operand * matrix); with `paired` act(scale * gate) * up
  kDown = 8,      // x += gated * matrix; with `apart` added = gated * matrix
  kAdd = 9,       // x += scale * norm(added), the norm as in kNorm
  kRoute = 10,    // chooses each token's experts by its operand
  kExperts = 11,  // x += the chosen experts' sum, each gated as by kGate; with `apart` added = that
  kRecur = 16,    // attended = what a mixer with states makes of operand; all tokens change the states
  kInputs = 17,   // inputs = the inputs of all layers, of operand * matrix; `first`: weight of the norm
  kWeigh = 18,    // gated *= the input of layer `layer`
  kScale = 19,    // x *= scale
  kKeep = 20,     // kept = norm(added), the norm as in kNorm
  kMerge = 21,    // added = kept + norm(added), the norm as in kNorm
  // Of several ranks:
  kSum = 22,      // added = the sum of all ranks' ones
  kSquares = 23,  // clips the product, and adds up the squares of all ranks' queries, and keys, for kRotate
  // Of latent attention; in front of kAttend, the matrix, and `first` as weight of the norm:
  kLatentRow = 12,    // row = [norm of the first numbers | rotation of the others] of operand *
                      // matrix, which goes to the cache
  kLatentDown = 13,   // operand = norm(operand * matrix)
  kLatentQuery = 14,  // queries = operand * matrix, then rotation, and a product with up_keys
  kLatentValue = 15,  // behind kAttend: attended = a product of it with up_values
};

// Attention whose keys and values are products of one row [latent | rope] per token. A head's query
// is multiplied with up_keys, and its result with up_values, so that rows are keys and values.
struct Latent {
  const Matrix* const* up_keys;    // by head: [latent columns, plain]
  const Matrix* const* up_values;  // by head: [value columns, latent]
  int latent;
  int rope;
  int plain;
  int value;
  int query_rank;  // numbers of what kLatentDown returns; 0: there is none
  float norm_eps;
};

// What makes a row of each token for each layer: (norm(product * product_factor) + table_factor * the
// token's part of the table) / sqrt(2).
struct LayerInputs {
  const void* table;  // [tokens][layers][size]
  Kind table_kind;
  int num_layers;
  int size;
  float table_factor;
  float product_factor;

  int num() const { return num_layers * size; }
};

// Of a layer's attention.
struct Heads {
  int num;      // of queries
  int num_kv;   // of what the cache has of a token
  int dim;
  int kv_kinds;  // 2: keys and values; 1: latent rows, see `Latent`

  bool operator==(const Heads& other) const {
    return num == other.num && num_kv == other.num_kv && dim == other.dim &&
           kv_kinds == other.kv_kinds;
  }
  int query_size() const { return num * dim; }
  int kv_size() const { return num_kv * dim; }
};

// Borrowed: the maker of the decoder keeps what these point to.
struct Operation {
  Op op;
  int layer;
  const Matrix* matrix;
  const float* first;
  const float* second;
  const float* third;
  const float* cos_sin;  // [positions][head dim]: cosines, then sines
  const Experts* experts;
  const Latent* attention;  // of latent attention
  const Recurrent* recurrent;
  const LayerInputs* inputs;
  const WholeHeads* whole;  // of kSquares and kRotate: norms go over the heads of all ranks
  Heads heads;           // of attention
  int window;            // 0: none
  int chunked;           // the window begins at the last multiple of its width
  int query_step;        // of kRotate: queries at position p are multiplied with 1 + query_scale *
                         // log(1 + (p + 1) / query_step), the quotient rounded down; 0: they are not
  int kv_group;          // whose block tables it follows; of kRecur: the number among groups with states
  int kv_place;          // among the layers that a block of its group holds
  HeadNorm head_norm;
  Activation activation;
  int paired;
  int apart;
  int num_parts;  // of kRotate: 3; 2: keys are values, too; 1: queries alone, as another layer has kept
                  // keys and values
  int has_gate;  // product = [queries | gates | keys | values], and attended *= sigmoid(gates)
  float scale;  // of scores, or of what is added
  float limit;  // cap of scores, or of queries, keys and values; 0: none
  float query_scale;
};

struct Weights {
  const Operation* program;
  int program_size;
  const float* norm;  // null: another stage is behind this one, and gets x itself
  const float* norm_bias;  // or null
  const Matrix* head;  // null: other stages have it
  // The embedding's rows; null if they are the head's columns.
  const void* embedding;
  Kind embedding_kind;
  const float* positions;  // [positions][hidden], added to the embedding; or null
};

// Numbers by token, as far as one operation needs them.
inline int product_size(const Operation& now) {
  const Heads& heads = now.heads;
  if (now.recurrent) return now.recurrent->num_inputs();
  if (now.attention) {
    const Latent& own = *now.attention;
    return std::max({own.latent + own.rope, own.query_rank, heads.num * (own.plain + own.rope)});
  }
  return (now.has_gate ? 2 : 1) * heads.query_size() + 2 * heads.kv_size();
}
inline int query_size(const Operation& now) { return now.heads.query_size(); }
inline int by_head_size(const Operation& now) {
  if (!now.attention) return 0;
  return now.heads.num * std::max(round_up(now.attention->plain, kLanes), now.attention->value);
}
inline int attended_size(const Operation& now) {
  if (now.recurrent) return now.recurrent->inner_size();
  return std::max(now.heads.query_size(), by_head_size(now));
}
inline int query_rank(const Operation& now) {
  return now.attention ? now.attention->query_rank : 0;
}
inline int num_rates(const Operation& now) {
  if (now.op == Op::kAttend && now.matrix) return now.heads.num;
  return now.recurrent ? now.recurrent->num_rates() : 0;
}
inline int num_inputs(const Operation& now) { return now.inputs ? now.inputs->num() : 0; }
inline int num_experts(const Operation& now) { return now.experts ? now.experts->count() : 0; }

// Of all operations.
inline int most(const Weights& weights, int (*size)(const Operation&)) {
  int most = 0;
  for (int i = 0; i < weights.program_size; ++i) most = std::max(most, size(weights.program[i]));
  return most;
}

// Whether an operation reads what the last norm returned.
inline bool reads_operand(const Operation& now) {
  switch (now.op) {
    case Op::kCapture:
    case Op::kRotate:
    case Op::kNarrow:
    case Op::kOutput:
    case Op::kDown:
    case Op::kAdd:
    case Op::kWeigh:
    case Op::kScale:
    case Op::kKeep:
    case Op::kMerge:
    case Op::kSum:
    case Op::kSquares:
      return false;
    case Op::kAttend:
      return now.matrix != nullptr;
    default:
      return true;
  }
}

}  // namespace baton
