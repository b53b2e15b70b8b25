#include "decoder/decoder.h"

#include <chrono>
#include <utility>

#include "adapters/deltas.h"
#include "products/multiply.h"
#include "vectors/rows.h"

namespace baton {
namespace {

// Dot: of elements, in the attention and with weights that are elements.
template <class Dot>
class TypedDecoder final : public Decoder {
  using Element = typename Dot::Element;

 public:
  TypedDecoder(Pool& pool, const Shape& shape, const Weights& weights)
      : pool_(pool),
        shape_(shape),
        program_(weights.program, weights.program + weights.program_size),
        weights_(weights),
        x_(shape.hidden_size),
        product_(most(weights, &product_size)),
        added_(Activations<float>::close(shape.hidden_size)),
        query_(most(weights, &query_size)),
        attended_(most(weights, &attended_size)),
        gated_(shape.intermediate_size),
        operand_(std::max(shape.hidden_size, most(weights, &query_rank))),
        by_head_(most(weights, &by_head_size)),
        scores_(most(weights, &num_experts) + 1),
        pair_gated_(shape.intermediate_size),
        pair_out_(shape.hidden_size),
        rates_(most(weights, &num_rates)),
        inputs_(most(weights, &num_inputs)),
        kept_(shape.hidden_size),
        recurrent_scratch_(pool.num_threads()) {
    for (const Operation& one : program_)
      if (one.op == Op::kAttend) {
        add_plan(one);
        last_attend_ = &one;
      }
    for (size_t place = 0; place < program_.size(); ++place) joined_.push_back(may_join_norm(place));
    for (int thread = 0; thread < pool.num_threads(); ++thread) {
      float_rows_.emplace_back(size_t(std::max({gated_.stride, attended_.stride, operand_.stride})));
      merits_.emplace_back(size_t(scores_.stride));
      for (const Operation& one : program_)
        if (one.recurrent) recurrent_scratch_[thread].reserve(*one.recurrent);
    }
  }

  // A pause, and the program's end, are where a layer's input is captured.
  int layers() const override { return program_[std::min(next_, program_.size() - 1)].layer; }

  bool advance(const Step& step, bool begins, int64_t room_ns) override {
    const Batch& batch = step.batch;
    const KvMemory& kv = step.kv;
    ranks_ = Ranks(step.collective);
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
          if (joined_[next_] && adapter_rows_.empty())
            joined_norm_ = &now;
          else
            norm_rows(now, rows);
          break;
        case Op::kProject:
          if (next_ + 1 < program_.size() && may_rotate_at_once(now, program_[next_ + 1], rows)) {
            ++next_;
            project_heads(now, program_[next_], batch, kv, rows, kept);
          } else {
            multiply_to(product_, *now.matrix, rows);
          }
          break;
        case Op::kRotate:
          rotate_and_store(now, batch, kv, rows, kept);
          break;
        case Op::kNarrow:
          narrow = batch.num_wanted >= 0;
          if (narrow) plan_wanted(batch, false);
          break;
        case Op::kAttend:
          attend(now, batch, kv);
          if (now.has_gate)
            gate_numbers(now, narrow ? batch.num_wanted : rows, narrow ? batch.wanted : nullptr);
          if (now.matrix) gate_heads(now, rows);
          if (narrow) {
            rows = keep_wanted(batch);
            kept = batch.wanted;
            narrow = false;
            if (&now != last_attend_) plan_wanted(batch, true);
          }
          break;
        case Op::kOutput:
          put_product(attended_, now, rows);
          break;
        case Op::kGate:
          gate(now, rows);
          break;
        case Op::kDown:
          put_product(gated_, now, rows);
          break;
        case Op::kAdd:
          add_apart(now, rows);
          break;
        case Op::kRoute:
          route(*now.experts, rows);
          break;
        case Op::kExperts:
          add_experts(now, rows);
          break;
        case Op::kLatentRow:
          put_latent_rows(now, batch, kv);
          break;
        case Op::kLatentDown:
          put_latent_operand(now, rows);
          break;
        case Op::kLatentQuery:
          put_latent_queries(now, batch);
          break;
        case Op::kLatentValue:
          put_latent_values(now, rows);
          break;
        case Op::kInputs:
          put_inputs(now, batch);
          break;
        case Op::kWeigh:
          weigh(now, rows);
          break;
        case Op::kScale:
          rows_of(rows, [&](int row, int) {
            scale_row(x_.row(row), now.scale, shape_.hidden_size);
          });
          break;
        case Op::kKeep:
          keep_added(now, rows);
          break;
        case Op::kMerge:
          merge_added(now, rows);
          break;
        case Op::kSum:
          ranks_.sum(added_.row(0), size_t(rows) * added_.stride);
          break;
        case Op::kSquares:
          share_squares(now, rows);
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
    adapter_rows_.clear();
    if (step.logits != nullptr) {
      if (step.hidden != nullptr) take_operands(step.hidden, rows);
      put_every_logit(rows, step.logits);
    }
    if (step.tokens != nullptr) choose_next(step, rows);
    return true;
  }

  void embeddings(const int64_t* token_ids, int count, const Ranks& ranks, float* out) override {
    rows_of(count, [&](int row, int) {
      embed_token(token_ids[row], out + size_t(row) * shape_.hidden_size);
    });
    ranks.sum(out, size_t(count) * shape_.hidden_size);
  }

