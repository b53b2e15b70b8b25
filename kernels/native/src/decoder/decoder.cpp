#include "decoder/decoder.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "decoder/attention_plans.h"
#include "decoder/embedding.h"
#include "decoder/expert_pairs.h"
#include "decoder/latent_attention.h"
#include "decoder/output_head.h"
#include "decoder/rotator.h"
#include "decoder/row_products.h"
#include "decoder/workspace.h"

namespace baton {
namespace {

// Dot: of elements, in the attention and with weights that are elements.
template <class Dot>
class TypedDecoder final : public Decoder {
  using Element = typename Dot::Element;

 public:
  TypedDecoder(Pool& pool, const Shape& shape, const Weights& weights)
      : program_(weights.program, weights.program + weights.program_size),
        work_(pool, shape, weights),
        kept_(shape.hidden_size),
        recurrent_scratch_(pool.num_threads()) {
    for (const Operation& one : program_)
      if (one.op == Op::kAttend) {
        plans_.add(one);
        last_attend_ = &one;
      }
    for (size_t place = 0; place < program_.size(); ++place) joined_.push_back(may_join_norm(place));
    for (RecurrentScratch& scratch : recurrent_scratch_)
      for (const Operation& one : program_)
        if (one.recurrent) scratch.reserve(*one.recurrent);
  }

  // A pause, and the program's end, are where a layer's input is captured.
  int layers() const override { return program_[std::min(next_, program_.size() - 1)].layer; }

  bool advance(const Step& step, bool begins, int64_t room_ns) override {
    const Batch& batch = step.batch;
    const KvMemory& kv = step.kv;
    work_.ranks = Ranks(step.collective);
    if (begins) begin(batch);
    const int tokens = batch.num_tokens;
    const auto until = end_of(room_ns);
    auto layer = Clock::now();
    const size_t first = next_;
    // The part's own, so that the loop has them in registers; kept between two parts.
    int rows = rows_;
    bool narrow = narrow_;
    const int64_t* kept = is_narrowed_ ? batch.wanted : nullptr;  // the token of each row, if wanted ones are left
    for (; next_ < program_.size(); ++next_) {
      const Operation& now = program_[next_];
      if (now.op == Op::kCapture && next_ > first && next_ + 1 < program_.size()) {
        const auto at = Clock::now();
        if (until - at < at - layer) {  // the next one may take as long
          rows_ = rows;
          narrow_ = narrow;
          is_narrowed_ = kept != nullptr;
          return false;
        }
        layer = at;
      }
      switch (now.op) {
        case Op::kCapture:
          if (rows == tokens) capture(batch, now.layer);
          break;
        case Op::kNorm:
          if (joined_[next_] && !products_.has_adapters())
            products_.join_norm(now);
          else
            norm_rows(now, rows);
          break;
        case Op::kProject:
          if (next_ + 1 < program_.size() && rotator_.may_rotate_at_once(now, program_[next_ + 1], rows)) {
            ++next_;
            rotator_.project_heads(now, program_[next_], batch, kv, rows, kept);
          } else {
            products_.multiply_to(work_.product, *now.matrix, rows);
          }
          break;
        case Op::kRotate:
          rotator_.rotate_and_store(now, batch, kv, rows, kept);
          break;
        case Op::kNarrow:
          narrow = batch.num_wanted >= 0;
          if (narrow) plans_.plan_wanted(batch, false);
          break;
        case Op::kAttend:
          plans_.attend(now, batch, kv);
          if (now.has_gate)
            gate_numbers(now, narrow ? batch.num_wanted : rows, narrow ? batch.wanted : nullptr);
          if (now.matrix) gate_heads(now, rows);
          if (narrow) {
            rows = keep_wanted(batch);
            kept = batch.wanted;
            narrow = false;
            if (&now != last_attend_) plans_.plan_wanted(batch, true);
          }
          break;
        case Op::kOutput:
          put_product(work_.attended, now, rows);
          break;
        case Op::kGate:
          gate(now, rows);
          break;
        case Op::kDown:
          put_product(work_.gated, now, rows);
          break;
        case Op::kAdd:
          add_apart(now, rows);
          break;
        case Op::kRoute:
          experts_.route(*now.experts, rows);
          break;
        case Op::kExperts:
          experts_.add_experts(now, rows);
          break;
        case Op::kLatentRow:
          latent_.put_rows(now, batch, kv);
          break;
        case Op::kLatentDown:
          latent_.put_operand(now, rows);
          break;
        case Op::kLatentQuery:
          latent_.put_queries(now, batch);
          break;
        case Op::kLatentValue:
          latent_.put_values(now, rows);
          break;
        case Op::kInputs:
          embedding_.put_inputs(now, batch);
          break;
        case Op::kWeigh:
          embedding_.weigh(now, rows);
          break;
        case Op::kScale:
          work_.rows_of(rows, [&](int row, int) {
            scale_row(work_.x.row(row), now.scale, work_.shape.hidden_size);
          });
          break;
        case Op::kKeep:
          keep_added(now, rows);
          break;
        case Op::kMerge:
          merge_added(now, rows);
          break;
        case Op::kSum:
          work_.ranks.sum(work_.added.row(0), size_t(rows) * work_.added.stride);
          break;
        case Op::kSquares:
          rotator_.share_squares(now, rows);
          break;
        case Op::kRecur:
          recur(now, batch);
          if (narrow) {
            rows = keep_wanted(batch);
            kept = batch.wanted;
            narrow = false;
          }
          break;
      }
    }
    leave(rows, step.hidden);
    products_.clear_adapters();
    if (step.logits != nullptr) {
      if (step.hidden != nullptr) head_.take_operands(step.hidden, rows);
      head_.put_every_logit(rows, step.logits);
    }
    if (step.tokens != nullptr) head_.choose_next(step, rows);
    return true;
  }

