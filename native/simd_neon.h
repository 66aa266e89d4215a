// NEON (ARMv8.2 with dot product and half floats): four registers per logical vector.  Included by simd.h only.
#pragma once

#include <arm_neon.h>

namespace flyweight::FW_ISA {

struct F32x16 {
  float32x4_t r[4];
};
struct I32x16 {
  int32x4_t r[4];
};
struct B8x64 {
  uint8x16_t r[4];
};

template <class V, class F>
FW_INLINE V quads(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}

FW_INLINE F32x16 set1(float x) {
  return quads<F32x16>([&](int) { return vdupq_n_f32(x); });
}
FW_INLINE F32x16 zero() { return set1(0.0f); }
FW_INLINE F32x16 load(const float* p) {
  return quads<F32x16>([&](int i) { return vld1q_f32(p + 4 * i); });
}
FW_INLINE F32x16 load_tail(const float* p, int n) {
  float lane[16] = {};
  std::memcpy(lane, p, sizeof(float) * static_cast<size_t>(n));
  return load(lane);
}
FW_INLINE void store(float* p, F32x16 v) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v.r[i]);
}
FW_INLINE void store_tail(float* p, F32x16 v, int n) {
  float lane[16];
  store(lane, v);
  std::memcpy(p, lane, sizeof(float) * static_cast<size_t>(n));
}

#define FW_QUADS(V, name, op) \
  FW_INLINE V name(V x, V y) { \
    return quads<V>([&](int i) { return op(x.r[i], y.r[i]); }); \
  }
FW_QUADS(F32x16, add, vaddq_f32)
FW_QUADS(F32x16, sub, vsubq_f32)
FW_QUADS(F32x16, mul, vmulq_f32)
FW_QUADS(F32x16, div, vdivq_f32)
FW_QUADS(I32x16, add, vaddq_s32)
FW_QUADS(I32x16, sub, vsubq_s32)
FW_QUADS(I32x16, mul, vmulq_s32)
FW_QUADS(I32x16, and_, vandq_s32)
FW_QUADS(I32x16, or_, vorrq_s32)
FW_QUADS(I32x16, xor_, veorq_s32)
FW_QUADS(I32x16, imin, vminq_s32)
FW_QUADS(I32x16, imax, vmaxq_s32)
FW_QUADS(B8x64, band, vandq_u8)
FW_QUADS(B8x64, bxor, veorq_u8)
#undef FW_QUADS

FW_INLINE F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  return quads<F32x16>([&](int i) { return vfmaq_f32(z.r[i], x.r[i], y.r[i]); });
}
FW_INLINE F32x16 select_gt(F32x16 x, F32x16 y, F32x16 yes, F32x16 no) {
  return quads<F32x16>([&](int i) { return vbslq_f32(vcgtq_f32(x.r[i], y.r[i]), yes.r[i], no.r[i]); });
}
// Not vminq / vmaxq: those return NaN when either operand is NaN.
FW_INLINE F32x16 min(F32x16 x, F32x16 y) { return select_gt(y, x, x, y); }
FW_INLINE F32x16 max(F32x16 x, F32x16 y) { return select_gt(x, y, x, y); }
FW_INLINE F32x16 abs(F32x16 x) {
  return quads<F32x16>([&](int i) { return vabsq_f32(x.r[i]); });
}
FW_INLINE F32x16 sqrt(F32x16 x) {
  return quads<F32x16>([&](int i) { return vsqrtq_f32(x.r[i]); });
}
FW_INLINE F32x16 rint(F32x16 x) {
  return quads<F32x16>([&](int i) { return vrndnq_f32(x.r[i]); });
}
FW_INLINE uint32_t mask_gt(F32x16 x, F32x16 y) {
  static const uint32_t weight[4] = {1, 2, 4, 8};
  uint32_t mask = 0;
  for (int i = 0; i < 4; ++i)
    mask |= vaddvq_u32(vandq_u32(vcgtq_f32(x.r[i], y.r[i]), vld1q_u32(weight))) << (4 * i);
  return mask;
}

FW_INLINE I32x16 iset1(int32_t x) {
  return quads<I32x16>([&](int) { return vdupq_n_s32(x); });
}
FW_INLINE I32x16 izero() { return iset1(0); }
FW_INLINE I32x16 iload(const int32_t* p) {
  return quads<I32x16>([&](int i) { return vld1q_s32(p + 4 * i); });
}
FW_INLINE void istore(int32_t* p, I32x16 v) {
  for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, v.r[i]);
}
template <int N>
FW_INLINE I32x16 shl(I32x16 x) {
  return quads<I32x16>([&](int i) { return vshlq_n_s32(x.r[i], N); });
}
template <int N>
FW_INLINE I32x16 shr(I32x16 x) {
  return quads<I32x16>([&](int i) { return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x.r[i]), N)); });
}
template <int N>
FW_INLINE I32x16 sar(I32x16 x) {
  return quads<I32x16>([&](int i) { return vshrq_n_s32(x.r[i], N); });
}
FW_INLINE F32x16 to_f32(I32x16 x) {
  return quads<F32x16>([&](int i) { return vcvtq_f32_s32(x.r[i]); });
}
FW_INLINE I32x16 to_i32(F32x16 x) {  // saturates out of range, where the others give INT32_MIN
  return quads<I32x16>([&](int i) { return vcvtnq_s32_f32(x.r[i]); });
}
FW_INLINE F32x16 as_f32(I32x16 x) {
  return quads<F32x16>([&](int i) { return vreinterpretq_f32_s32(x.r[i]); });
}
FW_INLINE I32x16 as_i32(F32x16 x) {
  return quads<I32x16>([&](int i) { return vreinterpretq_s32_f32(x.r[i]); });
}

