// Products of codes, as bytes, with rows of bytes that have scales by piece.
//
// The sum of a unit, a piece of 32 numbers or half of it, is one of integers, so it is exact; the sums of units
// are float32, in the order of the inner dimension. So a row's result does not depend on the rows beside it.
#pragma once

#include <algorithm>

#include "products/operands.h"
#include "vectors/byte_dots.h"

namespace baton {

// Words of a row's piece.
constexpr int kRowWords = kPiece / 4;
// Pieces of a panel that all rows go through before the next ones: they stay in the first-level cache.
constexpr int kSharedPieces = 8;
// How far few rows fetch ahead, in words, if a piece has `piece_size`: a core of Zen 3 reads less if it is farther.
constexpr int ahead_size([[maybe_unused]] int piece_size) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return 2 * piece_size;
#else
  return kSharedPieces / 2 * kRowWords * kPanel;
#endif
}

// Lines that are fetched meanwhile, `step` at a time: more at once than a core waits for would hold it up.
struct Ahead {
  const uint32_t* next;
  int lines;
  int step;

  void fetch() {
    const int now = std::min(step, lines);
    for (int line = 0; line < now; ++line) prefetch(next + line * kLineWords);
    next += now * kLineWords;
    lines -= now;
  }
};

// Where the words of a piece come from, each of four codes as a row has its numbers: words of bytes themselves.
struct ByteWords {
  static constexpr int kPieceWords = kRowWords;
  static constexpr bool kIsPlain = true;
  Words at(const uint32_t* piece, int word, int column) const {
    return load<Words>(piece + word * kPanel + column);
  }
};

// Halves of the bytes of packed words: first the lower ones of a word, then the upper ones.
struct NibbleWords {
  static constexpr int kPieceWords = kRowWords / 2;
  static constexpr bool kIsPlain = false;
  Words at(const uint32_t* piece, int word, int column) const {
    const Words words = load<Words>(piece + word / 2 * kPanel + column);
    return (word % 2 ? words >> 4 : words) & 0x0f0f0f0fu;
  }
};

// Numbers of a table in place of halves of bytes.
struct LookedWords {
  static constexpr int kPieceWords = NibbleWords::kPieceWords;
  static constexpr bool kIsPlain = false;
  Words table;
  Words at(const uint32_t* piece, int word, int column) const {
    return look_up(table, NibbleWords{}.at(piece, word, column));
  }
};

// Halves of bytes, and two more bits of each: see `join_sixes`.
struct SixWords {
  static constexpr int kPieceWords = 6;
  static constexpr bool kIsPlain = false;
  Words at(const uint32_t* piece, int word, int column) const {
    const uint32_t* from = piece + word / 4 * 3 * kPanel + column;
    const int shift = 2 * (word % 4);
    const Words lower = load<Words>(from + word % 4 / 2 * kPanel), upper = load<Words>(from + 2 * kPanel);
    return ((word % 2 ? lower >> 4 : lower) & 0x0f0f0f0fu) |
           ((shift < 4 ? upper << (4 - shift) : upper >> (shift - 4)) & 0x30303030u);
  }
};

// The numbers of some units of a panel, by group: each is [kPanel].
template <int kWords>
struct UnitScales {
  static constexpr int kMost = kSharedPieces * kRowWords / kWords;
  alignas(64) float scales[kMost * kPanel];
  alignas(64) float offsets[kMost * kPanel];
  alignas(64) int32_t zeros[kMost * kPanel];
  int per_group;  // units
  int left;       // of the first group

