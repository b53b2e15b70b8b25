#include "products/piece_tiles.h"

#if defined(BATON_HAS_AMX)

#include <utility>

#include "products/pieces.h"

namespace baton {
namespace {

// Units that all rows go through before the next ones.
constexpr int kUnitsAtOnce = 8;
// Rows whose sums are in registers.
constexpr int kSumRows = 8;

// Numbers and codes of some units of a panel.
template <int kWords>
struct PanelUnits {
  static constexpr int kPieces = kUnitsAtOnce * kWords / kRowWords;
  UnitScales<kWords> scales;
  int count;
  int groups[kUnitsAtOnce];  // where the numbers of a unit lie
  const uint32_t* codes;     // with a sign: [unit][kWords][kPanel]
  alignas(64) uint32_t unpacked[kUnitsAtOnce * kWords * kPanel];

  void take(const Matrix& matrix, int panel, int unit, int units) {
    count = units;
    scales.take(matrix, panel, unit, units);
    for (int u = 0, group = 0, left = scales.left; u < count; ++u, --left) {
      if (left == 0) {
        ++group;
        left = scales.per_group;
      }
      groups[u] = group * kPanel;
    }
    const size_t word = size_t(unit) * kWords / kRowWords * words_of_piece(matrix.kind);
    const uint32_t* from = matrix.panel(panel) + word * kPanel;
    if (matrix.kind == Kind::kFours)
      unpack(NibbleWords{}, from, matrix.groups);
    else if (matrix.kind == Kind::kSixes)
      unpack(SixWords{}, from, matrix.groups);
    else if (matrix.kind == Kind::kLooked)
      unpack(LookedWords{load<Words>(matrix.groups.table)}, from, matrix.groups);
    else if (matrix.groups.less == Less::kZeros || matrix.groups.zero != 0)
      unpack(ByteWords{}, from, matrix.groups);
    else
      codes = from;
  }

 private:
  static int words_of_piece(Kind kind) {
    if (kind == Kind::kSixes) return SixWords::kPieceWords;
    return is_packed(kind) ? NibbleWords::kPieceWords : ByteWords::kPieceWords;
  }

  // Codes less their zeros.
  template <class Source>
  __attribute__((noinline)) void unpack(const Source source, const uint32_t* from, const GroupScales& groups_of) {
    constexpr int kUnitsOfPiece = kRowWords / kWords;
    uint32_t* to = unpacked;
    for (int u = 0; u < count; ++u, to += kWords * kPanel) {
      const uint32_t* piece = from + u / kUnitsOfPiece * Source::kPieceWords * kPanel;
      const int start = u % kUnitsOfPiece * kWords;
      for (int v = 0; v < kPanel; v += kLanes) {
        const Ints zero =
            groups_of.less == Less::kZeros ? load<Ints>(scales.zeros + groups[u] + v) : Ints{} + groups_of.zero;
        const Bytes64 zeros = reinterpret_cast<Bytes64>((reinterpret_cast<Words>(zero) & 0xffu) * 0x01010101u);
        for (int word = 0; word < kWords; ++word) {
          const Bytes64 own = reinterpret_cast<Bytes64>(source.at(piece, start + word, v)) - zeros;
          store(to + word * kPanel + v, reinterpret_cast<Words>(own));
        }
      }
    }
    codes = unpacked;
  }

