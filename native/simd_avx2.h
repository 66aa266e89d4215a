// AVX2 with FMA and F16C: two registers per logical vector.  Included by simd.h only; meanings there.
#pragma once

#include <immintrin.h>

#if defined(FW_ISA_AVXVNNI)
#define FW_VNNI 1
#else
#define FW_PAIR_SUMS 1  // products of small codes can be added up as 16-bit pairs
#endif

namespace flyweight::FW_ISA {

struct F32x16 {
  __m256 a, b;  // lanes 0-7, 8-15
};
struct I32x16 {
  __m256i a, b;
};
struct B8x64 {
  __m256i a, b;
};

// Sliding window over eight -1 and eight 0: the first n of 8 lanes.
alignas(64) inline constexpr int32_t kFirst[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
FW_INLINE __m256i first8(int n) {
  const int shown = n < 0 ? 0 : n > 8 ? 8 : n;
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kFirst + 8 - shown));
}
FW_INLINE __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
FW_INLINE __m128i load8(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
FW_INLINE __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
FW_INLINE void store32(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

FW_INLINE F32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
FW_INLINE F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
FW_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
FW_INLINE F32x16 load_tail(const float* p, int n) {
  return {_mm256_maskload_ps(p, first8(n)), n > 8 ? _mm256_maskload_ps(p + 8, first8(n - 8)) : _mm256_setzero_ps()};
}
FW_INLINE void store(float* p, F32x16 v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}
FW_INLINE void store_tail(float* p, F32x16 v, int n) {
  _mm256_maskstore_ps(p, first8(n), v.a);
  if (n > 8) _mm256_maskstore_ps(p + 8, first8(n - 8), v.b);
}

#define FW_BOTH(V, name, op) \
  FW_INLINE V name(V x, V y) { return {op(x.a, y.a), op(x.b, y.b)}; }
FW_BOTH(F32x16, add, _mm256_add_ps)
FW_BOTH(F32x16, sub, _mm256_sub_ps)
FW_BOTH(F32x16, mul, _mm256_mul_ps)
FW_BOTH(F32x16, div, _mm256_div_ps)
FW_BOTH(F32x16, min, _mm256_min_ps)
FW_BOTH(F32x16, max, _mm256_max_ps)
FW_BOTH(I32x16, add, _mm256_add_epi32)
FW_BOTH(I32x16, sub, _mm256_sub_epi32)
FW_BOTH(I32x16, mul, _mm256_mullo_epi32)
FW_BOTH(I32x16, and_, _mm256_and_si256)
FW_BOTH(I32x16, or_, _mm256_or_si256)
FW_BOTH(I32x16, xor_, _mm256_xor_si256)
FW_BOTH(I32x16, imin, _mm256_min_epi32)
FW_BOTH(I32x16, imax, _mm256_max_epi32)
FW_BOTH(B8x64, band, _mm256_and_si256)
FW_BOTH(B8x64, bxor, _mm256_xor_si256)
#undef FW_BOTH

FW_INLINE F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
FW_INLINE F32x16 abs(F32x16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
FW_INLINE F32x16 sqrt(F32x16 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
FW_INLINE F32x16 rint(F32x16 x) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, nearest), _mm256_round_ps(x.b, nearest)};
}
FW_INLINE uint32_t mask_gt(F32x16 x, F32x16 y) {
  const auto low = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)));
  return low | static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))) << 8;
}
FW_INLINE F32x16 select_gt(F32x16 x, F32x16 y, F32x16 yes, F32x16 no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))};
}

FW_INLINE I32x16 iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
FW_INLINE I32x16 izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
FW_INLINE I32x16 iload(const int32_t* p) { return {load32(p), load32(p + 8)}; }
FW_INLINE void istore(int32_t* p, I32x16 x) {
  store32(p, x.a);
  store32(p + 8, x.b);
}
template <int N>
FW_INLINE I32x16 shl(I32x16 x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
template <int N>
FW_INLINE I32x16 shr(I32x16 x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}
template <int N>
FW_INLINE I32x16 sar(I32x16 x) {
  return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)};
}
FW_INLINE F32x16 to_f32(I32x16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
FW_INLINE I32x16 to_i32(F32x16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
FW_INLINE F32x16 as_f32(I32x16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
FW_INLINE I32x16 as_i32(F32x16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }

FW_INLINE I32x16 load_i8_i32(const int8_t* p) { return {_mm256_cvtepi8_epi32(load8(p)), _mm256_cvtepi8_epi32(load8(p + 8))}; }
FW_INLINE I32x16 load_u8_i32(const uint8_t* p) { return {_mm256_cvtepu8_epi32(load8(p)), _mm256_cvtepu8_epi32(load8(p + 8))}; }
FW_INLINE I32x16 load_u16(const uint16_t* p) { return {_mm256_cvtepu16_epi32(load16(p)), _mm256_cvtepu16_epi32(load16(p + 8))}; }
FW_INLINE F32x16 load_i8(const int8_t* p) { return to_f32(load_i8_i32(p)); }
FW_INLINE F32x16 load_u8(const uint8_t* p) { return to_f32(load_u8_i32(p)); }
FW_INLINE F32x16 load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(load16(p)), _mm256_cvtph_ps(load16(p + 8))}; }
FW_INLINE void store_f16(uint16_t* p, F32x16 x) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, nearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, nearest));
}
FW_INLINE void store_u16(uint16_t* p, I32x16 x) {
  store32(p, _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xD8));  // pack works per 128 bits: 0 2 1 3
}
FW_INLINE void store_i8(int8_t* p, I32x16 x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
  const __m128i out = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), out);
}