  void take(const Matrix& matrix, int panel, int unit, int count) {
    const GroupScales& from = matrix.groups;
    const int codes = from.group_words * 32 / bits_of(matrix.kind), of_unit = kWords * 4;
    per_group = from.num_groups > 1 ? codes / of_unit : matrix.words;
    const int first = unit / per_group, last = (unit + count - 1) / per_group;
    left = per_group - unit % per_group;
    const size_t at = (size_t(panel) * from.num_groups + first) * kPanel;
    const int size = (last + 1 - first) * kPanel;
    from.scales.read(at, size, scales);
    from.scales.fetch(at + size, size);
    if (from.less == Less::kOffsets) {
      from.offsets.read(at, size, offsets);
      from.offsets.fetch(at + size, size);
    }
    if (from.less != Less::kZeros) return;
    for (int i = 0; i < size; i += kLanes) store(zeros + i, zeros_at(from, matrix.kind, at + i));
  }

 private:
  static Ints zeros_at(const GroupScales& from, Kind kind, size_t at) {
    if (from.zeros.size() == 0) return Ints{} + from.zero;
    const Bytes bytes = load<Bytes>(from.zeros.data() + at);
    return kind == Kind::kEights ? widen_signed_bytes(bytes) : reinterpret_cast<Ints>(widen_bytes(bytes));
  }
};

// A tile of few rows has whole panels. More rows have half a panel at a time: a product takes a register until it
// is added, and then none is left for a third row of the tile.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kUnitRows = 6, kUnitVectors = 2;
#else
constexpr int kUnitRows = kTileRows, kUnitVectors = kPanelVectors;
#endif
// Rows whose sums are held in registers from unit to unit.
constexpr int kHeldRows = 3;

struct PieceRows {
  const uint32_t* words;
  size_t stride;
  const RowUnit* units;
  size_t units_stride;
};

inline PieceRows rows_from(const Rows& rows, int row, int piece, int units_of_piece) {
  return PieceRows{rows.words + size_t(row) * rows.stride + piece * kRowWords, rows.stride,
                   rows.units + size_t(row) * rows.units_stride + piece * units_of_piece, rows.units_stride};
}

// sums [kRows][kPanelVectors] += rows . kVectors of a unit of a panel, that begins with word `start` of its
// piece. The numbers of its group lie from `group` on.
template <class Source, class Dot, int kRows, int kVectors, int kWords, Less kLess>
BATON_INLINE inline void add_unit(const PieceRows& rows, const Source& source, const uint32_t* piece, int start,
                                  const UnitScales<kWords>& scales, int group, Floats* sums) {
  typename Dot::Sum acc[kRows][kVectors];
  unrolled<kRows>([&](auto r) BATON_INLINE {
    unrolled<kVectors>([&](auto v) BATON_INLINE { acc[r][v] = Dot::begin(rows.units[r * rows.units_stride].start); });
  });
  auto row = [&](int r, int word) BATON_INLINE { return splat(rows.words[r * rows.stride + word]); };
  auto codes = [&](int v, int word) BATON_INLINE { return source.at(piece, word, v * kLanes); };
  // What there is less of is held in registers.
  auto add = [&](typename Dot::Sum& sum, Words codes, Words numbers) BATON_INLINE {
    sum = Dot::add(sum, codes, numbers);
    if constexpr (kRows <= kTileRows) hold(sum);
  };
  auto add_word = [&](int word) BATON_INLINE {
    if constexpr (kRows <= kVectors) {
      Words held[kRows];
      unrolled<kRows>([&](auto r) BATON_INLINE { held[r] = row(r, word); });
      unrolled<kVectors>([&](auto v) BATON_INLINE {
        const Words now = codes(v, word);
        unrolled<kRows>([&](auto r) BATON_INLINE { add(acc[r][v], now, held[r]); });
      });
    } else {
      Words held[kVectors];
      unrolled<kVectors>([&](auto v) BATON_INLINE { held[v] = codes(v, word); });
      unrolled<kRows>([&](auto r) BATON_INLINE {
        const Words now = row(r, word);
        unrolled<kVectors>([&](auto v) BATON_INLINE { add(acc[r][v], held[v], now); });
      });
    }
  };
  if constexpr (kRows <= kTileRows) {
    unrolled<kWords>([&](auto word) BATON_INLINE { add_word(start + word); });
  } else {
#pragma GCC unroll 1
    for (int word = 0; word < kWords; ++word) add_word(start + word);
  }
  unrolled<kRows>([&](auto r) BATON_INLINE {
    const RowUnit& unit = rows.units[r * rows.units_stride];
    unrolled<kVectors>([&](auto v) BATON_INLINE {
      const int at = group + v * kLanes;
      Floats& sum = sums[r * kPanelVectors + v];
      Ints exact = Dot::total(acc[r][v]);
      if constexpr (kLess == Less::kZeros) exact -= load<Ints>(scales.zeros + at) * unit.total;
      sum += __builtin_convertvector(exact, Floats) * load<Floats>(scales.scales + at) * splat(unit.scale);
      if constexpr (kLess == Less::kOffsets) sum -= load<Floats>(scales.offsets + at) * splat(unit.shift);
    });
  });
}

