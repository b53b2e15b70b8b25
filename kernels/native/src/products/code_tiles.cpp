#include "products/code_tiles.h"

#if defined(BATON_HAS_AMX)

#include <array>
#include <cmath>

namespace baton {
namespace {

// Pairs of the numbers of two vectors, rounded: those of `low` are the lower halves.
inline Words join_rounded(Floats low, Floats high) {
  static constexpr auto kPlaces = [] {
    std::array<uint16_t, 2 * kLanes> places{};
    for (int i = 0; i < 2 * kLanes; ++i) places[i] = uint16_t(i / 2 + i % 2 * kLanes);
    return places;
  }();
  const __m512bh halves = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  return (Words)_mm512_permutexvar_epi16(_mm512_loadu_si512(kPlaces.data()), (__m512i)halves);
}

// The numbers of words of codes, by pairs of neighbours: even ones in `low`, odd ones in `high`.
//
// Halves of bytes are places in a table of bfloat16 numbers.
class HalfByteNumbers {
 public:
  explicit HalfByteNumbers(const Matrix& matrix) {
    for (int i = 0; i < 2 * kLanes; ++i) {
      const int code = i % kLanes;
      const float number = matrix.kind == Kind::kLooked ? int8_t(matrix.groups.table[code]) : code;
      numbers_[i] = uint16_t(reinterpret_cast<Words>(splat(number))[0] >> 16);
    }
  }
  static constexpr float kFactor = 1.0f;

  void take(Words words, int pair, Floats& low, Floats& high) const {
    const __m512i places = _mm512_multishift_epi64_epi8(_mm512_load_si512(kShifts[pair].data()), (__m512i)words);
    const Words both = (Words)_mm512_permutexvar_epi16(places, _mm512_load_si512(numbers_));
    low = bits_as<Floats>(both << 16);
    high = bits_as<Floats>(both & 0xffff0000u);
  }

 private:
  // From which bit on a byte of a pair's place is taken, of two words: 16 bits are one place, of which 5 count.
  static constexpr auto kShifts = [] {
    struct alignas(64) Shifts : std::array<uint8_t, 64> {};
    std::array<Shifts, 4> shifts{};
    for (int pair = 0; pair < 4; ++pair)
      for (int i = 0; i < 64; ++i) shifts[pair][i] = uint8_t(i % 8 / 4 * 32 + 8 * pair + i % 4 / 2 * 4);
    return shifts;
  }();
  alignas(64) uint16_t numbers_[2 * kLanes];
};

// Integers of 8 bits.
struct ByteNumbers {
  explicit ByteNumbers(const Matrix&) {}
  static constexpr float kFactor = SignedBytes::kFactor;
  void take(Words words, int pair, Floats& low, Floats& high) const {
    low = SignedBytes::number(words, 2 * pair, Words{});
    high = SignedBytes::number(words, 2 * pair + 1, Words{});
  }
};

// E4M3, from a table of the 128 codes without a sign: bytes of bfloat16 numbers, times a scale.
class Float8Numbers {
 public:
  explicit Float8Numbers(const Matrix&) : Float8Numbers(1.0f) {}
  explicit Float8Numbers(float scale) {
    for (int first = 0; first < 128; first += 2 * kLanes) {
      Floats numbers[2];
      for (int i = 0; i < 2; ++i) numbers[i] = load<Floats>(plain().data() + first + i * kLanes) * scale;
      const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)numbers[1], (__m512)numbers[0]);
      _mm256_store_si256(reinterpret_cast<__m256i*>(low_ + first), _mm512_cvtepi16_epi8(halves));
      _mm256_store_si256(reinterpret_cast<__m256i*>(high_ + first), _mm512_cvtepi16_epi8(_mm512_srli_epi16(halves, 8)));
    }
  }
  static constexpr float kFactor = 1.0f;

  // Both pairs of words, as bfloat16 numbers.
  void take(Words words, Words (&pairs)[2]) const {
    // Of four columns those bytes first that are in their first pairs.
    const __m512i order = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m512i codes = _mm512_shuffle_epi8((__m512i)words, order);
    const __m512i lower = look_up(low_, codes), sign = _mm512_set1_epi8(char(0x80));
    const __m512i upper = _mm512_ternarylogic_epi32(look_up(high_, codes), codes, sign, 0xf8);  // a | (b & c)
    pairs[0] = (Words)_mm512_unpacklo_epi8(lower, upper);
    pairs[1] = (Words)_mm512_unpackhi_epi8(lower, upper);
  }
  void take(Words words, int pair, Floats& low, Floats& high) const {
    Words pairs[2];
    take(words, pairs);
    low = bits_as<Floats>(pairs[pair] << 16);
    high = bits_as<Floats>(pairs[pair] & 0xffff0000u);
  }

