#include "matrix/blocks.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "matrix/block_types.h"
#include "matrix/lines.h"

namespace baton {
namespace {

// Rows whose codes are made before they are put into panels: they stay in a core's cache.
constexpr int kRowsAtOnce = 8;
constexpr int kRowsPerTask = 64;

bool is_finite(uint16_t half) { return (half & 0x7c00u) != 0x7c00u; }

float widen_half(uint16_t half) {
  const uint32_t magnitude = uint32_t(half & 0x7fffu) << 13;
  float value;
  std::memcpy(&value, &magnitude, sizeof(value));
  value *= 0x1p112f;
  return half & 0x8000u ? -value : value;
}

void reserve(GroupFloats& to, size_t groups, int span, bool has_factors) {
#if defined(__F16C__)
  if (!has_factors) return to.halves.reserve(groups);
#else
  if (!has_factors) return to.floats.reserve(groups);
#endif
  while (1 << to.span_bits < span) ++to.span_bits;
  to.factors.reserve(groups);
  to.shared.reserve(groups / span);
}

// Numbers of one column, written block by block.
template <int kSpan, bool kFactors>
class ColumnNumbers {
 public:
  // start: of its first group.
  ColumnNumbers(GroupFloats& to, size_t start)
      : halves_(at(to.halves, start)),
        floats_(at(to.floats, start)),
        factors_(at(to.factors, start)),
        shared_(at(to.shared, kFactors ? to.shared_at(start) : 0)) {}

  // Of numbers that have no factors.
  void add(float number) {
    if (halves_ != nullptr) {
      *halves_ = half_of(number);
      halves_ += kPanel;
    } else {
      *floats_ = number;
      floats_ += kPanel;
    }
  }

  void add(uint16_t number, const int8_t* factors) {
    if constexpr (kFactors) {
      *shared_ = widen_half(number);
      for (int i = 0; i < kSpan; ++i) factors_[i * kPanel] = factors[i];
      shared_ += kPanel;
      factors_ += kSpan * kPanel;
    } else if (halves_ != nullptr) {
      *halves_ = number;
      halves_ += kPanel;
    } else {
      *floats_ = widen_half(number);
      floats_ += kPanel;
    }
  }

 private:
  template <class Numbers>
  static auto at(Numbers& numbers, size_t index) {
    return numbers.size() > 0 ? numbers.data() + index : nullptr;
  }

  uint16_t* halves_;
  float* floats_;
  int8_t* factors_;
  float* shared_;
};

template <class Type>
class BlockPacking {
 public:
  BlockPacking(const Blocks& blocks, bool paired)
      : blocks_(blocks),
        paired_(paired),
        num_blocks_(blocks.inner / Type::kValues),
        rows_(blocks.parts, size_t(num_blocks_) * Type::kBytes) {
    constexpr bool kLooks = Type::kTable != nullptr;
    Codes range{};
    range.kind = kLooks ? Kind::kLooked : Type::kBits == 4 ? Kind::kFours : Kind::kEights;
    range.inner = blocks.inner;
    range.least = Type::kLow;
    range.most = Type::kHigh;
    range.group = Type::kGroup;
    range.rounds_rows = blocks.rounds_rows;
    range.table = Type::kTable;
    const Kind kind = kind_of(range);
    const int words = words_of(range), packed = packed_columns(blocks.columns, paired);
    const size_t padded = size_t(panels_of(packed)) * kPanel;
    matrix_.reset(new Matrix{kind, packed, blocks.inner, words, HugeBuffer<uint32_t>(padded * words),
                             Buffer<float>(padded), {}, {}, {}});
    GroupScales& groups = matrix_->groups;
    groups.group_words = Type::kGroup * bits_of(kind) / 32;
    groups.num_groups = blocks.inner / Type::kGroup;
    groups.rounds_rows = blocks.rounds_rows != 0;
    choose_sums(groups, range);
    if (kLooks) put_table(*matrix_, range);
    groups.less = Type::kOffsets ? Less::kOffsets : Less::kStart;
    if (!Type::kFloats) reserve(groups.scales, padded * groups.num_groups, kSpan, Type::kFactors);
    if (Type::kOffsets) reserve(groups.offsets, padded * groups.num_groups, kSpan, Type::kFactors);
  }

  Matrix* run(Pool& pool, const float* bias) {
    if constexpr (Type::kFloats) reserve_floats(pool);
    pool.run((blocks_.columns + kRowsPerTask - 1) / kRowsPerTask, [&](int task, int) {
      std::vector<uint8_t> codes(kRowsAtOnce * row_bytes());
      const int end = std::min(blocks_.columns, (task + 1) * kRowsPerTask);
      for (int row = task * kRowsPerTask; row < end; row += kRowsAtOnce)
        pack_rows(row, std::min(end - row, kRowsAtOnce), codes.data());
      for (int row = task * kRowsPerTask; row < end && bias != nullptr; ++row)
        matrix_->bias[packed_column(row, blocks_.columns, paired_)] = bias[row];
    });
    return is_finite_ ? matrix_.release() : nullptr;
  }

