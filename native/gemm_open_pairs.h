// Codes of grouped weights to pairs of bf16.  Included by gemm_grouped.cpp, compiled for the target `amx`.
//
// A value (code - zero) * scale - min is rounded to float16, which has three bits more than bf16, and truncated.  Scale and
// minimum are increased before by kCentering, so that truncation errors are centred: at most 1.3 times half an ulp of bf16.
// They are also multiplied by 2^16: then the exponent of float16 becomes that of bf16 with two bits put before it, and 0
// becomes 2^-31.  What this cannot represent, such as a group whose scale is 0, is opened in float32 by the same rule.
#pragma once

#include "gemm_pairs.h"

namespace flyweight::FW_ISA {

constexpr float kCentering = 1.0028125f, kExponentShift = 65536;
constexpr int64_t kNearAhead = 1152;  // bytes
constexpr float kLeastScale = 1.0f / 65536, kMostValue = 0.99f;  // of the quick way

struct H16x32 {
  __m512h v;
};

constexpr uint16_t half_of_integer(int x) {  // up to 2048
  const int size = x < 0 ? -x : x;
  int e = 0;
  while (size >> (e + 1)) ++e;
  if (!size) return 0;
  const int bits = (e + 15) << 10 | ((size << 10 >> e) & 1023);
  return static_cast<uint16_t>(bits | (x < 0 ? 0x8000 : 0));
}

// float16 of the values of codes of four bits, twice: a choice takes five bits.
struct alignas(64) HalfTable {
  uint16_t of[32];
};
template <class F>
constexpr HalfTable half_table(F value_of) {
  HalfTable out{};
  for (int i = 0; i < 32; ++i) out.of[i] = half_of_integer(value_of(i % 16));
  return out;
}

// A number for each of 16 rows, twice side by side.
FW_INLINE H16x32 pair_halves(F32x16 x) {
  const __m512i word = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  return {_mm512_castsi512_ph(_mm512_or_si512(word, _mm512_slli_epi32(word, 16)))};
}

// float16 of numbers that were multiplied by 2^16 to bf16, towards zero.
FW_INLINE B8x64 truncate(H16x32 x) {
  const __m512i sign_and_rest = _mm512_srai_epi16(_mm512_castph_si512(x.v), 3);
  const __m512i keep = _mm512_set1_epi16(static_cast<int16_t>(0x8FFF)), bits = _mm512_set1_epi16(0x3000);
  return {_mm512_ternarylogic_epi32(sign_and_rest, keep, bits, 0xEA)};  // (a & b) | c
}

// The upper halves of a and b, interleaved.
FW_INLINE B8x64 truncate_pair(F32x16 a, F32x16 b) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a.v), 16);
  return {_mm512_mask_blend_epi16(0xAAAAAAAA, low, _mm512_castps_si512(b.v))};
}

// W is a type of gemm_grouped.cpp.
template <class W>
class PairOpener {
 public:
  FW_INLINE explicit PairOpener(Kind kind) : weight_(kind), factor_(kCentering * opened_unit(kind)) {}

  FW_INLINE int64_t group_bytes() const { return weight_.group_bytes(); }

  FW_INLINE void open(const uint8_t* tile, int64_t g, uint8_t* to) const {
    constexpr int subs = kGroup / W::kSub, quads = W::kSub / 4;
    each<subs>([&](auto s) FW_LAMBDA {
      const F32x16 by = mul(weight_.scale(tile, g, s), set1(factor_));
      const F32x16 low = W::kMins ? mul(weight_.min(tile, g, s), set1(factor_)) : zero();
      uint8_t* sub = to + s * (kOpenedBytes / subs);
      each<quads / 2>([&](auto i) FW_LAMBDA { open_two(tile, g, s * quads + 2 * i, by, low, sub + 256 * i); });
      const uint32_t usual = usual_rows(by, low);
      if (usual != 0xFFFF) [[unlikely]]
        for (int i = 0; i < quads; ++i) open_exactly(tile, g, s * quads + i, by, low, usual, sub + 128 * i);
    });
  }

 private:
  static FW_INLINE uint32_t usual_rows(F32x16 by, F32x16 low) {
    const F32x16 size = abs(by), most = fma(size, set1(W::kMostCode), abs(low));
    return mask_gt(size, set1(kLeastScale)) & mask_gt(set1(kMostValue), most);
  }