FW_INLINE I32x16 load_i8_i32(const int8_t* p) {
  const int8x16_t v = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(v)), high = vmovl_high_s8(v);
  return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}};
}
FW_INLINE I32x16 widen_u16(uint16x8_t low, uint16x8_t high) {
  return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_high_u16(low)),
           vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_s32_u32(vmovl_high_u16(high))}};
}
FW_INLINE I32x16 load_u16(const uint16_t* p) { return widen_u16(vld1q_u16(p), vld1q_u16(p + 8)); }
FW_INLINE I32x16 load_u8_i32(const uint8_t* p) {
  const uint8x16_t v = vld1q_u8(p);
  return widen_u16(vmovl_u8(vget_low_u8(v)), vmovl_high_u8(v));
}
FW_INLINE F32x16 load_i8(const int8_t* p) { return to_f32(load_i8_i32(p)); }
FW_INLINE F32x16 load_u8(const uint8_t* p) { return to_f32(load_u8_i32(p)); }
FW_INLINE F32x16 load_f16(const uint16_t* p) {
  return quads<F32x16>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
FW_INLINE void store_f16(uint16_t* p, F32x16 v) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v.r[i])));
}
FW_INLINE void store_u16(uint16_t* p, I32x16 v) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vmovn_u32(vreinterpretq_u32_s32(v.r[i])));
}
FW_INLINE void store_i8(int8_t* p, I32x16 v) {
  const int16x8_t low = vcombine_s16(vmovn_s32(v.r[0]), vmovn_s32(v.r[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(v.r[2]), vmovn_s32(v.r[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

FW_INLINE B8x64 bload(const void* p) {
  return quads<B8x64>([&](int i) { return vld1q_u8(static_cast<const uint8_t*>(p) + 16 * i); });
}
FW_INLINE void bstore(void* p, B8x64 v) {
  for (int i = 0; i < 4; ++i) vst1q_u8(static_cast<uint8_t*>(p) + 16 * i, v.r[i]);
}
FW_INLINE B8x64 as_bytes(I32x16 x) {
  return quads<B8x64>([&](int i) { return vreinterpretq_u8_s32(x.r[i]); });
}
FW_INLINE I32x16 as_words(B8x64 x) {
  return quads<I32x16>([&](int i) { return vreinterpretq_s32_u8(x.r[i]); });
}
FW_INLINE B8x64 set4(const void* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return quads<B8x64>([&](int) { return vreinterpretq_u8_u32(vdupq_n_u32(word)); });
}
FW_INLINE B8x64 bset1(uint8_t x) {
  return quads<B8x64>([&](int) { return vdupq_n_u8(x); });
}
FW_INLINE B8x64 lookup(const uint8_t* table, B8x64 x) {
  const uint8x16_t values = vld1q_u8(table);
  return quads<B8x64>([&](int i) { return vqtbl1q_u8(values, x.r[i]); });
}

FW_INLINE F32x16 pick(const float* table, I32x16 i) {
  int32_t at[16];
  float found[16];
  istore(at, i);
  for (int lane = 0; lane < 16; ++lane) found[lane] = table[at[lane] & 15];
  return load(found);
}

FW_INLINE I32x16 dot_i8i8(I32x16 acc, B8x64 x, B8x64 y) {
  return quads<I32x16>([&](int i) { return vdotq_s32(acc.r[i], vreinterpretq_s8_u8(x.r[i]), vreinterpretq_s8_u8(y.r[i])); });
}
FW_INLINE I32x16 dot_u7i8(I32x16 acc, B8x64 x, B8x64 y) { return dot_i8i8(acc, x, y); }
// u * s = (u - 128) * s + 128 * s, where u - 128 fits a signed byte; 128 * s is done as 64 * s twice.
FW_INLINE I32x16 dot_u8i8(I32x16 acc, B8x64 x, B8x64 y) {
  const B8x64 sixty_four = bset1(64);
  return dot_i8i8(dot_i8i8(dot_i8i8(acc, bxor(x, bset1(128)), y), sixty_four, y), sixty_four, y);
}
FW_INLINE F32x16 dot_bf16(F32x16 acc, B8x64 x, B8x64 y) {
  const uint32x4_t high = vdupq_n_u32(0xFFFF0000u);
  return quads<F32x16>([&](int i) {
    const uint32x4_t u = vreinterpretq_u32_u8(x.r[i]), w = vreinterpretq_u32_u8(y.r[i]);
    const float32x4_t even = vfmaq_f32(acc.r[i], vreinterpretq_f32_u32(vshlq_n_u32(u, 16)),
                                       vreinterpretq_f32_u32(vshlq_n_u32(w, 16)));
    return vfmaq_f32(even, vreinterpretq_f32_u32(vandq_u32(u, high)), vreinterpretq_f32_u32(vandq_u32(w, high)));
  });
}

}  // namespace flyweight::FW_ISA
