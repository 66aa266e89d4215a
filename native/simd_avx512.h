// AVX-512 (F, BW, VL, DQ, VNNI, BF16): one register per logical vector.  Included by simd.h only; meanings there.
#pragma once

#include <immintrin.h>

#define FW_VNNI 1  // one instruction multiplies four unsigned bytes with signed ones and adds, exactly

namespace flyweight::FW_ISA {

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct B8x64 {
  __m512i v;
};

FW_INLINE __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }  // n in 0..16

FW_INLINE F32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
FW_INLINE F32x16 zero() { return {_mm512_setzero_ps()}; }
FW_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
FW_INLINE F32x16 load_tail(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
FW_INLINE void store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
FW_INLINE void store_tail(float* p, F32x16 a, int n) { _mm512_mask_storeu_ps(p, first(n), a.v); }

FW_INLINE F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
FW_INLINE F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
FW_INLINE F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
FW_INLINE F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
FW_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
FW_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
FW_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
FW_INLINE F32x16 abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
FW_INLINE F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
FW_INLINE F32x16 rint(F32x16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
FW_INLINE uint32_t mask_gt(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
FW_INLINE F32x16 select_gt(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), no.v, yes.v)};
}

FW_INLINE I32x16 iset1(int32_t x) { return {_mm512_set1_epi32(x)}; }
FW_INLINE I32x16 izero() { return {_mm512_setzero_si512()}; }
FW_INLINE I32x16 iload(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
FW_INLINE void istore(int32_t* p, I32x16 a) { _mm512_storeu_si512(p, a.v); }
FW_INLINE I32x16 add(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
FW_INLINE I32x16 sub(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
FW_INLINE I32x16 mul(I32x16 a, I32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
FW_INLINE I32x16 and_(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
FW_INLINE I32x16 or_(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
FW_INLINE I32x16 xor_(I32x16 a, I32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
FW_INLINE I32x16 imin(I32x16 a, I32x16 b) { return {_mm512_min_epi32(a.v, b.v)}; }
FW_INLINE I32x16 imax(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int N>
FW_INLINE I32x16 shl(I32x16 a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
FW_INLINE I32x16 shr(I32x16 a) {
  return {_mm512_srli_epi32(a.v, N)};
}
template <int N>
FW_INLINE I32x16 sar(I32x16 a) {
  return {_mm512_srai_epi32(a.v, N)};
}
FW_INLINE F32x16 to_f32(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
FW_INLINE I32x16 to_i32(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
FW_INLINE F32x16 as_f32(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
FW_INLINE I32x16 as_i32(F32x16 a) { return {_mm512_castps_si512(a.v)}; }

FW_INLINE __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
FW_INLINE __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
FW_INLINE I32x16 load_i8_i32(const int8_t* p) { return {_mm512_cvtepi8_epi32(load16(p))}; }
FW_INLINE I32x16 load_u8_i32(const uint8_t* p) { return {_mm512_cvtepu8_epi32(load16(p))}; }
FW_INLINE I32x16 load_u16(const uint16_t* p) { return {_mm512_cvtepu16_epi32(load32(p))}; }
FW_INLINE F32x16 load_i8(const int8_t* p) { return to_f32(load_i8_i32(p)); }
FW_INLINE F32x16 load_u8(const uint8_t* p) { return to_f32(load_u8_i32(p)); }
FW_INLINE F32x16 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(load32(p))}; }
FW_INLINE void store_f16(uint16_t* p, F32x16 a) {
  const __m256i h = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h);
}
FW_INLINE void store_u16(uint16_t* p, I32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
FW_INLINE void store_i8(int8_t* p, I32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

FW_INLINE B8x64 bload(const void* p) { return {_mm512_loadu_si512(p)}; }
FW_INLINE B8x64 as_bytes(I32x16 a) { return {a.v}; }
FW_INLINE I32x16 as_words(B8x64 a) { return {a.v}; }
FW_INLINE void bstore(void* p, B8x64 a) { _mm512_storeu_si512(p, a.v); }
FW_INLINE B8x64 set4(const void* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return {_mm512_set1_epi32(word)};
}
FW_INLINE B8x64 bset1(uint8_t x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
FW_INLINE B8x64 band(B8x64 a, B8x64 b) { return {_mm512_and_si512(a.v, b.v)}; }
FW_INLINE B8x64 bsub(B8x64 a, B8x64 b) { return {_mm512_sub_epi8(a.v, b.v)}; }
FW_INLINE B8x64 bxor(B8x64 a, B8x64 b) { return {_mm512_xor_si512(a.v, b.v)}; }
FW_INLINE B8x64 lookup(const uint8_t* table, B8x64 a) {
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(table)), a.v)};
}

FW_INLINE F32x16 pick(const float* table, I32x16 i) { return {_mm512_permutexvar_ps(i.v, _mm512_loadu_ps(table))}; }

FW_INLINE I32x16 dot_u8i8(I32x16 acc, B8x64 a, B8x64 b) { return {_mm512_dpbusd_epi32(acc.v, a.v, b.v)}; }
FW_INLINE I32x16 dot_u7i8(I32x16 acc, B8x64 a, B8x64 b) { return {_mm512_dpbusd_epi32(acc.v, a.v, b.v)}; }
FW_INLINE I32x16 dot_i8i8(I32x16 acc, B8x64 a, B8x64 b) {
  const __mmask64 negative = _mm512_movepi8_mask(a.v);
  const __m512i sign = _mm512_mask_sub_epi8(b.v, negative, _mm512_setzero_si512(), b.v);
  return {_mm512_dpbusd_epi32(acc.v, _mm512_abs_epi8(a.v), sign)};
}
FW_INLINE F32x16 dot_bf16(F32x16 acc, B8x64 a, B8x64 b) {
  return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}

}  // namespace flyweight::FW_ISA