FW_INLINE B8x64 bload(const void* p) { return {load32(p), load32(static_cast<const char*>(p) + 32)}; }
FW_INLINE B8x64 as_bytes(I32x16 x) { return {x.a, x.b}; }
FW_INLINE I32x16 as_words(B8x64 x) { return {x.a, x.b}; }
FW_INLINE void bstore(void* p, B8x64 x) {
  store32(p, x.a);
  store32(static_cast<char*>(p) + 32, x.b);
}
FW_INLINE B8x64 set4(const void* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return {_mm256_set1_epi32(word), _mm256_set1_epi32(word)};
}
FW_INLINE B8x64 bset1(uint8_t x) {
  const __m256i v = _mm256_set1_epi8(static_cast<char>(x));
  return {v, v};
}
FW_INLINE B8x64 lookup(const uint8_t* table, B8x64 x) {
  const __m256i both = _mm256_broadcastsi128_si256(load16(table));
  return {_mm256_shuffle_epi8(both, x.a), _mm256_shuffle_epi8(both, x.b)};
}

FW_INLINE __m256 pick_half(const float* table, __m256i i) {  // the sign bit of i << 28 says which eight
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), i);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), i);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}
FW_INLINE F32x16 pick(const float* table, I32x16 i) { return {pick_half(table, i.a), pick_half(table, i.b)}; }

// vpmaddubsw saturates its 16-bit pair sums from 255 * 127 * 2 on, so full-range bytes are widened first: the even and
// the odd bytes as 16-bit numbers, two exact vpmaddwd.
FW_INLINE __m256i dot_wide(__m256i acc, __m256i u, __m256i s) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
// u <= 128 and |s| <= 127, or u <= 127: a pair sum is at most 32,512 and vpmaddubsw is exact.
FW_INLINE __m256i dot_narrow(__m256i acc, __m256i u, __m256i s) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
}
#if defined(FW_VNNI)
FW_INLINE I32x16 dot_u8i8(I32x16 acc, B8x64 x, B8x64 y) {
  return {_mm256_dpbusd_avx_epi32(acc.a, x.a, y.a), _mm256_dpbusd_avx_epi32(acc.b, x.b, y.b)};
}
FW_INLINE I32x16 dot_u7i8(I32x16 acc, B8x64 x, B8x64 y) { return dot_u8i8(acc, x, y); }
FW_INLINE I32x16 dot_i8i8(I32x16 acc, B8x64 x, B8x64 y) {
  return dot_u8i8(acc, {_mm256_abs_epi8(x.a), _mm256_abs_epi8(x.b)}, {_mm256_sign_epi8(y.a, x.a), _mm256_sign_epi8(y.b, x.b)});
}
#else
FW_INLINE I32x16 dot_u8i8(I32x16 acc, B8x64 x, B8x64 y) { return {dot_wide(acc.a, x.a, y.a), dot_wide(acc.b, x.b, y.b)}; }
FW_INLINE I32x16 dot_u7i8(I32x16 acc, B8x64 x, B8x64 y) {
  return {dot_narrow(acc.a, x.a, y.a), dot_narrow(acc.b, x.b, y.b)};
}
FW_INLINE I32x16 dot_i8i8(I32x16 acc, B8x64 x, B8x64 y) {
  return {dot_narrow(acc.a, _mm256_abs_epi8(x.a), _mm256_sign_epi8(y.a, x.a)),
          dot_narrow(acc.b, _mm256_abs_epi8(x.b), _mm256_sign_epi8(y.b, x.b))};
}
// 16-bit sums of pairs of products, u <= 15: eight of them stay below 32,767.  `add_pairs` adds them to 32-bit lanes.
FW_INLINE B8x64 pairs_u4i8(B8x64 u, B8x64 s) { return {_mm256_maddubs_epi16(u.a, s.a), _mm256_maddubs_epi16(u.b, s.b)}; }
FW_INLINE B8x64 add16(B8x64 x, B8x64 y) { return {_mm256_add_epi16(x.a, y.a), _mm256_add_epi16(x.b, y.b)}; }
FW_INLINE I32x16 add_pairs(I32x16 acc, B8x64 p) {
  const __m256i one = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(p.a, one)), _mm256_add_epi32(acc.b, _mm256_madd_epi16(p.b, one))};
}
#endif
FW_INLINE __m256 dot_bf16_half(__m256 acc, __m256i x, __m256i y) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000));
  acc = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(y, 16)), acc);
  return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(x, high)), _mm256_castsi256_ps(_mm256_and_si256(y, high)), acc);
}
FW_INLINE F32x16 dot_bf16(F32x16 acc, B8x64 x, B8x64 y) {
  return {dot_bf16_half(acc.a, x.a, y.a), dot_bf16_half(acc.b, x.b, y.b)};
}

}  // namespace flyweight::FW_ISA
