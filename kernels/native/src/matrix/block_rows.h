// Rows of a weight in a file's bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton {

// Neighbouring rows of a weight, of one tensor.
struct BlockRows {
  const uint8_t* begin;
  int count;
  const int32_t* order;  // the place of each behind `begin`; null: one behind the other
};

// Where the rows of all parts begin.
class RowStarts {
 public:
  RowStarts(const BlockRows* parts, size_t row_bytes) : parts_(parts), row_bytes_(row_bytes) {}

  const uint8_t* operator[](int row) const {
    const BlockRows* part = parts_;
    for (; row >= part->count; ++part) row -= part->count;
    return part->begin + size_t(part->order == nullptr ? row : part->order[row]) * row_bytes_;
  }

 private:
  const BlockRows* parts_;
  size_t row_bytes_;
};

}  // namespace baton
