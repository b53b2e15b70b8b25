// A whole decoder on packed weights, as a program of operations: one call computes one step.
#pragma once

#include <memory>
#include <vector>

#include "adapters/adapters.h"
#include "attention/attention.h"
#include "decoder/choice.h"
#include "decoder/experts.h"
#include "decoder/recurrent.h"
#include "matrix/matrix.h"
#include "ranks/ranks.h"
#include "threads/pool.h"
#include "vectors/rows.h"

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
