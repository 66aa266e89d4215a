// The logical 16-lane vectors every kernel is written in, and what can be done with them.
//
// A kernel file includes this once and is compiled once per target with -DFW_ISA=scalar|avx2|avx512|neon; everything
// lives in namespace flyweight::FW_ISA.  One F32x16 is one zmm, two ymm, four NEON registers, or float[16].  All
// operations are IEEE and exact twins of the scalar ones, bit for bit, except `dot_bf16` (see there).  The part files
// hold what differs between targets; this file what is composed of it:
//
//   F32x16  zero set1 load load_tail store store_tail add sub mul div fma min max abs sqrt rint
//           select_gt mask_gt load_i8 load_u8 load_f16 store_f16 load_bf16 store_bf16 hsum hmax exp tanh
//   I32x16  izero iset1 iload istore add sub mul and_ or_ xor_ imin imax shl<> shr<> (logical) sar<> (arithmetic)
//           to_f32 to_i32 (nearest even) as_f32 as_i32 load_i8_i32 load_u8_i32 load_u16 store_u16 store_i8 hsum
//   B8x64   bload bstore set4 (four bytes to every lane) bset1 band bxor as_bytes as_words
//           lookup(table, v): byte v of 16 in place of each byte v, for bytes up to 15
//           pick(table, i): entry i & 15 of 16 floats in place of each word i
//           dot_u8i8 dot_u7i8 dot_i8i8 (four products into each of 16 int32 lanes, exact) dot_bf16; the integer ones also
//           with a place in memory, whose four bytes every lane multiplies with
//
// `max(a, b)` is a > b ? a : b and `min(a, b)` is a < b ? a : b: with a NaN, the second operand.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(FW_ISA_SCALAR)  // a specification: forced inline, its lanes take longer to compile than all other targets
#define FW_INLINE inline
#define FW_LAMBDA
#else
#define FW_INLINE inline __attribute__((always_inline))
#define FW_LAMBDA __attribute__((always_inline))
#endif

#if defined(FW_ISA_AVX512)
#include "simd_avx512.h"
#elif defined(FW_ISA_AVX2)
#include "simd_avx2.h"
#elif defined(FW_ISA_NEON)
#include "simd_neon.h"
#elif defined(FW_ISA_SCALAR)
#include "simd_scalar.h"
#else
#error "compile kernels through fw_add_kernels in CMakeLists.txt"
#endif

namespace flyweight::FW_ISA {

// The same four bytes for every lane, read where they are.
#if defined(FW_ISA_AVX512)
// As a part of the instruction, which compilers do not do by themselves: half as many of them for a row.
FW_INLINE I32x16 dot_u8i8(I32x16 acc, B8x64 a, const uint8_t* four) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc.v) : "v"(a.v), "m"(*reinterpret_cast<const uint8_t(*)[4]>(four)));
  return acc;
}
FW_INLINE I32x16 dot_u7i8(I32x16 acc, B8x64 a, const uint8_t* four) { return dot_u8i8(acc, a, four); }
#else
FW_INLINE I32x16 dot_u8i8(I32x16 acc, B8x64 a, const uint8_t* four) { return dot_u8i8(acc, a, set4(four)); }
FW_INLINE I32x16 dot_u7i8(I32x16 acc, B8x64 a, const uint8_t* four) { return dot_u7i8(acc, a, set4(four)); }
#endif
FW_INLINE I32x16 dot_i8i8(I32x16 acc, B8x64 a, const uint8_t* four) { return dot_i8i8(acc, a, set4(four)); }