// What a panel's units are made of.
template <int kWords>
struct Units {
  const UnitScales<kWords>& scales;
  Less less;
  int count;  // pieces
};

// The same for all pieces, of the columns from `column` on.
template <class Source, class Dot, int kRows, int kVectors, int kWords, Less kLess>
__attribute__((noinline, flatten)) void add_units(PieceRows rows, const Source source, const uint32_t* from,
                                                  const Units<kWords>& units, int column, Ahead& ahead,
                                                  Floats* sums) {
  constexpr int kPieceSize = Source::kPieceWords * kPanel;
  constexpr int kSums = kRows * kPanelVectors;
  constexpr bool kHoldsSums = kRows <= kHeldRows && kVectors == kPanelVectors;
  int group = column, left = units.scales.left;
  Floats held[kHoldsSums ? kSums : 1];
  if constexpr (kHoldsSums) unrolled<kSums>([&](auto i) BATON_INLINE { held[i] = sums[i]; });
  Floats* const to = kHoldsSums ? held : sums + column / kLanes;
  for (int piece = 0; piece < units.count; ++piece, from += kPieceSize) {
    ahead.fetch();
    for (int start = 0; start < kRowWords; start += kWords) {
      if (left == 0) {
        group += kPanel;
        left = units.scales.per_group;
      }
      --left;
      add_unit<Source, Dot, kRows, kVectors, kWords, kLess>(rows, source, from + column, start, units.scales,
                                                            group, to);
      ++rows.units;
    }
    rows.words += kRowWords;
  }
  if constexpr (kHoldsSums) unrolled<kSums>([&](auto i) BATON_INLINE { sums[i] = held[i]; });
}

template <class Source, class Dot, int kVectors, int kRows, int kWords>
inline void add_units_of(int num_rows, const PieceRows& rows, const Source& source, const uint32_t* from,
                         const Units<kWords>& units, int column, Ahead& ahead, Floats* sums) {
  if (num_rows == kRows) {
    auto add = [&]<Less kLess>() {
      add_units<Source, Dot, kRows, kVectors, kWords, kLess>(rows, source, from, units, column, ahead, sums);
    };
    switch (units.less) {
      case Less::kStart:
        return add.template operator()<Less::kStart>();
      case Less::kZeros:
        return add.template operator()<Less::kZeros>();
      case Less::kOffsets:
        return add.template operator()<Less::kOffsets>();
    }
  } else if constexpr (kRows > 1) {
    add_units_of<Source, Dot, kVectors, kRows - 1>(num_rows, rows, source, from, units, column, ahead, sums);
  }
}

template <class Source>
__attribute__((noinline)) inline void unpack_pieces(const Source source, const uint32_t* from, int count,
                                                    uint32_t* to) {
  for (int i = 0; i < count; ++i, from += Source::kPieceWords * kPanel)
    for (int word = 0; word < kRowWords; ++word, to += kPanel)
      for (int v = 0; v < kPanel; v += kLanes) store(to + v, source.at(from, word, v));
}

