// What Python calls. Nothing throws across this border: a null pointer means no memory.
#include "adapters/adapters.h"
#include "decoder/choice.h"
#include "decoder/decoder.h"
#include "encoder/gates.h"
#include "encoder/whole.h"
#include "matrix/blocks.h"
#include "products/linear.h"
#include "ranks/collective.h"
#include "ranks/plan_ring.h"
#include "threads/cores.h"
#include "threads/spin.h"
#include "transfer/bf16_stream.h"
#include "transfer/checksum.h"

using namespace baton;

namespace {

// What `work` returns; 1 if there is no memory; 2 if the group of ranks is broken.
template <class Work>
int outcome(Work&& work) try {
  return work();
} catch (const std::bad_alloc&) {
  return 1;
} catch (const GroupBroken&) {
  return 2;
}

}  // namespace

extern "C" {

Pool* baton_pool_new(int num_own, const int* cpus, int num_spare) {
  return new Pool(num_own, cpus, num_spare);
}
void baton_pool_delete(Pool* pool) { delete pool; }
void baton_pool_share(Pool* pool, CoreLease* lease) { pool->share(*lease); }
void baton_pool_take(Pool* pool) { pool->take(); }
void baton_pool_lend(Pool* pool) { pool->lend(); }
// A job whose tasks only take time, for tests and measurements. tasks: what each was; returns the pool's width.
int baton_pool_spin(Pool* pool, int count, int64_t ns, SpunTask* tasks) { return spin(*pool, count, ns, tasks); }

// Null: not joined, for the reason in `join`, and the system's in `error`.
CoreLease* baton_cores_join(const char* path, int num_own, int num_usable, int* join, int* error) {
  auto lease = std::make_unique<CoreLease>();
  *join = int(lease->join(path, num_own, num_usable));
  *error = lease->error();
  return *join == int(CoresJoin::kDone) ? lease.release() : nullptr;
}
void baton_cores_leave(CoreLease* lease) { lease->leave(); }
void baton_cores_use(const CoreLease* lease, CoreUse* use) { *use = lease->use(); }
void baton_cores_delete(CoreLease* lease) { delete lease; }

Matrix* baton_matrix_new(Pool* pool, int kind, const void* weight, int stored, int columns,
                         int inner, const float* bias, int paired, const float* peaks) try {
  return pack_matrix(*pool, Kind(kind), weight, Kind(stored), columns, inner, bias, paired != 0, peaks);
} catch (const std::bad_alloc&) {
  return nullptr;
}
Matrix* baton_matrix_of_codes(Pool* pool, const Codes* codes, const float* bias, int paired) try {
  return pack_codes(*pool, *codes, bias, paired != 0);
} catch (const std::bad_alloc&) {
  return nullptr;
}
// Null, too, if a scale is not finite.
Matrix* baton_matrix_of_blocks(Pool* pool, const Blocks* blocks, const float* bias, int paired) try {
  return pack_blocks(*pool, *blocks, bias, paired != 0);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void baton_matrix_round_rows(Matrix* matrix, const Rounding* rounding) {
  matrix->rounding = *rounding;
}
size_t baton_matrix_bytes(const Matrix* matrix) {
  return matrix->bytes();
}
int baton_matrix_multiply(Pool* pool, const Matrix* matrix, const float* rows, int count,
                          float* out) try {
  multiply_floats(*pool, *matrix, rows, count, out);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
void baton_matrix_delete(Matrix* matrix) { delete matrix; }

void baton_gate_rows(Pool* pool, const Gates* gates) { gate_rows(*pool, *gates); }

int baton_whole_attention(Pool* pool, const Texts* texts) try {
  attend_whole(*pool, *texts);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

void baton_checksum_blocks(const void* const* from, int count, size_t size, uint64_t* checksums) {
  for (int i = 0; i < count; ++i) checksums[i] = checksum(from[i], size);
}
void baton_copy_blocks(void* const* to, const void* const* from, int count, size_t size,
                       uint64_t* checksums) {
  for (int i = 0; i < count; ++i) checksums[i] = copy_checksum(to[i], from[i], size);
}
// to: null, or like from.
void baton_copy_ranges(const Ranges* to, const Ranges* from, int64_t count, void* scratch,
                       uint64_t* checksums) {
  copy_ranges(to, *from, count, static_cast<uint8_t*>(scratch), checksums);
}

size_t baton_stream_room(size_t size) { return stream_room(size); }
size_t baton_pack_ranges(const Ranges* from, int64_t count, void* scratch, void* to, uint64_t* checksums) {
  return pack_ranges(*from, count, static_cast<uint8_t*>(scratch), static_cast<uint8_t*>(to), checksums);
}
int baton_unpack_ranges(const void* from, size_t size, const Ranges* to, int64_t count, void* scratch,
                        uint64_t* checksums) {
  return int(unpack_ranges(static_cast<const uint8_t*>(from), size, *to, count, static_cast<uint8_t*>(scratch),
                           checksums));
}

int baton_choose_tokens(Pool* pool, const float* logits, size_t stride, int rows, int vocab,
                        const RowChoice* choices, int64_t* tokens) try {
  choose_tokens(pool, logits, stride, rows, vocab, choices, tokens);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
void baton_draw_uniforms(const RowDraw* draws, const uint32_t* positions, int count, double* numbers) {
  for (int i = 0; i < count; ++i) numbers[i] = draw_uniform(draws[i], positions[i]);
}

Adapter* baton_adapter_new(int element, const AdaptedMatrix* matrices, int count) try {
  return new Adapter(Kind(element), matrices, count);
} catch (const std::bad_alloc&) {
  return nullptr;
}
size_t baton_adapter_bytes(const Adapter* adapter) { return adapter->bytes(); }
void baton_adapter_delete(Adapter* adapter) { delete adapter; }

Decoder* baton_decoder_new(Pool* pool, const Shape* shape, const Weights* weights,
                           int element) try {
  return make_decoder(*pool, *shape, *weights, Kind(element)).release();
} catch (const std::bad_alloc&) {
  return nullptr;
}
void baton_decoder_delete(Decoder* decoder) { delete decoder; }

// Of decoders. collective: null with one rank.
// 3: there is more to do, see `Decoder::advance`.
int baton_decoder_advance(Decoder* decoder, const Step* step, int begins, int64_t room_ns) {
  return outcome([&] { return decoder->advance(*step, begins != 0, room_ns) ? 0 : 3; });
}
int baton_decoder_layers(const Decoder* decoder) { return decoder->layers(); }
int baton_decoder_embeddings(Decoder* decoder, const int64_t* token_ids, int count,
                             Collective* collective, float* out) {
  return outcome([&] {
    decoder->embeddings(token_ids, count, Ranks(collective), out);
    return 0;
  });
}
int baton_decoder_logits(Decoder* decoder, const float* hidden, int rows, Collective* collective,
                         float* out) {
  return outcome([&] {
    decoder->logits(hidden, rows, Ranks(collective), out);
    return 0;
  });
}

size_t baton_collective_bytes(const CollectiveShape* shape) {
  return Members::bytes(shape->size, Collective::bytes(*shape));
}
// Null: not joined, for the reason in `join`.
Collective* baton_collective_new(int fd, int rank, const CollectiveShape* shape, int64_t timeout_ns,
                                 int64_t spin_ns, int* join) {
  auto collective = std::make_unique<Collective>(rank, *shape, timeout_ns, spin_ns);
  *join = int(collective->join(fd));
  return *join == int(Join::kDone) ? collective.release() : nullptr;
}
void baton_collective_delete(Collective* collective) { delete collective; }
void baton_collective_failure(const Collective* collective, Failure* failure) {
  *failure = collective->failure();
}
int baton_all_reduce(Collective* collective, void* data, size_t count, int kind) {
  return !collective->all_reduce(data, count, Summand(kind));
}
int baton_all_gather(Collective* collective, const char* data, size_t rows, size_t row_bytes,
                     char* out) {
  return !collective->all_gather(data, rows, row_bytes, out);
}
int baton_broadcast(Collective* collective, char* data, size_t bytes, int source) {
  return !collective->broadcast(data, bytes, source);
}
int baton_barrier(Collective* collective) { return !collective->barrier(); }

size_t baton_ring_bytes(const RingShape* shape) {
  return Members::bytes(shape->size, PlanRing::bytes(*shape));
}
// Null: not joined, for the reason in `join`.
PlanRing* baton_ring_new(int fd, int rank, const RingShape* shape, int64_t timeout_ns,
                         int64_t spin_ns, int* join) {
  auto ring = std::make_unique<PlanRing>(rank, *shape, timeout_ns, spin_ns);
  *join = int(ring->join(fd));
  return *join == int(Join::kDone) ? ring.release() : nullptr;
}
void baton_ring_delete(PlanRing* ring) { delete ring; }
void baton_ring_failure(const PlanRing* ring, Failure* failure) { *failure = ring->failure(); }
int baton_ring_send(PlanRing* ring, const char* data, size_t bytes) { return !ring->send(data, bytes); }
int baton_ring_drain(PlanRing* ring) { return !ring->drain(); }
int baton_ring_receive(PlanRing* ring, char* to, size_t room, int64_t patience_ns, size_t* bytes) {
  return int(ring->receive(to, room, patience_ns, bytes));
}
}