// f(0), ..., f(N - 1) with constants.  Unlike a loop with a pragma this is unrolled before arrays are given registers, so
// an array of accumulators never goes through memory.  The body is marked FW_LAMBDA.
template <int N, class F>
FW_INLINE void each(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) FW_LAMBDA {
    (f(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

// Sum of the lanes in a fixed tree: lane i + lane i+8, then +4, +2, +1.  The order never depends on the target.
FW_INLINE float hsum(F32x16 v) {
#if defined(FW_ISA_AVX512)
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v.v), _mm512_extractf32x8_ps(v.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  float lane[16];
  store(lane, v);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
#endif
}

FW_INLINE int32_t hsum(I32x16 v) {
  int32_t lane[16], sum = 0;
  istore(lane, v);
  for (int i = 0; i < 16; ++i) sum += lane[i];
  return sum;
}

FW_INLINE float hmax(F32x16 v) {
#if defined(FW_ISA_AVX512)  // upper half first, as below: a NaN gives way or stays by its place, on every target
  const __m256 eight = _mm256_max_ps(_mm512_extractf32x8_ps(v.v, 1), _mm512_castps512_ps256(v.v));
  const __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  const __m128 two = _mm_max_ps(_mm_movehl_ps(four, four), four);
  return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(two), two));
#else
  float lane[16];
  store(lane, v);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = lane[i + half] > lane[i] ? lane[i + half] : lane[i];
  return lane[0];
#endif
}

FW_INLINE F32x16 load_bf16(const uint16_t* p) { return as_f32(shl<16>(load_u16(p))); }

// Nearest even, subnormals kept, NaN stays NaN: the bits of ops.base.bf16_bits.
FW_INLINE I32x16 bf16_bits(F32x16 v) {
  const I32x16 u = as_i32(v), high = shr<16>(u);
  const I32x16 rounded = shr<16>(add(u, add(iset1(0x7FFF), and_(high, iset1(1)))));
  const I32x16 magnitude = and_(u, iset1(0x7FFFFFFF));
  const I32x16 nan = sar<31>(sub(iset1(0x7F800000), magnitude));  // all ones where |v| > infinity
  return or_(and_(nan, or_(high, iset1(0x40))), and_(xor_(nan, iset1(-1)), rounded));
}

FW_INLINE void store_bf16(uint16_t* p, F32x16 v) { store_u16(p, bf16_bits(v)); }

// 32 numbers as bf16, those of `a` first.  Subnormals may become zero.
FW_INLINE B8x64 pack_bf16(F32x16 a, F32x16 b) {
#if defined(FW_ISA_AVX512)
  return {reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v))};
#else
  uint16_t both[32];
  store_bf16(both, a);
  store_bf16(both + 16, b);
  return bload(both);
#endif
}

// Lane i of `a` and of `b`, rounded to bf16, as the low and the high half of word i: what dot_bf16 multiplies.
FW_INLINE B8x64 pair_bf16(F32x16 a, F32x16 b) {
#if defined(FW_ISA_AVX512)
  alignas(64) static constexpr uint16_t kPairs[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return {_mm512_permutexvar_epi16(_mm512_load_si512(kPairs), pack_bf16(a, b).v)};
#else
  return as_bytes(or_(bf16_bits(a), shl<16>(bf16_bits(b))));
#endif
}

struct Reduced {
  F32x16 n, r;
};

// x = n ln2 + r with |r| <= ln2/2 (Cody and Waite's two-part ln2).
FW_INLINE Reduced reduce(F32x16 x) {
  const F32x16 n = rint(mul(x, set1(1.44269504f)));
  return {n, fma(n, set1(-1.42860677e-6f), fma(n, set1(-0.693145752f), x))};
}

// e^x, at most 1.0 ulp from the true value for x in [-87.3, 88.7]; below that 0, above it infinity, NaN stays NaN.
// A degree-7 polynomial of r, then 2^n in two factors so that n = 128 does not overflow early.  Only fma, mul and integer
// shifts: the same bits on every target.
FW_INLINE F32x16 exp(F32x16 x) {
  const F32x16 low = set1(-87.33654f), high = set1(88.72284f);
  const F32x16 c = min(high, max(low, x));  // NaN passes through: it is the second operand both times
  const auto [n, r] = reduce(c);
  F32x16 p = set1(1.0f / 5040.0f);
  p = fma(p, r, set1(1.0f / 720.0f));
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  const I32x16 whole = to_i32(n), part = sar<1>(whole);
  const F32x16 first = as_f32(shl<23>(add(part, iset1(127))));
  const F32x16 second = as_f32(shl<23>(add(sub(whole, part), iset1(127))));
  p = mul(mul(p, first), second);
  p = select_gt(low, x, zero(), p);
  return select_gt(x, high, set1(INFINITY), p);
}

// tanh x, at most 3 ulp from the true value; the sign is x's, of a zero too, and NaN stays NaN.
// With e = expm1(-2|x|) it is -e / (2 + e), and e = 2^n expm1(r) + (2^n - 1), where nothing cancels: |r| <= ln2/2.
FW_INLINE F32x16 tanh(F32x16 x) {
  const I32x16 sign = and_(as_i32(x), iset1(INT32_MIN));
  const auto [n, r] = reduce(max(set1(-20.0f), mul(abs(x), set1(-2.0f))));  // tanh 10 rounds to 1
  F32x16 p = set1(1.0f / 40320.0f);
  p = fma(p, r, set1(1.0f / 5040.0f));
  p = fma(p, r, set1(1.0f / 720.0f));
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(mul(r, r), p, r);  // expm1(r)
  const F32x16 power = as_f32(shl<23>(add(to_i32(n), iset1(127))));
  const F32x16 e = fma(power, p, sub(power, set1(1.0f)));
  return as_f32(or_(sign, as_i32(abs(div(e, add(e, set1(2.0f)))))));
}

}  // namespace flyweight::FW_ISA
