// K and V in codes (native/kv.h): how a token's row becomes codes and a scale, and how codes become pairs of bf16.
//
// Invariant: a code is a function of its own token's row alone: rotation, largest magnitude and rounding are fixed
// operations in float32, the same bits on every target.  Opening is exact, each code is a bf16 number: -127 ... 127 (int8),
// the odd numbers -15 ... 15 (int4), the numbers of e4m3 and e5m2 without subnormals.  No code opens to NaN or infinity, so
// what no query sees weighs zero times a finite number; the scale of a row that is not finite is NaN.
#pragma once

#include "kv.h"
#include "simd.h"

namespace flyweight::FW_ISA {

// --- rotation ---

// Lane i and lane i ^ Bit: their sum in the lower of the two, their difference in the higher.
template <int Bit>
FW_INLINE F32x16 turn_lanes(F32x16 x) {
  alignas(64) static constexpr auto kOther = [] {
    struct {
      int32_t at[16];
      float sign[16];
    } t{};
    for (int i = 0; i < 16; ++i) t.at[i] = i ^ Bit, t.sign[i] = i & Bit ? -1.0f : 1.0f;
    return t;
  }();
  alignas(64) float lane[16];
  store(lane, x);
  return fma(x, load(kOther.sign), pick(lane, iload(kOther.at)));
}

// Multiplies each `block` elements of a row, a power of two, with the Hadamard matrix of that size, not normalised.
// The pairs 1 apart first, then those 2, 4, ... apart.
inline void turn_row(float* row, int64_t dim, int64_t block) {
  if (block < 16) {
    for (int64_t step = 1; step < block; step *= 2)
      for (int64_t i = 0; i < dim; ++i) {
        if (i & step) continue;
        const float a = row[i], b = row[i + step];
        row[i] = a + b, row[i + step] = a - b;
      }
    return;
  }
  for (int64_t i = 0; i < dim; i += 16)
    store(row + i, turn_lanes<8>(turn_lanes<4>(turn_lanes<2>(turn_lanes<1>(load(row + i))))));
  for (int64_t step = 16; step < block; step *= 2)
    for (int64_t i = 0; i < dim; i += 16) {
      if (i & step) continue;
      const F32x16 a = load(row + i), b = load(row + i + step);
      store(row + i, add(a, b)), store(row + i + step, sub(a, b));
    }
}

// --- from numbers to codes ---

// Codes of one row of at most kMaxHead elements, a byte each, and its scale.
struct CodedRow {
  alignas(64) uint8_t code[kMaxHead + 64];
  float scale;
};

// The largest magnitude of a row; NaN if one of its elements is NaN or infinite.
inline float top_magnitude(const float* row, int64_t dim) {
  F32x16 top = zero(), none = zero();
  for (int64_t d = 0; d < dim; d += 16) {
    const F32x16 x = dim - d < 16 ? load_tail(row + d, static_cast<int>(dim - d)) : load(row + d);
    top = max(abs(x), top);
    none = fma(x, zero(), none);
  }
  return hmax(top) + hsum(none);
}

template <KVType type>
struct CodeOf;

template <>
struct CodeOf<KVType::int8> {
  static constexpr float kTop = 127.0f;
  FW_INLINE static I32x16 code(F32x16 x) { return and_(to_i32(x), iset1(255)); }
};

// Code c means 2 c - 15.
template <>
struct CodeOf<KVType::int4> {
  static constexpr float kTop = 15.0f;
  FW_INLINE static I32x16 code(F32x16 x) { return imax(izero(), imin(iset1(15), to_i32(fma(x, set1(0.5f), set1(7.5f))))); }
};

// The nearest number of that many bits, ties to even; below the least normal one it is zero or that one, whichever is
// nearer, the latter if both are.
template <int Mantissa, int Bias>
struct FloatCode {
  FW_INLINE static I32x16 code(F32x16 x) {
    constexpr int kDrop = 23 - Mantissa, kLeast = 1 << Mantissa;
    const I32x16 u = as_i32(x), sign = and_(shr<24>(u), iset1(128));
    const F32x16 size = abs(x);
    const I32x16 bits = as_i32(size), odd = and_(shr<kDrop>(bits), iset1(1));
    const I32x16 rounded = shr<kDrop>(add(bits, add(odd, iset1((1 << (kDrop - 1)) - 1))));
    const F32x16 normal = to_f32(sub(rounded, iset1((127 - Bias) << Mantissa)));  // as floats: there is a select
    const float least = power(1 - Bias);
    const F32x16 small = select_gt(set1(least / 2), size, zero(), set1(kLeast));
    return or_(sign, to_i32(select_gt(set1(least), size, small, normal)));
  }

