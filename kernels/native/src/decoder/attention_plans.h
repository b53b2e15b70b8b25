// How the attention of a step is cut into tasks, and its computation.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "decoder/workspace.h"

namespace baton {

// Plans of attention, and how they are computed.
template <class Dot>
class AttentionPlans {
  using Element = typename Dot::Element;

 public:
  explicit AttentionPlans(Workspace<Dot>& work) : work_(work) {}

  // Before the first step: there will be such an operation.
  void add(const Operation& now) {
    if (plan_of(now) != plans_.end()) return;
    Plan& plan = plans_.emplace_back();
    plan.heads = now.heads;
    plan.seen = seen_by(now);
    for (int thread = 0; thread < work_.pool.num_threads(); ++thread)
      plan.scratch.push_back(std::make_unique<AttentionScratch<Dot>>(now.heads.dim));
  }

  void plan_batch(const Batch& batch) {
    for (Plan& plan : plans_) plan_all(batch, plan);
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

  void attend(const Operation& now, const Batch& batch, const KvMemory& kv) {
    const Cache<Element> cache = cache_of<Element>(now, kv);
    Plan& plan = *plan_of(now);
    const AttentionKernel<Dot> kernel{
        cache, batch, now.kv_group, now.kv_place, plan.seen, now.scale,
        now.limit, now.first, now.heads.num, work_.query.row(0), size_t(work_.query.stride),
        work_.attended.row(0), size_t(work_.attended.stride), plan.parts.data()};
    const int count = int(plan.tasks.size()), apart = work_.pool.width();
    work_.pool.run(count, [&](int task, int thread) {
      const AttentionTask* following = task + apart < count ? &plan.tasks[task + apart] : nullptr;
      kernel(plan.tasks[task], following, *plan.scratch[thread]);
    });
    work_.pool.run(int(plan.combined.size()), [&](int i, int thread) {
      kernel.combine(plan.combined[i], *plan.scratch[thread]);
    });
  }

 private:
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

  auto plan_of(const Operation& now) {
    return std::find_if(plans_.begin(), plans_.end(), [&](const Plan& plan) {
      return plan.heads == now.heads && plan.seen == seen_by(now);
    });
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
  int wanted_tasks() const { return 8 * work_.pool.width(); }

  // Key/value heads of a task with few rows: of one token of each sequence, fewer if tasks of single spans would be too
  // few for all threads.
  int joined_heads(const Batch& batch, const Plan& plan) const {
    int heads = std::min(most_heads<Dot>(plan.group(), plan.heads.dim), plan.heads.num_kv);
    if (work_.pool.width() == 1) return heads;
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
    if (work_.pool.width() == 1 || int(plan.tasks.size()) >= wanted) return;
    int num_spans = 0;
    for (AttentionTask& task : plan.tasks) {
      const int end = context(batch, task);
      task.first_span = std::max(0, plan.seen.first(end - task.num_tokens)) / kSpan;
      task.num_spans = (end + kSpan - 1) / kSpan - task.first_span;
      num_spans += task.num_spans;
    }
    const int at_once = std::clamp(num_spans / (2 * work_.pool.width()), 1, kMostSpans);
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

  Workspace<Dot>& work_;
  std::vector<Plan> plans_;  // by different heads and windows
};

}  // namespace baton