 private:
  static const std::array<float, 128>& plain() {
    static const auto numbers = [] {
      std::array<float, 128> made{};
      for (int code = 0; code < 128; ++code) {
        const int exponent = code >> 3, mantissa = code & 7;
        made[code] = exponent ? std::ldexp(float(8 + mantissa), exponent - 10) : std::ldexp(float(mantissa), -9);
      }
      return made;
    }();
    return numbers;
  }
  static __m512i look_up(const uint8_t* bytes, __m512i codes) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(bytes), codes, _mm512_load_si512(bytes + 64));
  }

  alignas(64) uint8_t low_[128];
  alignas(64) uint8_t high_[128];
};

template <class Code>
using NumbersOf =
    std::conditional_t<std::is_same_v<Code, Floats8>, Float8Numbers,
                       std::conditional_t<std::is_same_v<Code, SignedBytes>, ByteNumbers, HalfByteNumbers>>;

// Whether a column of a matrix has one scale, and no more: it multiplies the sums.
template <class Code>
bool scales_sums(const Matrix& matrix) {
  return std::is_same_v<Code, Floats8> && matrix.groups.num_groups == 1;
}

// Whether all columns of a panel have one scale.
inline bool are_equal(const Floats (&scales)[kPanelVectors]) {
  const __m512 first = _mm512_set1_ps(scales[0][0]);
  return (_mm512_cmpneq_ps_mask((__m512)scales[0], first) | _mm512_cmpneq_ps_mask((__m512)scales[1], first)) == 0;
}

// Writes `count` words of E4M3 as pairs of a table's numbers.
inline void write_tabled(const Float8Numbers& table, const uint32_t* from, int count, uint32_t* to) {
  for (int w = 0; w < count; ++w, from += kPanel, to += 2 * kPanel)
    for (int v = 0; v < kPanel; v += kLanes) {
      fetch_codes<Floats8>(from, v);
      Words pairs[2];
      table.take(load<Words>(from + v), pairs);
      store(to + v, pairs[0]);
      store(to + kPanel + v, pairs[1]);
    }
}

// Writes the weights of `count` words of a panel as a panel of bfloat16 has them; without scales, if these multiply
// the sums. numbers: those of the matrix.
template <class Code>
__attribute__((noinline)) void write_pairs(const NumbersOf<Code>& numbers, const Matrix& matrix, int panel, int word,
                                           int count, uint32_t* to) {
  constexpr int kPairs = Code::kPerWord / 2;
  const uint32_t* from = matrix.panel(panel) + size_t(word) * kPanel;
  if constexpr (std::is_same_v<Code, Floats8>) {
    if (scales_sums<Code>(matrix)) {
      write_tabled(numbers, from, count, to);
      return;
    }
  }
  for_groups(matrix.groups, word, count, [&](int group, int first, int end) {
    const uint32_t* own = from + size_t(first) * kPanel;
    uint32_t* pairs = to + size_t(first) * kPairs * kPanel;
    Floats scales[kPanelVectors], plus[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) {
      const ColumnScale<Code> scale(matrix.groups, panel, group, v * kLanes);
      scales[v] = scale.scale * (NumbersOf<Code>::kFactor / Code::kFactor);
      plus[v] = scale.plus;
    }
    if constexpr (std::is_same_v<Code, Floats8>) {
      if (are_equal(scales)) {  // as in blocks
        write_tabled(Float8Numbers(scales[0][0]), own, end - first, pairs);
        return;
      }
    }
    for (int w = first; w < end; ++w, own += kPanel)
      for (int v = 0; v < kPanelVectors; ++v) {
        fetch_codes<Code>(own, v * kLanes);
        const Words words = load<Words>(own + v * kLanes);
#pragma GCC unroll 4
        for (int pair = 0; pair < kPairs; ++pair) {
          Floats low, high;
          numbers.take(words, pair, low, high);
          store(pairs + ((w - first) * kPairs + pair) * kPanel + v * kLanes,
                join_rounded(low * scales[v] + plus[v], high * scales[v] + plus[v]));
        }
      }
  });
}