 private:
  static constexpr float power(int n) { return n == 0 ? 1.0f : n > 0 ? 2 * power(n - 1) : power(n + 1) / 2; }
};
template <>
struct CodeOf<KVType::e4m3> : FloatCode<3, 7> {
  static constexpr float kTop = 448.0f;
};
template <>
struct CodeOf<KVType::e5m2> : FloatCode<2, 15> {
  static constexpr float kTop = 57344.0f;
};

// The codes of x * (top / amax), and the scale amax / top.  A row whose factor is beyond float32 is zero.
template <KVType type>
void encode(const float* row, int64_t dim, CodedRow& to) {
  using Code = CodeOf<type>;
  const float amax = top_magnitude(row, dim);
  const float found = Code::kTop / amax, factor = found < INFINITY ? found : 0.0f;  // NaN: 0
  to.scale = amax != amax ? amax : factor > 0 ? amax / Code::kTop : 0.0f;
  for (int64_t d = 0; d < dim; d += 16) {
    const F32x16 x = dim - d < 16 ? load_tail(row + d, static_cast<int>(dim - d)) : load(row + d);
    int32_t lane[16];
    istore(lane, Code::code(factor > 0 ? mul(x, set1(factor)) : zero()));
    for (int i = 0; i < 16; ++i) to.code[d + i] = static_cast<uint8_t>(lane[i]);
  }
  for (int64_t d = (dim + 15) / 16 * 16; d < dim + 64; d += 16) std::memset(to.code + d, 0, 16);
}

// --- from codes to pairs ---

// A vector of 16 pairs, each two halves of a word: of 8-bit codes from 32 bytes, of 4-bit codes from nibble `i` of 64.
FW_INLINE B8x64 pairs_of(F32x16 low, F32x16 high) { return as_bytes(or_(shr<16>(as_i32(low)), as_i32(high))); }

template <KVType type>
struct Opened {
  static constexpr int kParts = 1, kBytes = 32;  // vectors in a unit, its bytes

  FW_INLINE static B8x64 open(const uint8_t* p, int) {
#if defined(FW_ISA_AVX512)
    if constexpr (type == KVType::int8) {
      const auto* b = reinterpret_cast<const int8_t*>(p);
      return pack_bf16(load_i8(b), load_i8(b + 16));
    } else {
      constexpr int kShift = type == KVType::e4m3 ? 4 : 5;  // a code's exponent and mantissa to their places in bf16
      const __m512i w = _mm512_slli_epi16(_mm512_cvtepi8_epi16(load32(p)), kShift);
      const __m512i value = _mm512_and_si512(w, _mm512_set1_epi16(static_cast<int16_t>(0x8000 | 127 << kShift)));
      const __mmask32 some = _mm512_test_epi16_mask(value, _mm512_set1_epi16(127 << kShift));
      constexpr int kBias = (127 - (type == KVType::e4m3 ? 7 : 15)) << 7;
      return {_mm512_mask_add_epi16(value, some, value, _mm512_set1_epi16(kBias))};
    }
#else
    const I32x16 w = load_u16(reinterpret_cast<const uint16_t*>(p));
    return pairs_of(number(shl<24>(w)), number(shl<16>(w)));
#endif
  }

 private:
  // Of the highest byte of each word.
  FW_INLINE static F32x16 number(I32x16 w) {
    if constexpr (type == KVType::int8) return to_f32(sar<24>(w));
    constexpr int kMantissa = type == KVType::e4m3 ? 3 : 2, kBias = type == KVType::e4m3 ? 7 : 15;
    const I32x16 rest = and_(shr<1 + kMantissa>(w), iset1(127 << (23 - kMantissa)));
    const F32x16 power = as_f32(iset1((254 - kBias) << 23));  // 2^(127 - bias)
    return mul(as_f32(or_(and_(w, iset1(INT32_MIN)), rest)), power);
  }
};

template <>
struct Opened<KVType::int4> {
  static constexpr int kParts = 4, kBytes = 64;

  FW_INLINE static B8x64 open(const uint8_t* p, int i) {
#if defined(FW_ISA_AVX512)
    alignas(64) static constexpr auto kOdd = [] {
      struct {
        uint16_t bits[32];
      } t{};
      constexpr uint16_t some[8] = {0x3F80, 0x4040, 0x40A0, 0x40E0, 0x4110, 0x4130, 0x4150, 0x4170};  // 1, 3, ... 15
      for (int c = 0; c < 32; ++c) t.bits[c] = c % 16 < 8 ? 0x8000 | some[7 - c % 16] : some[c % 16 - 8];
      return t;
    }();
    const __m512i w = _mm512_srl_epi16(bload(p).v, _mm_cvtsi32_si128(4 * i));  // of an index only five bits count
    return {_mm512_permutexvar_epi16(w, _mm512_load_si512(kOdd.bits))};
#else
    const I32x16 w = as_words(bload(p));
    const auto number = [](I32x16 c) FW_LAMBDA { return to_f32(sub(shl<1>(and_(c, iset1(15))), iset1(15))); };
    switch (i) {
      case 0: return pairs_of(number(w), number(shr<16>(w)));
      case 1: return pairs_of(number(shr<4>(w)), number(shr<20>(w)));
      case 2: return pairs_of(number(shr<8>(w)), number(shr<24>(w)));
      default: return pairs_of(number(shr<12>(w)), number(shr<28>(w)));
    }
#endif
  }
};

}  // namespace flyweight::FW_ISA