  void embeddings(const int64_t* token_ids, int count, const Ranks& ranks, float* out) override {
    work_.rows_of(count, [&](int row, int) {
      embedding_.embed_token(token_ids[row], out + size_t(row) * work_.shape.hidden_size);
    });
    ranks.sum(out, size_t(count) * work_.shape.hidden_size);
  }

  void logits(const float* hidden, int rows, const Ranks& ranks, float* out) override {
    work_.ranks = ranks;
    resize(rows);
    head_.take_operands(hidden, rows);
    head_.put_every_logit(rows, out);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void begin(const Batch& batch) {
    resize(batch.num_tokens);
    products_.set_adapters(batch.adapter_rows, batch.num_adapter_rows);
    if (batch.stream != nullptr)
      embedding_.enter(batch);
    else
      embedding_.embed(batch);
    plans_.plan_batch(batch);
    next_ = 0;
    rows_ = batch.num_tokens;
    narrow_ = is_narrowed_ = false;
  }

  // When a part that has so much room is over; the latest time there is: never.
  static Clock::time_point end_of(int64_t room_ns) {
    if (room_ns < 0) return Clock::time_point::max();
    return Clock::now() + std::chrono::nanoseconds(room_ns);
  }

  void resize(int tokens) {
    work_.resize(tokens);
    latent_.resize(tokens);
  }

  // to: float32 [rows][hidden]; null: they become operands.
  void leave(int rows, float* to) {
    const int size = work_.shape.hidden_size;
    work_.rows_of(rows, [&](int row, int) {
      float* out = to != nullptr ? to + size_t(row) * size : work_.operand.row(row);
      if (work_.weights.norm != nullptr)
        work_.norm(work_.x.row(row), work_.weights.norm, work_.weights.norm_bias, size, out);
      else
        std::memcpy(out, work_.x.row(row), size * sizeof(float));
    });
  }

  void capture(const Batch& batch, int layer) {
    const size_t size = work_.shape.hidden_size;
    for (int i = 0; i < batch.num_captured; ++i) {
      if (batch.captured_layers[i] != layer) continue;
      float* out = batch.captured + i * batch.num_tokens * size;
      work_.rows_of(batch.num_tokens,
                    [&](int row, int) { std::memcpy(out + row * size, work_.x.row(row), size * sizeof(float)); });
    }
  }

  // Moves the wanted rows to the front; returns how many there are.
  int keep_wanted(const Batch& batch) {
    for (int i = 0; i < batch.num_wanted; ++i) {
      const int row = int(batch.wanted[i]);
      std::copy_n(work_.x.row(row), work_.x.stride, work_.x.row(i));
      std::copy_n(work_.attended.row(row), work_.attended.stride, work_.attended.row(i));
      std::copy_n(work_.inputs.row(row), work_.inputs.stride, work_.inputs.row(i));
    }
    if (products_.has_adapters()) products_.keep_adapters(batch);
    return batch.num_wanted;
  }

  void norm_rows(const Operation& now, int rows) {
    work_.rows_of(rows, [&](int row, int) { work_.norm_row(now, row, work_.operand.row(row)); });
  }

  // Whether the rows of a norm become operands of the product behind it, and nothing else.
  bool may_join_norm(size_t place) const {
    if (program_[place].op != Op::kNorm || place + 1 == program_.size()) return false;
    const Operation& next = program_[place + 1];
    if (next.op != Op::kProject && next.op != Op::kGate) return false;
    if (shares_scale(*next.matrix)) return false;
    if (std::is_same_v<float, Element> && takes_elements(*next.matrix)) return false;
    for (size_t i = place + 2; i < program_.size() && program_[i].op != Op::kNorm; ++i)
      if (reads_operand(program_[i])) return false;
    return true;
  }

  void add_apart(const Operation& now, int rows) {
    const int size = work_.shape.hidden_size;
    work_.rows_of(rows, [&](int row, int) {
      float* what = work_.added.row(row);
      if (now.first != nullptr) work_.norm(what, now.first, now.second, size, what);
      add_row(work_.x.row(row), now.scale, what, size);
    });
  }

  void keep_added(const Operation& now, int rows) {
    const int size = work_.shape.hidden_size;
    kept_.resize(rows);
    work_.rows_of(rows, [&](int row, int) {
      work_.norm(work_.added.row(row), now.first, now.second, size, kept_.row(row));
    });
  }

  void merge_added(const Operation& now, int rows) {
    const int size = work_.shape.hidden_size;
    work_.rows_of(rows, [&](int row, int) {
      float* what = work_.added.row(row);
      work_.norm(what, now.first, now.second, size, what);
      add_row(what, 1.0f, kept_.row(row), size);
    });
  }

  // Of all tokens, or of the wanted ones.
  void gate_heads(const Operation& now, int rows) {
    const int dim = now.heads.dim;
    products_.multiply_to(work_.rates, *now.matrix, rows);
    work_.rows_of(rows, [&](int row, int thread) {
      float* wide = work_.float_rows[thread].data();
      widen_row(wide, work_.attended.row(row), now.heads.query_size());
      for (int head = 0; head < now.heads.num; ++head)
        scale_row(wide + head * dim, 1.0f / (1.0f + std::exp(-work_.rates.row(row)[head])), dim);
      narrow_row(work_.attended.row(row), wide, now.heads.query_size());
    });
  }

  // Of the first `count` rows, or of so many `at` some.
  void gate_numbers(const Operation& now, int count, const int64_t* at) {
    const int size = now.heads.query_size();
    work_.rows_of(count, [&](int i, int) {
      const int row = at ? int(at[i]) : i;
      multiply_gates(work_.attended.row(row), work_.product.row(row) + size, size);
    });
  }

  void recur(const Operation& now, const Batch& batch) {
    const Recurrent& own = *now.recurrent;
    products_.multiply_to(work_.product, *own.inputs, batch.num_tokens);
    if (own.rates) products_.multiply_to(work_.rates, *own.rates, batch.num_tokens);
    const StateView states{batch.states[now.kv_group] + now.kv_place * own.state_size(),
                           batch.state_strides[now.kv_group],
                           batch.state_blocks + size_t(now.kv_group) * batch.num_seqs * 2};
    const RecurrentKernel<Element> kernel{
        work_.pool, own, batch, states, work_.product, work_.rates, work_.attended,
        recurrent_scratch_, work_.ranks, work_.totals, work_.shape.norm_eps};
    kernel();
  }

  void put_product(Activations<Element>& input, const Operation& now, int rows) {
    const bool apart = now.apart;
    products_.multiply(*now.matrix, input, rows, [&](int row, int column, const Floats* values) {
      if (apart) {
        std::memcpy(work_.added.row(row) + column, values, kPanel * sizeof(float));
        return;
      }
      float* to = work_.x.row(row) + column;
      for (int v = 0; v < kPanelVectors; ++v)
        store(to + v * kLanes, load<Floats>(to + v * kLanes) + values[v]);
    });
  }

  void gate(const Operation& now, int rows) {
    products_.multiply(*now.matrix, work_.operand, rows, [&](int row, int column, const Floats* values) {
      put_activated(work_.gated.row(row), now, column, values);
    });
  }

  const std::vector<Operation> program_;
  std::vector<bool> joined_;  // by operation: see `may_join_norm`
  const Operation* last_attend_ = nullptr;
  // Of a step in parts: the next operation, the rows that are left, and whether the next mixer narrows them.
  size_t next_ = 0;
  int rows_ = 0;
  bool narrow_ = false, is_narrowed_ = false;
  Workspace<Dot> work_;
  RowProducts<Dot> products_{work_};
  Embedding<Dot> embedding_{work_, products_};
  Rotator<Dot> rotator_{work_, products_};
  LatentAttention<Dot> latent_{work_, products_};
  AttentionPlans<Dot> plans_{work_};
  ExpertPairs<Dot> experts_{work_, products_};
  OutputHead<Dot> head_{work_, products_};
  Activations<float> kept_;
  std::vector<RecurrentScratch> recurrent_scratch_;
};

}  // namespace

std::unique_ptr<Decoder> make_decoder(Pool& pool, const Shape& shape, const Weights& weights,
                                      Kind element) {
  if (element == Kind::kFloat32)
    return std::make_unique<TypedDecoder<Float32Dot>>(pool, shape, weights);
  if (element == Kind::kBFloat16)
    return std::make_unique<TypedDecoder<BFloat16Dot>>(pool, shape, weights);
  return nullptr;
}

}  // namespace baton