 private:
  static constexpr int kSpan = Type::kValues / Type::kGroup;

  size_t row_bytes() const { return size_t(blocks_.inner) * bits_of(matrix_->kind) / 8; }

  void pack_rows(int first, int count, uint8_t* codes) {
    for (int i = 0; i < count; ++i) {
      if (matrix_->kind == Kind::kSixes)
        put_sixes(rows_[first + i], codes + i * row_bytes());
      else
        put_codes(rows_[first + i], codes + i * row_bytes());
      put_scales(rows_[first + i], packed_column(first + i, blocks_.columns, paired_));
    }
    put_columns(reinterpret_cast<const char*>(codes), row_bytes(), count, [&](int offset) {
      const int to = packed_column(first + offset, blocks_.columns, paired_);
      return matrix_->panels.data() + size_t(to / kPanel) * matrix_->words * kPanel + to % kPanel;
    });
  }

  // Numbers of float16 are kept as such.
  void reserve_floats(Pool& pool) {
    std::atomic<bool> are_halves{true};
    pool.run((blocks_.columns + kRowsPerTask - 1) / kRowsPerTask, [&](int task, int) {
      const int end = std::min(blocks_.columns, (task + 1) * kRowsPerTask);
      for (int row = task * kRowsPerTask; row < end && are_halves; ++row)
        for (int b = 0; b < num_blocks_; ++b)
          if (!is_half(Type::scale(rows_[row] + size_t(b) * Type::kBytes))) are_halves = false;
    });
    GroupFloats& to = matrix_->groups.scales;
    const size_t groups = size_t(matrix_->num_panels()) * kPanel * matrix_->groups.num_groups;
    if (are_halves)
      to.halves.reserve(groups);
    else
      to.floats.reserve(groups);
  }

  void put_codes(const uint8_t* block, uint8_t* to) {
    constexpr int kCodesBytes = Type::kValues * Type::kBits / 8;
    for (int b = 0; b < num_blocks_; ++b, block += Type::kBytes, to += kCodesBytes) Type::codes(block, to);
  }

  // Codes that begin at 0.
  void put_sixes(const uint8_t* block, uint8_t* to) {
    constexpr int kPieces = Type::kValues / kSixesNumbers;
    uint8_t own[Type::kValues];
    uint32_t words[kPieces * kSixesWords];
    for (int b = 0; b < num_blocks_; ++b, block += Type::kBytes, to += sizeof(words)) {
      Type::codes(block, own);
      for (uint8_t& code : own) code = uint8_t(code - Type::kLow);
      join_sixes(own, kPieces, words);
      std::memcpy(to, words, sizeof(words));
    }
  }

  void put_scales(const uint8_t* block, int column) {
    GroupScales& groups = matrix_->groups;
    const size_t start = size_t(column / kPanel) * groups.num_groups * kPanel + column % kPanel;
    ColumnNumbers<kSpan, Type::kFactors> scales(groups.scales, start), offsets(groups.offsets, start);
    bool finite = true;
    if constexpr (Type::kFloats) {
      for (int b = 0; b < num_blocks_; ++b, block += Type::kBytes) {
        const float own = Type::scale(block);
        scales.add(own);
        finite &= own == own;
      }
      if (!finite) is_finite_ = false;
      return;
    }
    for (int b = 0; b < num_blocks_; ++b, block += Type::kBytes) {
      BlockScales own;
      Type::scales(block, &own);
      scales.add(own.scale, own.factors);
      finite &= is_finite(own.scale);
      if (!Type::kOffsets) continue;
      offsets.add(own.offset, own.offset_factors);
      finite &= is_finite(own.offset);
    }
    if (!finite) is_finite_ = false;
  }

  const Blocks& blocks_;
  bool paired_;
  int num_blocks_;
  RowStarts rows_;
  std::unique_ptr<Matrix> matrix_;
  std::atomic<bool> is_finite_{true};
};

template <class Type>
Matrix* pack(Pool& pool, const Blocks& blocks, const float* bias, bool paired) {
  return BlockPacking<Type>(blocks, paired).run(pool, bias);
}

}  // namespace

Matrix* pack_blocks(Pool& pool, const Blocks& blocks, const float* bias, bool paired) {
  // By BlockType.
  static constexpr decltype(&pack<Q8>) kPack[] = {
      pack<Q4<false>>, pack<Q4<true>>, pack<Q5<false>>, pack<Q5<true>>, pack<Q8>,    pack<Q2K>,
      pack<Q3K>,       pack<Q4K>,      pack<Q5K>,       pack<Q6K>,      pack<Iq4Nl>, pack<Iq4Xs>,
      pack<Mxfp4>};
  return kPack[int(blocks.type)](pool, blocks, bias, paired);
}

}  // namespace baton