// Calls body with the type of a matrix's codes.
template <class Body>
void with_code(const Matrix& matrix, Body&& body) {
  switch (matrix.kind) {
    case Kind::kFours:
      return body.template operator()<Nibbles>();
    case Kind::kEights:
      return body.template operator()<SignedBytes>();
    case Kind::kLooked:
      return body.template operator()<LookedBytes>();
    case Kind::kFloat8s:
      return body.template operator()<Floats8>();
    default:
      return;
  }
}

template <class Code>
void scale_sums(const Matrix& matrix, int panel, int count, Floats* sums) {
  if (!scales_sums<Code>(matrix)) return;
  for (int v = 0; v < kPanelVectors; ++v) {
    const Floats scale = matrix.groups.scales.at(size_t(panel) * kPanel + v * kLanes);
    for (int r = 0; r < count; ++r) sums[r * kPanelVectors + v] *= scale;
  }
}

// Rows of two tiles, whose sums stay in tiles: numbers are multiplied while the next ones are written.
template <class Code, bool kHasLower>
void multiply_few(const uint32_t* rows, size_t stride, int count, const Matrix& matrix, int panel, Floats* sums) {
  constexpr int kPairs = Code::kPerWord / 2, kStep = amx::kWords / kPairs;
  alignas(64) uint32_t pairs[2][amx::kWords * kPanel];
  const NumbersOf<Code> numbers(matrix);
  const int upper = std::min(count, amx::kRows), lower = count - upper;
  const uint32_t* below = rows + upper * stride;
  Floats* lower_sums = sums + upper * kPanelVectors;
  amx::shape_tiles(upper, lower);
  amx::begin_sums<kHasLower>(true, sums, lower_sums);
  for (int word = 0, step = 0; word < matrix.words; word += kStep, ++step) {
    const int now = std::min(kStep, matrix.words - word);
    uint32_t* own = pairs[step % 2];
    write_pairs<Code>(numbers, matrix, panel, word, now, own);
    asm volatile("" ::: "memory");
    const size_t at = size_t(word) * kPairs;
    if (now == kStep)
      amx::add_step<BFloat16Dot, kHasLower>(rows + at, below + at, stride, own);
    else
      amx::add_end<BFloat16Dot, kHasLower>(rows + at, stride, upper, lower, own, now * kPairs);
  }
  amx::store_sums<kHasLower>(sums, lower_sums);
  _tile_release();
}

}  // namespace

void multiply_codes_by_amx(const uint32_t* rows, size_t stride, int count, const Matrix& matrix, int panel,
                           Floats* sums) {
  with_code(matrix, [&]<class Code>() {
    if (count <= amx::kRows) {
      multiply_few<Code, false>(rows, stride, count, matrix, panel, sums);
    } else if (count <= 2 * amx::kRows) {
      multiply_few<Code, true>(rows, stride, count, matrix, panel, sums);
    } else {
      alignas(64) uint32_t piece[amx::kPieceWords * kPanel];
      const NumbersOf<Code> numbers(matrix);
      constexpr int kPairs = Code::kPerWord / 2, kWords = amx::kPieceWords / kPairs;
      for (int word = 0; word < matrix.words; word += kWords) {
        const int now = std::min(kWords, matrix.words - word);
        write_pairs<Code>(numbers, matrix, panel, word, now, piece);
        multiply_by_amx<BFloat16Dot>(rows + size_t(word) * kPairs, stride, count, piece, 1, now * kPairs, sums, count,
                                     word == 0, false);
      }
    }
    scale_sums<Code>(matrix, panel, count, sums);
  });
}

void multiply_block_by_amx(const uint32_t* rows, size_t stride, int count, const Matrix& matrix, int panel,
                           int num_panels, bool is_first_block, Floats* sums) {
  static thread_local Buffer<uint32_t> panels;
  const int words = code_tile_words(matrix);
  with_code(matrix, [&]<class Code>() {
    if (is_first_block) {
      const NumbersOf<Code> numbers(matrix);
      panels.reserve(size_t(num_panels) * words * kPanel);
      for (int p = 0; p < num_panels; ++p)
        write_pairs<Code>(numbers, matrix, panel + p, 0, matrix.words, &panels[size_t(p) * words * kPanel]);
    }
    multiply_by_amx<BFloat16Dot>(rows, stride, count, panels.data(), num_panels, words, sums, count, true, false);
    for (int p = 0; p < num_panels; ++p)
      scale_sums<Code>(matrix, panel + p, count, sums + size_t(p) * count * kPanelVectors);
  });
}

}  // namespace baton
#endif