  typedef uint8_t Bytes64 __attribute__((vector_size(4 * kLanes)));
};

template <int kWords>
void shape_tiles(int rows) {
  amx::Shapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.rows[tile] = uint8_t(tile < 6 ? rows : kWords);
    shapes.row_bytes[tile] = tile == 4 || tile == 5 ? 4 * kWords : 64;
  }
  amx::load_shapes(shapes);
}

// exact: [units][amx::kRows][kPanel], of as many rows as tiles are shaped for. A tile is stored while the next unit
// is multiplied: a product takes long to be ready.
template <int kWords>
void multiply_units_by_amx(const uint32_t* rows, size_t stride, const uint32_t* codes, int units, int32_t* exact) {
  constexpr int kCodes = kWords * kPanel, kSums = amx::kRows * kPanel;
  for (int u = 0;; u += 2, rows += 2 * kWords, codes += 2 * kCodes, exact += 2 * kSums) {
    if (u < units) {
      _tile_loadd(4, rows, 4 * stride);
      _tile_loadd(6, codes, 4 * kPanel);
      _tile_loadd(7, codes + kHalfPanel, 4 * kPanel);
      _tile_zero(0);
      _tile_dpbssd(0, 4, 6);
      _tile_zero(1);
      _tile_dpbssd(1, 4, 7);
    }
    if (u > 0) {
      _tile_stored(2, exact - kSums, 4 * kPanel);
      _tile_stored(3, exact - kSums + kHalfPanel, 4 * kPanel);
    }
    if (u >= units) return;
    if (u + 1 < units) {
      _tile_loadd(5, rows + kWords, 4 * stride);
      _tile_loadd(6, codes + kCodes, 4 * kPanel);
      _tile_loadd(7, codes + kCodes + kHalfPanel, 4 * kPanel);
      _tile_zero(2);
      _tile_dpbssd(2, 5, 6);
      _tile_zero(3);
      _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, exact, 4 * kPanel);
    _tile_stored(1, exact + kHalfPanel, 4 * kPanel);
    if (u + 1 == units) return;
  }
}

// sums [kRows][kPanelVectors] += exact sums by unit, scaled. kPlaces: 0 and so on, of all sums. They are constants:
// with places that a loop counts, compilers copy sums to the stack and back.
template <Less kLess, int kWords, int... kPlaces>
__attribute__((noinline)) void add_exact(const int32_t* exact, const RowUnit* row_units, size_t stride,
                                         const PanelUnits<kWords>& units, Floats* sums,
                                         std::integer_sequence<int, kPlaces...>) {
  Floats acc[] = {sums[kPlaces]...};
  for (int u = 0; u < units.count; ++u, exact += amx::kRows * kPanel) {
    const int at = units.groups[u];
    auto add = [&]<int kPlace>() {
      constexpr int kColumn = kPlace % kPanelVectors * kLanes;
      const RowUnit& unit = row_units[kPlace / kPanelVectors * stride + u];
      const Ints own = load<Ints>(exact + kPlace * kLanes);
      const Floats scale = load<Floats>(units.scales.scales + at + kColumn);
      acc[kPlace] += __builtin_convertvector(own, Floats) * scale * splat(unit.scale);
      if constexpr (kLess == Less::kOffsets)
        acc[kPlace] -= load<Floats>(units.scales.offsets + at + kColumn) * splat(unit.shift);
    };
    (add.template operator()<kPlaces>(), ...);
  }
  ((sums[kPlaces] = acc[kPlaces]), ...);
}

// The same for any number of rows.
template <Less kLess, int kRows = kSumRows, int kWords>
void add_all(int count, const int32_t* exact, const RowUnit* row_units, size_t stride,
             const PanelUnits<kWords>& units, Floats* sums) {
  int row = 0;
  for (; row + kRows <= count; row += kRows)
    add_exact<kLess>(exact + row * kPanel, row_units + row * stride, stride, units, sums + row * kPanelVectors,
                     std::make_integer_sequence<int, kRows * kPanelVectors>());
  if constexpr (kRows > 1)
    add_all<kLess, kRows / 2>(count - row, exact + row * kPanel, row_units + row * stride, stride, units,
                              sums + row * kPanelVectors);
}

template <int kWords>
void multiply_tiles(const Rows& rows, int first, int count, const Matrix& matrix, int panel, Floats* sums) {
  constexpr int kUnitsOfPiece = kRowWords / kWords;
  alignas(64) int32_t exact[kUnitsAtOnce * amx::kRows * kPanel];
  PanelUnits<kWords> units;
  const int all = round_up(matrix.inner, kPiece) / kPiece * kUnitsOfPiece, tall = std::min(count, amx::kRows);
  std::fill(sums, sums + size_t(count) * kPanelVectors, Floats{});
  shape_tiles<kWords>(tall);
  for (int unit = 0; unit < all; unit += kUnitsAtOnce) {
    units.take(matrix, panel, unit, std::min(kUnitsAtOnce, all - unit));
    asm volatile("" ::: "memory");
    for (int row = 0; row < count; row += amx::kRows) {
      const int start = std::min(row, count - tall);  // the last tile has rows of the one before, too
      multiply_units_by_amx<kWords>(rows.words + size_t(first + start) * rows.stride + unit * kWords, rows.stride,
                                    units.codes, units.count, exact);
      const RowUnit* row_units = rows.units + size_t(first + row) * rows.units_stride + unit;
      const int32_t* own = exact + (row - start) * kPanel;
      Floats* to = sums + size_t(row) * kPanelVectors;
      const int some = std::min(amx::kRows, count - row);
      if (matrix.groups.less == Less::kOffsets)
        add_all<Less::kOffsets>(some, own, row_units, rows.units_stride, units, to);
      else
        add_all<Less::kStart>(some, own, row_units, rows.units_stride, units, to);
    }
  }
  _tile_release();
}

}  // namespace

void multiply_pieces_by_amx(const Rows& rows, int first, int count, const Matrix& matrix, int panel, Floats* sums) {
  if (matrix.groups.has_halves)
    multiply_tiles<kRowWords / 2>(rows, first, count, matrix, panel, sums);
  else
    multiply_tiles<kRowWords>(rows, first, count, matrix, panel, sums);
}

}  // namespace baton
#endif