  void logits(const float* hidden, int rows, const Ranks& ranks, float* out) override {
    ranks_ = ranks;
    resize(rows);
    take_operands(hidden, rows);
    put_every_logit(rows, out);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void begin(const Batch& batch) {
    resize(batch.num_tokens);
    adapter_rows_.assign(batch.adapter_rows, batch.adapter_rows + batch.num_adapter_rows);
    if (batch.stream != nullptr)
      enter(batch);
    else
      embed(batch);
    plan_attention(batch);
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
    x_.resize(tokens);
    product_.resize(tokens);
    added_.resize(tokens);
    query_.resize(tokens);
    attended_.resize(tokens);
    gated_.resize(tokens);
    operand_.resize(tokens);
    by_head_.resize(tokens);
    rates_.resize(tokens);
    inputs_.resize(tokens);
  }

  // See run_rows.
  template <class Body>
  void rows_of(int rows, Body&& body) {
    run_rows(pool_, rows, body);
  }

  // Rows times a matrix, which says in which form it takes them, and what adapters add to that. put: see
  // `multiply`.
  template <class From, class Put>
  void multiply_rows_with(const Matrix& matrix, Activations<From>& from, int rows, Put&& put, int whole = 1) {
    const Range* ranges = nullptr;
    if (shares_scale(matrix))
      ranges = share_ranges(0, rows, [&](int row) { return range_of(from.row(row), matrix.inner); });
    const Operation* const joined = std::exchange(joined_norm_, nullptr);
    const Rows operands =
        joined ? norm_operands(*joined, matrix, rows) : operands_.of(pool_, from, rows, matrix, ranges);
    const bool adapted = !adapter_rows_.empty() && deltas_.plan(pool_, adapter_rows_, matrix, from, operands);
    multiply<Dot>(pool_, operands, matrix, put, adapted ? &deltas_ : nullptr, whole);
  }

  // By row, the ranges of rows of which each rank has a part; of rows from `first` on, others are not there.
  template <class Own>
  const Range* share_ranges(int first, int end, Own&& own) {
    const int count = end - first, size = ranks_.size();
    if (count == 0) return nullptr;
    own_ranges_.resize(count);
    every_range_.resize(size_t(count) * size);
    ranges_.resize(end);
    rows_of(count, [&](int i, int) { own_ranges_[i] = own(first + i); });
    ranks_.gather(&own_ranges_.data()->below, count, 2, &every_range_.data()->below);
    for (int i = 0; i < count; ++i) {
      Range& range = ranges_[first + i] = every_range_[size_t(i) * size];
      for (int rank = 1; rank < size; ++rank) range.add(every_range_[size_t(i) * size + rank]);
    }
    return ranges_.data();
  }

  Rows elements(Activations<Element>& activations, int rows) {
    return Rows{reinterpret_cast<const uint32_t*>(activations.data.data()),
                size_t(activations.stride / Dot::kElements), rows};
  }

  void take_operands(const float* hidden, int rows) {
    const int size = shape_.hidden_size;
    rows_of(rows, [&](int row, int) {
      std::memcpy(operand_.row(row), hidden + size_t(row) * size, size * sizeof(float));
    });
  }

  // The logits of rows of operands, of all ranks.
  void put_every_logit(int rows, float* out) {
    const int vocab = shape_.vocab_size;
    if (ranks_.alone()) {
      put_logits(rows, vocab, out, vocab);
      return;
    }
    const int room = shape_.token_room;
    own_logits_.reserve(size_t(rows) * room);
    put_logits(rows, room, own_logits_.data(), room);
    const int width = room * ranks_.size();
    if (width == vocab) {
      ranks_.gather(own_logits_.data(), rows, room, out);
      return;
    }
    every_logit_.reserve(size_t(rows) * width);
    ranks_.gather(own_logits_.data(), rows, room, every_logit_.data());
    rows_of(rows, [&](int row, int) {
      std::memcpy(out + size_t(row) * vocab, every_logit_.data() + size_t(row) * width, vocab * sizeof(float));
    });
  }

  // The tokens behind those of the rows, whose logits are there.
  void choose_next(const Step& step, int rows) {
    const Batch& batch = step.batch;
    if (step.draws != nullptr)
      for (int row = 0; row < rows; ++row) {
        const int64_t token = batch.num_wanted >= 0 ? batch.wanted[row] : row;
        step.choices[row].number = draw_uniform(step.draws[row], uint32_t(batch.positions[token] + 1));
      }
    const int vocab = shape_.vocab_size;
    choose_tokens(&pool_, step.logits, vocab, rows, vocab, step.choices, step.tokens);
  }

  // The rank's logits of rows of operands.
  void put_logits(int rows, int count, float* out, int stride) {
    multiply_rows_with(*weights_.head, operand_, rows, [&](int row, int column, Floats* values) {
      float* to = out + size_t(row) * stride + column;
      finish_logits(values);
      std::memcpy(to, values, std::min(kPanel, count - column) * sizeof(float));
    });
  }

  void enter(const Batch& batch) {
    const int size = shape_.hidden_size;
    rows_of(batch.num_tokens, [&](int row, int) {
      std::memcpy(x_.row(row), batch.stream + size_t(row) * size, size * sizeof(float));
    });
  }

  // to: float32 [rows][hidden]; null: they become operands.
  void leave(int rows, float* to) {
    const int size = shape_.hidden_size;
    rows_of(rows, [&](int row, int) {
      float* out = to != nullptr ? to + size_t(row) * size : operand_.row(row);
      if (weights_.norm != nullptr)
        norm(x_.row(row), weights_.norm, weights_.norm_bias, size, out);
      else
        std::memcpy(out, x_.row(row), size * sizeof(float));
    });
  }

  void embed(const Batch& batch) {
    const int size = shape_.hidden_size;
    if (!ranks_.alone()) {
      rows_of(batch.num_tokens,
              [&](int row, int) { embed_token(batch.token_ids[row], added_.row(row)); });
      ranks_.sum(added_.row(0), size_t(batch.num_tokens) * added_.stride);
    }
    rows_of(batch.num_tokens, [&](int row, int) {
      float* x = x_.row(row);
      if (batch.given_at != nullptr && batch.given_at[row] >= 0)
        std::memcpy(x, batch.given + size_t(batch.given_at[row]) * size, size * sizeof(float));
      else if (ranks_.alone())
        embed_token(batch.token_ids[row], x);
      else
        std::memcpy(x, added_.row(row), size * sizeof(float));
      if (weights_.positions != nullptr)
        add_row(x, 1.0f, weights_.positions + size_t(batch.positions[row]) * size, size);
    });
  }

  // Zeros, if another rank has the token's row.
  void embed_token(int64_t token, float* to) {
    const int size = shape_.hidden_size;
    const int64_t own = token - shape_.first_token;
    if (own < 0 || own >= shape_.num_tokens) {
      std::fill_n(to, size, 0.0f);
      return;
    }
    if (weights_.embedding == nullptr)
      unpack_column(*weights_.head, int(own), to);
    else
      widen_stored(to, weights_.embedding, weights_.embedding_kind, size_t(own) * size, size);
    if (shape_.embedding_multiplier != 1.0f)
      for (int i = 0; i < size; ++i) to[i] *= shape_.embedding_multiplier;
  }

  static void widen_stored(float* to, const void* from, Kind kind, size_t first, int size) {
    if (kind == Kind::kFloat32)
      widen_row(to, static_cast<const float*>(from) + first, size);
    else
      widen_row(to, static_cast<const uint16_t*>(from) + first, size);
  }

  void put_inputs(const Operation& now, const Batch& batch) {
    const LayerInputs& own = *now.inputs;
    multiply_to(inputs_, *now.matrix, batch.num_tokens);
    rows_of(batch.num_tokens, [&](int row, int thread) {
      float* to = inputs_.row(row);
      float* stored = float_rows_[thread].data();
      scale_row(to, own.product_factor, own.num());
      for (int layer = 0; layer < own.num_layers; ++layer, to += own.size) {
        const size_t place = size_t(batch.token_ids[row]) * own.num_layers + layer;
        widen_stored(stored, own.table, own.table_kind, place * own.size, own.size);
        norm(to, now.first, nullptr, own.size, to);
        add_row(to, own.table_factor, stored, own.size);
        scale_row(to, std::sqrt(0.5f), own.size);
      }
    });
  }

  void weigh(const Operation& now, int rows) {
    const int size = now.inputs->size;
    rows_of(rows, [&](int row, int thread) {
      const float* input = inputs_.row(row) + now.layer * size;
      float* gated = float_rows_[thread].data();
      widen_row(gated, gated_.row(row), size);
      for (int i = 0; i < size; ++i) gated[i] *= input[i];
      narrow_row(gated_.row(row), gated, size);
    });
  }

  void finish_logits(Floats* values) const {
    if (shape_.logit_multiplier != 1.0f)
      for (int v = 0; v < kPanelVectors; ++v) values[v] *= shape_.logit_multiplier;
    if (shape_.logit_cap != 0.0f)
      for (int v = 0; v < kPanelVectors; ++v)
        values[v] = shape_.logit_cap * tanh(values[v] * (1.0f / shape_.logit_cap));
  }

  void capture(const Batch& batch, int layer) {
    const size_t size = shape_.hidden_size;
    for (int i = 0; i < batch.num_captured; ++i) {
      if (batch.captured_layers[i] != layer) continue;
      float* out = batch.captured + i * batch.num_tokens * size;
      rows_of(batch.num_tokens,
              [&](int row, int) { std::memcpy(out + row * size, x_.row(row), size * sizeof(float)); });
    }
  }

  // How the attention of layers with such heads, and such a window, is computed.
  struct Plan {
    Heads heads;
    Seen seen;
    std::vector<AttentionTask> tasks;
    std::vector<AttentionTask> combined;
    Buffer<float> parts;
    int joined = 1;  // key/value heads of a task with few rows
    std::vector<std::unique_ptr<AttentionScratch<Dot>>> scratch;  // by thread

    int group() const { return heads.num / heads.num_kv; }
  };

  static Seen seen_by(const Operation& now) { return {now.window, now.chunked != 0}; }

  void add_plan(const Operation& now) {
    if (plan_of(now) != plans_.end()) return;
    Plan& plan = plans_.emplace_back();
    plan.heads = now.heads;
    plan.seen = seen_by(now);
    for (int thread = 0; thread < pool_.num_threads(); ++thread)
      plan.scratch.push_back(std::make_unique<AttentionScratch<Dot>>(now.heads.dim));
  }

  auto plan_of(const Operation& now) {
    return std::find_if(plans_.begin(), plans_.end(), [&](const Plan& plan) {
      return plan.heads == now.heads && plan.seen == seen_by(now);
    });
  }

  void plan_attention(const Batch& batch) {
    for (Plan& plan : plans_) plan_all(batch, plan);
  }

  // Longest contexts first, so that no thread is left with a long one at the end.
  void plan_all(const Batch& batch, Plan& plan) {
    const int per_task = std::max(1, kQueryRows<Dot> / plan.group());
    plan.tasks.clear();
    plan.joined = joined_heads(batch, plan);
    for (int seq = 0; seq < batch.num_seqs; ++seq) {
      const int tokens = batch.query_start_loc[seq + 1] - batch.query_start_loc[seq];
      for (int first = 0; first < tokens; first += per_task)
        add_tasks(plan, seq, first, std::min(per_task, tokens - first),
                  batch.query_start_loc[seq] + first);
    }
    std::stable_sort(plan.tasks.begin(), plan.tasks.end(), [&](const auto& a, const auto& b) {
      return context(batch, a) > context(batch, b);
    });
    split_tasks(batch, plan);
  }

  // Tokens up to the last one of a task.
  static int context(const Batch& batch, const AttentionTask& task) {
    const int tokens = batch.query_start_loc[task.seq + 1] - batch.query_start_loc[task.seq];
    return batch.seq_lens[task.seq] - tokens + task.first_token + task.num_tokens;
  }

  // Tasks for each thread, so that none waits long for the last one.
  int wanted_tasks() const { return 8 * pool_.width(); }

  // Key/value heads of a task with few rows: of one token of each sequence, fewer if tasks of single spans would be too
  // few for all threads.
  int joined_heads(const Batch& batch, const Plan& plan) const {
    int heads = std::min(most_heads<Dot>(plan.group(), plan.heads.dim), plan.heads.num_kv);
    if (pool_.width() == 1) return heads;
    int spans = 0;
    for (int seq = 0; seq < batch.num_seqs; ++seq) {
      const int end = batch.seq_lens[seq];
      spans += (end + kSpan - 1) / kSpan - std::max(0, plan.seen.first(end - 1)) / kSpan;
    }
    while (heads > 1 && spans * plan.heads.num_kv < wanted_tasks() * heads) heads /= 2;
    return heads;
  }

  // Too few tasks for all threads: some spans of a long one become a task.
  void split_tasks(const Batch& batch, Plan& plan) {
    constexpr int kMostSpans = 4;
    plan.combined.clear();
    const int wanted = wanted_tasks();
    if (pool_.width() == 1 || int(plan.tasks.size()) >= wanted) return;
    int num_spans = 0;
    for (AttentionTask& task : plan.tasks) {
      const int end = context(batch, task);
      task.first_span = std::max(0, plan.seen.first(end - task.num_tokens)) / kSpan;
      task.num_spans = (end + kSpan - 1) / kSpan - task.first_span;
      num_spans += task.num_spans;
    }
    const int at_once = std::clamp(num_spans / (2 * pool_.width()), 1, kMostSpans);
    std::vector<AttentionTask> parts;
    size_t size = 0;
    for (AttentionTask task : plan.tasks) {
      if (task.num_spans <= 1) {
        task.num_spans = 0;
        parts.push_back(task);
        continue;
      }
      task.part = size;
      plan.combined.push_back(task);
      for (int left = task.num_spans; left > 0; left -= task.num_spans) {
        task.num_spans = std::min(left, at_once);
        task.part = size;
        parts.push_back(task);
        task.first_span += task.num_spans;
        size += task.num_spans * Sums::num_floats(task.rows(), panels_of(plan.heads.dim));
      }
    }
    plan.tasks = std::move(parts);
    plan.parts.reserve(size);
  }

  static void add_tasks(Plan& plan, int seq, int first_token, int num_tokens, int row) {
    const int joined = std::min(plan.joined, most_heads<Dot>(num_tokens * plan.group(), plan.heads.dim));
    for (int head = 0; head < plan.heads.num_kv; head += joined)
      for_head_parts<Dot>(plan.group(), [&](int first_head, int num_heads) {
        AttentionTask task{seq, first_token, num_tokens, head, first_head, num_heads, row};
        task.num_kv_heads = std::min(joined, plan.heads.num_kv - head);
        plan.tasks.push_back(task);
      });
  }

  // Behind the last keys and values that are kept, only the wanted tokens matter. is_moved: their rows
  // are the first ones.
  void plan_wanted(const Batch& batch, bool is_moved) {
    for (Plan& plan : plans_) {
      plan.tasks.clear();
      plan.joined = joined_heads(batch, plan);
      int seq = 0;
      for (int i = 0; i < batch.num_wanted; ++i) {
        while (batch.query_start_loc[seq + 1] <= batch.wanted[i]) ++seq;
        const int token = int(batch.wanted[i]);
        add_tasks(plan, seq, token - batch.query_start_loc[seq], 1, is_moved ? i : token);
      }
      split_tasks(batch, plan);
    }
  }

  // Moves the wanted rows to the front; returns how many there are.
  int keep_wanted(const Batch& batch) {
    for (int i = 0; i < batch.num_wanted; ++i) {
      const int row = int(batch.wanted[i]);
      std::copy_n(x_.row(row), x_.stride, x_.row(i));
      std::copy_n(attended_.row(row), attended_.stride, attended_.row(i));
      std::copy_n(inputs_.row(row), inputs_.stride, inputs_.row(i));
    }
    if (!adapter_rows_.empty()) keep_adapters(batch);
    return batch.num_wanted;
  }

  // Makes the rows that have an adapter those of the wanted tokens.
  void keep_adapters(const Batch& batch) {
    adapter_rows_.clear();
    const AdapterRows *now = batch.adapter_rows, *end = now + batch.num_adapter_rows;
    for (int i = 0; i < batch.num_wanted; ++i) {
      const int token = int(batch.wanted[i]);
      while (now != end && now->end <= token) ++now;
      if (now == end) return;
      if (token < now->first) continue;
      if (!adapter_rows_.empty() && adapter_rows_.back().end == i &&
          adapter_rows_.back().adapter == now->adapter)
        ++adapter_rows_.back().end;
      else
        adapter_rows_.push_back({i, i + 1, now->adapter});
    }
  }

  // to = the norm of x, in place if wanted.
  void norm(const float* x, const float* weight, const float* bias, int size, float* to) const {
    if (shape_.centers) {
      center(x, size, to);
      x = to;
    }
    normalize(x, weight, size, shape_.norm_eps, to);
    if (bias != nullptr) add_row(to, 1.0f, bias, size);
  }

  void norm_row(const Operation& now, int row, float* to) {
    if (now.first != nullptr)
      norm(x_.row(row), now.first, now.second, shape_.hidden_size, to);
    else
      std::memcpy(to, x_.row(row), shape_.hidden_size * sizeof(float));
  }

  void norm_rows(const Operation& now, int rows) {
    rows_of(rows, [&](int row, int) { norm_row(now, row, operand_.row(row)); });
  }

  // The same as rows of a product, without those of `operand_`.
  Rows norm_operands(const Operation& now, const Matrix& matrix, int rows) {
    operands_.reserve(rows, operands_.row_bytes(matrix));
    rows_of(rows, [&](int row, int thread) {
      float* numbers = float_rows_[thread].data();
      norm_row(now, row, numbers);
      operands_.put(row, numbers, matrix, nullptr);
    });
    return operands_.some(0, rows);
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

  static bool reads_operand(const Operation& now) {
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

  void add_apart(const Operation& now, int rows) {
    const int size = shape_.hidden_size;
    rows_of(rows, [&](int row, int) {
      float* what = added_.row(row);
      if (now.first != nullptr) norm(what, now.first, now.second, size, what);
      add_row(x_.row(row), now.scale, what, size);
    });
  }

  void keep_added(const Operation& now, int rows) {
    const int size = shape_.hidden_size;
    kept_.resize(rows);
    rows_of(rows, [&](int row, int) {
      norm(added_.row(row), now.first, now.second, size, kept_.row(row));
    });
  }

  void merge_added(const Operation& now, int rows) {
    const int size = shape_.hidden_size;
    rows_of(rows, [&](int row, int) {
      float* what = added_.row(row);
      norm(what, now.first, now.second, size, what);
      add_row(what, 1.0f, kept_.row(row), size);
    });
  }

  // to = operand * matrix
  void multiply_to(Activations<float>& to, const Matrix& matrix, int rows) {
    multiply_rows_with(matrix, operand_, rows, [&](int row, int column, const Floats* values) {
      std::memcpy(to.row(row) + column, values, kPanel * sizeof(float));
    });
  }

  static float query_factor(const Operation& now, int position) {
    if (now.query_step == 0) return 1.0f;
    return 1.0f + now.query_scale * std::log1p(float((position + 1) / now.query_step));
  }

  // Every layer's attention has heads of its own.
  static Cache<Element> cache_of(const Operation& now, const KvMemory& kv) {
    const Heads& heads = now.heads;
    const float* scales = nullptr;
    if (kv.scales)
      scales = kv.scales[now.kv_group] +
               size_t(now.kv_place) * heads.kv_kinds * heads.num_kv * kv.block_size;
    return {static_cast<Element*>(kv.data), kv.format, kv.block_stride, heads.kv_kinds,
            heads.num_kv, kv.block_size, heads.dim, scales};
  }

  // Those of the product, behind the queries.
  float* keys_of(const Operation& now, int row) {
    return product_.row(row) + (now.has_gate ? 2 : 1) * now.heads.query_size();
  }

  void clip(const Operation& now, int row) {
    if (now.limit == 0.0f) return;
    clamp_row(product_.row(row), now.limit, now.heads.query_size());
    clamp_row(keys_of(now, row), now.limit, (now.num_parts - 1) * now.heads.kv_size());
  }

  void share_squares(const Operation& now, int rows) {
    totals_.reserve(size_t(rows) * 2);
    rows_of(rows, [&](int row, int) {
      clip(now, row);
      float* totals = totals_.data() + size_t(row) * 2;
      totals[0] = sum_of_squares(product_.row(row), now.heads.query_size());
      const bool counts = now.whole->counts_keys && now.num_parts > 1;
      totals[1] = counts ? sum_of_squares(keys_of(now, row), now.heads.kv_size()) : 0.0f;
    });
    ranks_.sum(totals_.data(), size_t(rows) * 2);
  }

  // The norm of all heads of queries (`part` 0) or keys (1) together, in place.
  void norm_whole(const Operation& now, int row, float* x, int part, const float* weight, int size) {
    if (now.whole == nullptr) {
      norm(x, weight, nullptr, size, x);
      return;
    }
    const int count = part == 0 ? now.whole->num_queries : now.whole->num_keys;
    const float factor = norm_factor(totals_.data()[size_t(row) * 2 + part], count, shape_.norm_eps);
    weigh_row(x, factor, weight, size, x);
  }

  // How the numbers of heads become queries, and keys and values of the cache.
  struct Rotation {
    const Operation& now;
    const Batch& batch;
    const Cache<Element> cache;
    const int64_t* tokens;  // that of each row, or null if they are all

    int64_t token(int row) const { return tokens ? tokens[row] : row; }
    int64_t position(int row) const { return batch.positions[token(row)]; }
    const float* cos_sin(int row) const { return now.cos_sin + size_t(position(row)) * now.heads.dim; }
    // The weight of a head's own norm, or null; first: that of the first head.
    const float* weight(const float* first, int head) const {
      if (first == nullptr || now.head_norm == HeadNorm::kWhole) return nullptr;
      return first + (now.head_norm == HeadNorm::kEachHead ? head * now.heads.dim : 0);
    }
    int64_t slot(int row) const { return batch.slots[now.kv_group][token(row)]; }
    void fetch(int row, int kind, int head) const {
      const int64_t at = slot(row);
      fetch_row(cache, int(at / cache.block_size), now.kv_place, kind, head, int(at % cache.block_size));
    }
    void store(int row, int kind, int head, const float* x) const {
      const int64_t at = slot(row);
      store_row(cache, int(at / cache.block_size), now.kv_place, kind, head, int(at % cache.block_size), x);
    }
  };

  // A head of queries; x is changed.
  void put_query(const Rotation& by, int row, int head, float* x) {
    const int dim = by.now.heads.dim;
    if (const float* weight = by.weight(by.now.first, head)) norm(x, weight, nullptr, dim, x);
    rotate(x, by.cos_sin(row), dim);
    const float heat = query_factor(by.now, int(by.position(row)));
    if (heat != 1.0f) scale_row(x, heat, dim);
    narrow_row(query_.row(row) + head * dim, x, dim);
  }

  // The same of keys.
  void put_key(const Rotation& by, int row, int head, float* x) const {
    const int dim = by.now.heads.dim;
    if (const float* weight = by.weight(by.now.second, head)) norm(x, weight, nullptr, dim, x);
    rotate(x, by.cos_sin(row), dim);
    by.store(row, 0, head, x);
  }

  // normed: memory for a head. x may be what keys are made of, and stays.
  void put_value(const Rotation& by, int row, int head, const float* x, float* normed) const {
    if (by.now.third) norm(x, by.now.third, nullptr, by.now.heads.dim, normed);
    by.store(row, 1, head, by.now.third ? normed : x);
  }

  // tokens: that of each row, or null if they are all.
  void rotate_and_store(const Operation& now, const Batch& batch, const KvMemory& kv, int rows,
                        const int64_t* tokens) {
    const Rotation by{now, batch, cache_of(now, kv), tokens};
    const int dim = now.heads.dim, heads = now.heads.num, kv_heads = now.heads.num_kv;
    const bool whole = now.head_norm == HeadNorm::kWhole;
    rows_of(rows, [&](int row, int thread) {
      float* x = product_.row(row);
      float* keys = keys_of(now, row);
      // Lines of the cache are far away, in as many pages as there are heads: they come while queries are computed.
      if (now.num_parts > 1)
        for (int head = 0; head < kv_heads; ++head)
          for (int kind = 0; kind < by.cache.kinds; ++kind) by.fetch(row, kind, head);
      if (!now.whole) clip(now, row);
      if (whole) norm_whole(now, row, x, 0, now.first, heads * dim);
      for (int head = 0; head < heads; ++head) put_query(by, row, head, x + head * dim);
      if (now.num_parts == 1) return;
      // Values first: keys may be what they are made of.
      const float* values = now.num_parts == 2 ? keys : keys + kv_heads * dim;
      float* normed = float_rows_[thread].data();
      for (int head = 0; head < kv_heads; ++head) put_value(by, row, head, values + head * dim, normed);
      if (whole) norm_whole(now, row, keys, 1, now.second, kv_heads * dim);
      for (int head = 0; head < kv_heads; ++head) put_key(by, row, head, keys + head * dim);
    });
  }

  // Whether heads of queries, keys and values can be rotated where their product is computed: what they are written to
  // and read from again does not fit into a core's caches.
  static bool may_rotate_at_once(const Operation& project, const Operation& now, int rows) {
    if (now.op != Op::kRotate || now.num_parts != 3 || now.has_gate) return false;
    if (now.head_norm == HeadNorm::kWhole || now.limit != 0.0f || now.heads.dim % kPanel != 0) return false;
    return Tasks<Element>::may_stay_whole(Rows{nullptr, 0, rows}, *project.matrix, now.heads.dim / kPanel);
  }

  void project_heads(const Operation& project, const Operation& now, const Batch& batch, const KvMemory& kv, int rows,
                     const int64_t* tokens) {
    constexpr int kAheadRows = 4;
    const Rotation by{now, batch, cache_of(now, kv), tokens};
    const int dim = now.heads.dim, heads = now.heads.num, kv_heads = now.heads.num_kv;
    auto put = [&](int row, int column, const Floats* values) {
      // Panels of a head follow each other in one thread.
      alignas(64) static thread_local float numbers[kMostPanels * kPanel], normed[kMostPanels * kPanel];
      const int head = column / dim, start = column % dim, kv_head = (head - heads) % kv_heads;
      const bool is_key = head < heads + kv_heads;
      if (head >= heads + 2 * kv_heads) return;  // behind the last column
      std::memcpy(numbers + start, values, kPanel * sizeof(float));
      if (start == 0 && head >= heads && row + kAheadRows < rows) by.fetch(row + kAheadRows, is_key ? 0 : 1, kv_head);
      if (start + kPanel < dim) return;
      if (head < heads)
        put_query(by, row, head, numbers);
      else if (is_key)
        put_key(by, row, kv_head, numbers);
      else
        put_value(by, row, kv_head, numbers, normed);
    };
    multiply_rows_with(*project.matrix, operand_, rows, put, dim / kPanel);
  }

  void attend(const Operation& now, const Batch& batch, const KvMemory& kv) {
    const Cache<Element> cache = cache_of(now, kv);
    Plan& plan = *plan_of(now);
    const AttentionKernel<Dot> kernel{
        cache, batch, now.kv_group, now.kv_place, plan.seen, now.scale,
        now.limit, now.first, now.heads.num, query_.row(0), size_t(query_.stride),
        attended_.row(0), size_t(attended_.stride), plan.parts.data()};
    const int count = int(plan.tasks.size()), apart = pool_.width();
    pool_.run(count, [&](int task, int thread) {
      const AttentionTask* following = task + apart < count ? &plan.tasks[task + apart] : nullptr;
      kernel(plan.tasks[task], following, *plan.scratch[thread]);
    });
    pool_.run(int(plan.combined.size()), [&](int i, int thread) {
      kernel.combine(plan.combined[i], *plan.scratch[thread]);
    });
  }

  // Numbers by token, as far as one operation needs them.
  static int product_size(const Operation& now) {
    const Heads& heads = now.heads;
    if (now.recurrent) return now.recurrent->num_inputs();
    if (now.attention) {
      const Latent& own = *now.attention;
      return std::max({own.latent + own.rope, own.query_rank, heads.num * (own.plain + own.rope)});
    }
    return (now.has_gate ? 2 : 1) * heads.query_size() + 2 * heads.kv_size();
  }
  static int query_size(const Operation& now) { return now.heads.query_size(); }
  static int by_head_size(const Operation& now) {
    if (!now.attention) return 0;
    return now.heads.num * std::max(round_up(now.attention->plain, kLanes), now.attention->value);
  }
  static int attended_size(const Operation& now) {
    if (now.recurrent) return now.recurrent->inner_size();
    return std::max(now.heads.query_size(), by_head_size(now));
  }
  static int query_rank(const Operation& now) {
    return now.attention ? now.attention->query_rank : 0;
  }
  static int num_rates(const Operation& now) {
    if (now.op == Op::kAttend && now.matrix) return now.heads.num;
    return now.recurrent ? now.recurrent->num_rates() : 0;
  }
  static int num_inputs(const Operation& now) { return now.inputs ? now.inputs->num() : 0; }
  static int num_experts(const Operation& now) { return now.experts ? now.experts->count() : 0; }

  // Of all operations.
  static int most(const Weights& weights, int (*size)(const Operation&)) {
    int most = 0;
    for (int i = 0; i < weights.program_size; ++i) most = std::max(most, size(weights.program[i]));
    return most;
  }

  void put_latent_rows(const Operation& now, const Batch& batch, const KvMemory& kv) {
    const Cache<Element> cache = cache_of(now, kv);
    const Latent& own = *now.attention;
    const int64_t* slots = batch.slots[now.kv_group];
    multiply_to(product_, *now.matrix, batch.num_tokens);
    rows_of(batch.num_tokens, [&](int row, int) {
      float* x = product_.row(row);
      normalize(x, now.first, own.latent, own.norm_eps, x);
      rotate(x + own.latent, now.cos_sin + size_t(batch.positions[row]) * own.rope, own.rope);
      store_row(cache, int(slots[row] / cache.block_size), now.kv_place, 0, 0,
                int(slots[row] % cache.block_size), x);
    });
  }

  void put_latent_operand(const Operation& now, int rows) {
    const Latent& own = *now.attention;
    multiply_to(product_, *now.matrix, rows);
    rows_of(rows, [&](int row, int) {
      normalize(product_.row(row), now.first, own.query_rank, own.norm_eps, operand_.row(row));
    });
  }

  void put_latent_queries(const Operation& now, const Batch& batch) {
    const Latent& own = *now.attention;
    const int heads = now.heads.num, size = now.heads.dim, rows = batch.num_tokens;
    const int padded = round_up(own.plain, kLanes);
    multiply_to(product_, *now.matrix, rows);
    rows_of(rows, [&](int row, int) {
      const float* plain = product_.row(row);
      float* rotated = product_.row(row) + heads * own.plain;
      const float* cos_sin = now.cos_sin + size_t(batch.positions[row]) * own.rope;
      for (int head = 0; head < heads; ++head, plain += own.plain, rotated += own.rope) {
        Element* to = by_head_.row(row) + head * padded;
        std::fill(to + own.plain, to + padded, Element{});
        narrow_row(to, plain, own.plain);
        rotate(rotated, cos_sin, own.rope);
        narrow_row(query_.row(row) + head * size + own.latent, rotated, own.rope);
      }
    });
    multiply_heads(by_head_, heads, padded, own.up_keys, rows, [&](int row, int head, int column) {
      return std::pair(query_.row(row) + head * size + column, own.latent - column);
    });
  }

  void put_latent_values(const Operation& now, int rows) {
    const Latent& own = *now.attention;
    const int heads = now.heads.num;
    multiply_heads(attended_, heads, now.heads.dim, own.up_values, rows,
                   [&](int row, int head, int column) {
                     return std::pair(by_head_.row(row) + head * own.value + column,
                                      own.value - column);
                   });
    rows_of(rows, [&](int row, int) {
      std::copy_n(by_head_.row(row), heads * own.value, attended_.row(row));
    });
  }

  // Multiplies each head's part of the rows, `step` numbers apart, with a matrix of its own. place:
  // where the results of a row and head go from a column on, and how many of them exist.
  template <class Place>
  void multiply_heads(Activations<Element>& from, int heads, int step,
                      const Matrix* const* matrices, int rows, Place&& place) {
    products_.clear();
    for (int head = 0; head < heads; ++head) {
      Rows part = elements(from, rows);
      part.words += size_t(head) * step / Dot::kElements;
      products_.push_back({part, matrices[head], head * rows});
    }
    multiply_each<Dot>(pool_, products_, [&](int pair, int column, const Floats* values) {
      const auto [to, left] = place(pair % rows, pair / rows, column);
      float wide[kPanel];
      for (int v = 0; v < kPanelVectors; ++v) store(wide + v * kLanes, values[v]);
      narrow_row(to, wide, std::min(kPanel, left));
    });
  }

  // Of all tokens, or of the wanted ones.
  void gate_heads(const Operation& now, int rows) {
    const int dim = now.heads.dim;
    multiply_to(rates_, *now.matrix, rows);
    rows_of(rows, [&](int row, int thread) {
      float* wide = float_rows_[thread].data();
      widen_row(wide, attended_.row(row), now.heads.query_size());
      for (int head = 0; head < now.heads.num; ++head)
        scale_row(wide + head * dim, 1.0f / (1.0f + std::exp(-rates_.row(row)[head])), dim);
      narrow_row(attended_.row(row), wide, now.heads.query_size());
    });
  }

  // Of the first `count` rows, or of so many `at` some.
  void gate_numbers(const Operation& now, int count, const int64_t* at) {
    const int size = now.heads.query_size();
    rows_of(count, [&](int i, int) {
      const int row = at ? int(at[i]) : i;
      multiply_gates(attended_.row(row), product_.row(row) + size, size);
    });
  }

  void recur(const Operation& now, const Batch& batch) {
    const Recurrent& own = *now.recurrent;
    multiply_to(product_, *own.inputs, batch.num_tokens);
    if (own.rates) multiply_to(rates_, *own.rates, batch.num_tokens);
    const StateView states{batch.states[now.kv_group] + now.kv_place * own.state_size(),
                           batch.state_strides[now.kv_group],
                           batch.state_blocks + size_t(now.kv_group) * batch.num_seqs * 2};
    const RecurrentKernel<Element> kernel{pool_,  own,       batch,
                                          states, product_,  rates_,
                                          attended_, recurrent_scratch_, ranks_,
                                          totals_, shape_.norm_eps};
    kernel();
  }

  void put_product(Activations<Element>& input, const Operation& now, int rows) {
    const bool apart = now.apart;
    multiply_rows_with(*now.matrix, input, rows, [&](int row, int column, const Floats* values) {
      if (apart) {
        std::memcpy(added_.row(row) + column, values, kPanel * sizeof(float));
        return;
      }
      float* to = x_.row(row) + column;
      for (int v = 0; v < kPanelVectors; ++v)
        store(to + v * kLanes, load<Floats>(to + v * kLanes) + values[v]);
    });
  }

  // The function of a panel of a product; with `paired` it holds gates and ups.
  static void put_activated(Element* row, const Operation& now, int column, const Floats* values) {
    constexpr int kHalf = kPanelVectors / 2;
    const Activation kind = now.activation;
    if (now.paired) {
      for (int v = 0; v < kHalf; ++v)
        narrow(row + column / 2 + v * kLanes,
               gated(kind, values[v] * now.scale, values[v + kHalf]));
      return;
    }
    for (int v = 0; v < kPanelVectors; ++v)
      narrow(row + column + v * kLanes, activate(kind, values[v]));
  }

  void gate(const Operation& now, int rows) {
    multiply_rows_with(*now.matrix, operand_, rows, [&](int row, int column, const Floats* values) {
      put_activated(gated_.row(row), now, column, values);
    });
  }

  // A pair is a token and an expert of it. Pairs are sorted by expert, then by token.
  void route(const Experts& experts, int rows) {
    const int per_token = experts.per_token(), pairs = rows * per_token;
    scores_.resize(rows);
    chosen_.resize(pairs);
    pair_rows_.resize(pairs);
    pair_weights_.resize(pairs);
    pair_of_.resize(pairs);
    multiply_to(scores_, *experts.router, rows);
    rows_of(rows, [&](int row, int thread) {
      choose(experts, scores_.row(row), merits_[thread].data(), &chosen_[row * per_token]);
    });
    first_pair_.assign(experts.count() + 1, 0);
    for (const Chosen& one : chosen_)
      if (experts.up[one.expert] != nullptr) ++first_pair_[one.expert + 1];
    for (int i = 0; i < experts.count(); ++i) first_pair_[i + 1] += first_pair_[i];
    next_pair_ = first_pair_;
    for (int i = 0; i < pairs; ++i) {
      pair_of_[i] = kElsewhere;
      if (experts.up[chosen_[i].expert] == nullptr) continue;
      const int pair = next_pair_[chosen_[i].expert]++;
      pair_rows_[pair] = i / per_token;
      pair_weights_[pair] = chosen_[i].weight;
      pair_of_[i] = pair;
    }
  }

  // The products of all pairs with their experts' matrices. from(pair): the row that it multiplies.
  template <class From>
  void plan_products(const Experts& experts, const Matrix* const* matrices, int pairs, From&& from) {
    int bytes = 0;
    products_.clear();
    for (int expert = 0; expert < experts.count(); ++expert) {
      const int first = first_pair_[expert], count = first_pair_[expert + 1] - first;
      if (count == 0) continue;
      bytes = std::max(bytes, operands_.row_bytes(*matrices[expert]));
      products_.push_back({Rows{nullptr, 0, count}, matrices[expert], first});
    }
    operands_.reserve(pairs, bytes);
    const Range* ranges = ranges_of(experts, matrices, from);
    rows_of(pairs, [&](int pair, int) {
      const Matrix& matrix = *matrices[expert_of(experts, pair)];
      operands_.put(pair, from(pair), matrix, shares_scale(matrix) ? ranges + pair : nullptr);
    });
    for (Product& product : products_)
      product.rows = operands_.some(product.first, product.rows.count);
  }

  // By pair, the ranges of rows of which each rank has a part. Experts that share rows are neighbours, and all ranks
  // have as many pairs of them: their chosen experts, the shared one, or both.
  template <class From>
  const Range* ranges_of(const Experts& experts, const Matrix* const* matrices, From&& from) {
    int first = -1, end = 0;
    for (const Product& product : products_) {
      if (!shares_scale(*product.matrix)) continue;
      if (first < 0) first = product.first;
      end = product.first + product.rows.count;
    }
    if (first < 0) return nullptr;
    return share_ranges(first, end, [&](int pair) {
      return range_of(from(pair), matrices[expert_of(experts, pair)]->inner);
    });
  }

  // What adapters add to the products of the expert that all tokens share, which is the last one. Its rows
  // are those of all tokens, in their order; from: the first of them.
  template <class From>
  void adapt_shared(const Experts& experts, const Matrix* const* matrices, RowsFrom<From> from) {
    if (experts.num_shared == 0 || adapter_rows_.empty()) return;
    Product& own = products_.back();
    if (deltas_.plan(pool_, adapter_rows_, *matrices[experts.num_routed], from, own.rows)) own.added = &deltas_;
  }

  void add_experts(const Operation& now, int rows) {
    const Experts& experts = *now.experts;
    const int per_token = experts.per_token(), pairs = first_pair_[experts.count()];
    const int size = shape_.hidden_size;
    pair_gated_.resize(pairs);
    pair_out_.resize(pairs);
    plan_products(experts, experts.up, pairs,
                  [&](int pair) { return operand_.row(pair_rows_[pair]); });
    adapt_shared(experts, experts.up, RowsFrom<float>{operand_, 0});
    const int num_scaled = experts.scales_input ? first_pair_[experts.num_routed] : 0;
    multiply_each<Dot>(pool_, products_, [&](int pair, int column, const Floats* values) {
      Floats scaled[kPanelVectors];
      if (pair < num_scaled) {
        for (int v = 0; v < kPanelVectors; ++v) scaled[v] = values[v] * pair_weights_[pair];
        values = scaled;
      }
      put_activated(pair_gated_.row(pair), now, column, values);
    });
    plan_products(experts, experts.down, pairs, [&](int pair) { return pair_gated_.row(pair); });
    adapt_shared(experts, experts.down,
                 RowsFrom<Element>{pair_gated_, first_pair_[experts.num_routed]});
    multiply_each<Dot>(pool_, products_, [&](int pair, int column, const Floats* values) {
      std::memcpy(pair_out_.row(pair) + column, values, kPanel * sizeof(float));
    });
    rows_of(rows, [&](int row, int) {
      float* to = now.apart ? added_.row(row) : x_.row(row);
      if (now.apart) std::fill_n(to, size, 0.0f);
      for (int n = 0; n < per_token; ++n) {
        const int i = row * per_token + n;
        if (pair_of_[i] == kElsewhere) continue;
        const float weight = pair_of_[i] < num_scaled ? 1.0f : chosen_[i].weight;
        add_row(to, weight, pair_out_.row(pair_of_[i]), size);
      }
    });
  }

  int expert_of(const Experts& experts, int pair) const {
    const auto end = first_pair_.begin() + experts.count() + 1;
    return int(std::upper_bound(first_pair_.begin(), end, pair) - first_pair_.begin()) - 1;
  }

  static constexpr int kElsewhere = -1;

  Pool& pool_;
  Ranks ranks_;  // of the present call
  // Of a step in parts: the next operation, the rows that are left, and whether the next mixer narrows them.
  size_t next_ = 0;
  int rows_ = 0;
  bool narrow_ = false, is_narrowed_ = false;
  std::vector<bool> joined_;  // by operation: see `may_join_norm`
  const Operation* joined_norm_ = nullptr;  // of the next product
  const Shape shape_;
  const std::vector<Operation> program_;
  const Weights weights_;
  Activations<float> x_;
  Activations<float> product_;  // queries, keys and values; what a mixer with states reads
  Activations<float> added_;    // what is to be added to x
  Activations<Element> query_;
  Activations<Element> attended_;
  Activations<Element> gated_;
  Activations<float> operand_;
  Activations<Element> by_head_;  // of latent attention: what is multiplied, or has been, head by head
  // Of experts: scores by token, then by pair what is multiplied, gated and to be added.
  Activations<float> scores_;
  Activations<Element> pair_gated_;
  Activations<float> pair_out_;
  std::vector<Chosen> chosen_;    // by token
  std::vector<int> pair_of_;      // by place in chosen_; kElsewhere: other ranks have the expert
  std::vector<int> pair_rows_;    // by pair: the token's row
  std::vector<float> pair_weights_;
  std::vector<int> first_pair_;   // by expert
  std::vector<int> next_pair_;
  std::vector<Product> products_;
  std::vector<Buffer<float>> merits_;
  Activations<float> rates_;  // of mixers with states; gates of heads
  Activations<float> inputs_;  // [layers][size] of a token
  Activations<float> kept_;
  Buffer<float> own_logits_;
  Buffer<float> every_logit_;  // with those behind the vocabulary
  Buffer<float> totals_;       // sums of squares of all ranks, by row
  std::vector<Range> own_ranges_, every_range_, ranges_;
  Operands<Element> operands_;
  std::vector<AdapterRows> adapter_rows_;  // of the rows that are left
  Deltas<Element> deltas_;
  std::vector<RecurrentScratch> recurrent_scratch_;
  const Operation* last_attend_ = nullptr;
  std::vector<Plan> plans_;  // by different heads and windows
  std::vector<Buffer<float>> float_rows_;
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
