// From the last hidden states to logits and tokens.
#pragma once

#include <algorithm>
#include <cstring>

#include "decoder/choice.h"
#include "decoder/decoder.h"
#include "decoder/row_products.h"
#include "decoder/workspace.h"

namespace baton {

// The head of a decoder: logits of all ranks, and the tokens that are chosen by them.
template <class Dot>
class OutputHead {
 public:
  OutputHead(Workspace<Dot>& work, RowProducts<Dot>& products) : work_(work), products_(products) {}

  void take_operands(const float* hidden, int rows) {
    const int size = work_.shape.hidden_size;
    work_.rows_of(rows, [&](int row, int) {
      std::memcpy(work_.operand.row(row), hidden + size_t(row) * size, size * sizeof(float));
    });
  }

  // The logits of rows of operands, of all ranks.
  void put_every_logit(int rows, float* out) {
    const int vocab = work_.shape.vocab_size;
    if (work_.ranks.alone()) {
      put_logits(rows, vocab, out, vocab);
      return;
    }
    const int room = work_.shape.token_room;
    own_logits_.reserve(size_t(rows) * room);
    put_logits(rows, room, own_logits_.data(), room);
    const int width = room * work_.ranks.size();
    if (width == vocab) {
      work_.ranks.gather(own_logits_.data(), rows, room, out);
      return;
    }
    every_logit_.reserve(size_t(rows) * width);
    work_.ranks.gather(own_logits_.data(), rows, room, every_logit_.data());
    work_.rows_of(rows, [&](int row, int) {
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
    const int vocab = work_.shape.vocab_size;
    choose_tokens(&work_.pool, step.logits, vocab, rows, vocab, step.choices, step.tokens);
  }

 private:
  // The rank's logits of rows of operands.
  void put_logits(int rows, int count, float* out, int stride) {
    products_.multiply(*work_.weights.head, work_.operand, rows, [&](int row, int column, Floats* values) {
      float* to = out + size_t(row) * stride + column;
      finish_logits(values);
      std::memcpy(to, values, std::min(kPanel, count - column) * sizeof(float));
    });
  }

  void finish_logits(Floats* values) const {
    if (work_.shape.logit_multiplier != 1.0f)
      for (int v = 0; v < kPanelVectors; ++v) values[v] *= work_.shape.logit_multiplier;
    if (work_.shape.logit_cap != 0.0f)
      for (int v = 0; v < kPanelVectors; ++v)
        values[v] = work_.shape.logit_cap * tanh(values[v] * (1.0f / work_.shape.logit_cap));
  }

  Workspace<Dot>& work_;
  RowProducts<Dot>& products_;
  Buffer<float> own_logits_;
  Buffer<float> every_logit_;  // with those behind the vocabulary
};

}  // namespace baton