// sums: [count][kPanelVectors] of the rows from `first` on against the whole panel.
template <class Source, class Dot, int kWords>
void multiply_pieces(const Source source, const Rows& rows, int first, int count, const Matrix& matrix,
                     int panel, Floats* sums) {
  constexpr int kPieceSize = Source::kPieceWords * kPanel, kUnits = kRowWords / kWords;
  const int pieces = matrix.words / Source::kPieceWords;
  alignas(64) uint32_t unpacked[Source::kIsPlain ? 1 : kSharedPieces * kRowWords * kPanel];
  UnitScales<kWords> scales;
  std::fill(sums, sums + size_t(count) * kPanelVectors, Floats{});
  for (int piece = 0; piece < pieces; piece += kSharedPieces) {
    const int now = std::min(kSharedPieces, pieces - piece);
    const uint32_t* from = matrix.panel(panel) + size_t(piece) * kPieceSize;
    scales.take(matrix, panel, piece * kUnits, now * kUnits);
    const Units<kWords> units{scales, matrix.groups.less, now};
    constexpr int kPieceLines = kPieceSize / kLineWords;
    if (count <= kTileRows) {
      Ahead ahead{from + ahead_size(kPieceSize), now * kPieceLines, kPieceLines};
      add_units_of<Source, Dot, kPanelVectors, kTileRows>(count, rows_from(rows, first, piece, kUnits), source,
                                                          from, units, 0, ahead, sums);
      continue;
    }
    if (!Source::kIsPlain) unpack_pieces(source, from, now, unpacked);
    const int calls = (count + kUnitRows - 1) / kUnitRows * (kPanelVectors / kUnitVectors);
    Ahead ahead{from + kSharedPieces * kPieceSize, now * kPieceLines, (kPieceLines + calls - 1) / calls};
    const uint32_t* plain = Source::kIsPlain ? from : unpacked;
    for (int column = 0; column < kPanel; column += kUnitVectors * kLanes)
      for_row_groups<kUnitRows>(count, [&](int row, int n) {
        add_units_of<ByteWords, Dot, kUnitVectors, kUnitRows>(n, rows_from(rows, first + row, piece, kUnits),
                                                              ByteWords{}, plain, units, column, ahead,
                                                              sums + size_t(row) * kPanelVectors);
      });
  }
}

// The same, in units as the groups want it.
template <class Dot, class Source>
void multiply_units(const Source source, const Rows& rows, int first, int count, const Matrix& matrix, int panel,
                    Floats* sums) {
  if (matrix.groups.has_halves)
    multiply_pieces<Source, Dot, kRowWords / 2>(source, rows, first, count, matrix, panel, sums);
  else
    multiply_pieces<Source, Dot, kRowWords>(source, rows, first, count, matrix, panel, sums);
}

// The same for integers of 4, 6 or 8 bits.
inline void multiply_integers(const Rows& rows, int first, int count, const Matrix& matrix, int panel,
                              Floats* sums) {
  const LookedWords looked{load<Words>(matrix.groups.table)};
  const bool has_codes = has_code_dot(matrix);
  if (matrix.kind == Kind::kFours)
    multiply_units<CodeDot>(NibbleWords{}, rows, first, count, matrix, panel, sums);
  else if (matrix.kind == Kind::kSixes)
    multiply_units<CodeDot>(SixWords{}, rows, first, count, matrix, panel, sums);
  else if (matrix.kind == Kind::kLooked && has_codes)
    multiply_units<CodeDot>(looked, rows, first, count, matrix, panel, sums);
  else if (matrix.kind == Kind::kLooked)
    multiply_units<ByteDot>(looked, rows, first, count, matrix, panel, sums);
  else if (has_codes)
    multiply_units<CodeDot>(ByteWords{}, rows, first, count, matrix, panel, sums);
  else
    multiply_units<ByteDot>(ByteWords{}, rows, first, count, matrix, panel, sums);
}

}  // namespace baton