  // Quads q and q + 1.  Where nothing is subtracted but an offset, that is a power of 2, and its product with the scale exact.
  FW_INLINE void open_two(const uint8_t* tile, int64_t g, int q, F32x16 by, F32x16 low, uint8_t* to) const {
    const H16x32 scale = pair_halves(mul(by, set1(kExponentShift)));
    const H16x32 off = pair_halves(mul(W::kMins ? low : mul(by, set1(W::kOffset)), set1(kExponentShift)));
    if constexpr (W::kBits == 4) {
      const __m512i words = bload(weight_.words(tile, g) + q / 2 * 64).v, table = _mm512_load_si512(W::kHalves.of);
      each<4>([&](auto i) FW_LAMBDA {
        constexpr int shifts[] = {0, 8, 4, 12};
        constexpr int by_bits = shifts[i];
        const __m512i chosen = by_bits ? _mm512_srli_epi16(words, by_bits) : words;
        const __m512h value = _mm512_castsi512_ph(_mm512_permutexvar_epi16(chosen, table));
        finish(W::kMins ? _mm512_fmsub_ph(value, scale.v, off.v) : _mm512_mul_ph(value, scale.v), to + 64 * i);
      });
    } else {
      each<2>([&](auto i) FW_LAMBDA {
        const __m512i codes = weight_.quad(tile, g, q + i).v;
        const __m512i even = _mm512_and_si512(codes, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(codes, 8);
        finish(scaled(_mm512_cvtepu16_ph(even), scale, off), to + 128 * i);
        finish(scaled(_mm512_cvtepu16_ph(odd), scale, off), to + 128 * i + 64);
      });
    }
  }
  static FW_INLINE __m512h scaled(__m512h code, H16x32 scale, H16x32 off) {
    if constexpr (W::kMins && W::kOffset) code = _mm512_sub_ph(code, _mm512_set1_ph(static_cast<_Float16>(W::kOffset)));
    if constexpr (W::kMins || W::kOffset) return _mm512_fmsub_ph(code, scale.v, off.v);
    return _mm512_mul_ph(code, scale.v);
  }
  static FW_INLINE void finish(__m512h value, uint8_t* to) { bstore(to, truncate({value})); }

  // All rows but the `usual` ones.
  void open_exactly(const uint8_t* tile, int64_t g, int q, F32x16 by, F32x16 low, uint32_t usual, uint8_t* to) const {
    F32x16 w[4];
    spread(weight_.quad(tile, g, q), w);
    each<4>([&](auto j) FW_LAMBDA { w[j] = sub(mul(by, sub(w[j], set1(W::kOffset))), low); });
    const auto others = static_cast<__mmask16>(~usual);
    _mm512_mask_storeu_epi32(to, others, truncate_pair(w[0], w[2]).v);
    _mm512_mask_storeu_epi32(to + 64, others, truncate_pair(w[1], w[3]).v);
  }

  W weight_;
  float factor_;
};

template <class W>
void open_some(Kind kind, const uint8_t* tile, int64_t, int64_t group, int64_t groups, uint8_t* to) {
  const PairOpener<W> opener(kind);
  for (int64_t g = group; g < group + groups; ++g, to += kOpenedBytes) opener.open(tile, g, to);
}

// Prefetches a group's bytes of a tile; beyond its end, of the tile that is read after those beside it.
template <int Near>
FW_INLINE void prefetch_ahead(const uint8_t* tile, int64_t bytes, int64_t beside, int64_t at, int64_t count) {
  const uint8_t* p = tile + at + (at < bytes ? 0 : beside * bytes);
#pragma GCC unroll 8
  for (int64_t i = 0; i < count; i += 64) __builtin_prefetch(p + i, 0, Near);
}

template <class W, int Tiles>
void open_ahead(Kind kind, const uint8_t* tile, int64_t bytes, int64_t group, uint8_t* to) {
  const PairOpener<W> opener(kind);
  const int64_t size = opener.group_bytes(), at = group * size;
  each<Tiles>([&](auto i) FW_LAMBDA {
    const uint8_t* from = tile + i * bytes;
    prefetch_ahead<2>(from, bytes, Tiles - 1, at + kAhead, size);
    prefetch_ahead<3>(from, bytes, Tiles - 1, at + kNearAhead, size);
    opener.open(from, group, to + i * kOpenedBytes);
  });
}

template <class W>
constexpr OpenPairs kOpenPairs{open_some<W>, open_ahead<W, 1>, open_ahead<W, 2>};

}  // namespace flyweight::FW_ISA
