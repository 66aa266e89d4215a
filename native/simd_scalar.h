// Scalar twins: the definition of every primitive of simd.h, one lane after the other.  Included by simd.h only.
#pragma once

namespace flyweight::FW_ISA {

struct F32x16 {
  float lane[16];
};
struct I32x16 {
  int32_t lane[16];
};
struct B8x64 {
  uint8_t byte[64];
};

template <class V, class F>
FW_INLINE V lanes(F f) {
  V v;
  for (int i = 0; i < 16; ++i) v.lane[i] = f(i);
  return v;
}

FW_INLINE F32x16 set1(float x) {
  return lanes<F32x16>([&](int) { return x; });
}
FW_INLINE F32x16 zero() { return set1(0.0f); }
FW_INLINE F32x16 load(const float* p) {
  return lanes<F32x16>([&](int i) { return p[i]; });
}
FW_INLINE F32x16 load_tail(const float* p, int n) {
  return lanes<F32x16>([&](int i) { return i < n ? p[i] : 0.0f; });
}
FW_INLINE void store(float* p, F32x16 v) { std::memcpy(p, v.lane, sizeof v.lane); }
FW_INLINE void store_tail(float* p, F32x16 v, int n) { std::memcpy(p, v.lane, sizeof(float) * static_cast<size_t>(n)); }

FW_INLINE F32x16 add(F32x16 a, F32x16 b) {
  return lanes<F32x16>([&](int i) { return a.lane[i] + b.lane[i]; });
}
FW_INLINE F32x16 sub(F32x16 a, F32x16 b) {
  return lanes<F32x16>([&](int i) { return a.lane[i] - b.lane[i]; });
}
FW_INLINE F32x16 mul(F32x16 a, F32x16 b) {
  return lanes<F32x16>([&](int i) { return a.lane[i] * b.lane[i]; });
}
FW_INLINE F32x16 div(F32x16 a, F32x16 b) {
  return lanes<F32x16>([&](int i) { return a.lane[i] / b.lane[i]; });
}
// A copy for machines with the instruction: std::fma is a call per lane, and most of the time of every loop.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define FW_WITH_FMA __attribute__((target_clones("arch=haswell", "default")))
#else
#define FW_WITH_FMA
#endif
[[maybe_unused]] FW_WITH_FMA static F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {  // a * b + c, rounded once
  F32x16 v;
  for (int i = 0; i < 16; ++i) v.lane[i] = std::fma(a.lane[i], b.lane[i], c.lane[i]);
  return v;
}
FW_INLINE F32x16 min(F32x16 a, F32x16 b) {
  return lanes<F32x16>([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
FW_INLINE F32x16 max(F32x16 a, F32x16 b) {
  return lanes<F32x16>([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
FW_INLINE F32x16 abs(F32x16 v) {
  return lanes<F32x16>([&](int i) { return std::fabs(v.lane[i]); });
}
FW_INLINE F32x16 sqrt(F32x16 v) {
  return lanes<F32x16>([&](int i) { return std::sqrt(v.lane[i]); });
}
FW_INLINE F32x16 rint(F32x16 v) {
  return lanes<F32x16>([&](int i) { return std::nearbyint(v.lane[i]); });
}
FW_INLINE F32x16 select_gt(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
  return lanes<F32x16>([&](int i) { return a.lane[i] > b.lane[i] ? yes.lane[i] : no.lane[i]; });
}
FW_INLINE uint32_t mask_gt(F32x16 a, F32x16 b) {
  uint32_t mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<uint32_t>(a.lane[i] > b.lane[i]) << i;
  return mask;
}

FW_INLINE I32x16 iset1(int32_t x) {
  return lanes<I32x16>([&](int) { return x; });
}
FW_INLINE I32x16 izero() { return iset1(0); }
FW_INLINE I32x16 iload(const int32_t* p) {
  return lanes<I32x16>([&](int i) { return p[i]; });
}
FW_INLINE void istore(int32_t* p, I32x16 v) { std::memcpy(p, v.lane, sizeof v.lane); }

// Integer arithmetic wraps, as the vector units do.
FW_INLINE int32_t wrap(uint32_t x) { return static_cast<int32_t>(x); }
FW_INLINE uint32_t bits(int32_t x) { return static_cast<uint32_t>(x); }
FW_INLINE I32x16 add(I32x16 a, I32x16 b) {
  return lanes<I32x16>([&](int i) { return wrap(bits(a.lane[i]) + bits(b.lane[i])); });
}
FW_INLINE I32x16 sub(I32x16 a, I32x16 b) {
  return lanes<I32x16>([&](int i) { return wrap(bits(a.lane[i]) - bits(b.lane[i])); });
}
FW_INLINE I32x16 mul(I32x16 a, I32x16 b) {
  return lanes<I32x16>([&](int i) { return wrap(bits(a.lane[i]) * bits(b.lane[i])); });
}
FW_INLINE I32x16 and_(I32x16 a, I32x16 b) {
  return lanes<I32x16>([&](int i) { return a.lane[i] & b.lane[i]; });
}
FW_INLINE I32x16 or_(I32x16 a, I32x16 b) {
  return lanes<I32x16>([&](int i) { return a.lane[i] | b.lane[i]; });
}
FW_INLINE I32x16 xor_(I32x16 a, I32x16 b) {
  return lanes<I32x16>([&](int i) { return a.lane[i] ^ b.lane[i]; });
}
FW_INLINE I32x16 imin(I32x16 a, I32x16 b) {
  return lanes<I32x16>([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
FW_INLINE I32x16 imax(I32x16 a, I32x16 b) {
  return lanes<I32x16>([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
template <int N>
FW_INLINE I32x16 shl(I32x16 v) {
  return lanes<I32x16>([&](int i) { return wrap(bits(v.lane[i]) << N); });
}
template <int N>
FW_INLINE I32x16 shr(I32x16 v) {
  return lanes<I32x16>([&](int i) { return wrap(bits(v.lane[i]) >> N); });
}
template <int N>
FW_INLINE I32x16 sar(I32x16 v) {
  return lanes<I32x16>([&](int i) { return v.lane[i] >> N; });
}

FW_INLINE F32x16 to_f32(I32x16 v) {
  return lanes<F32x16>([&](int i) { return static_cast<float>(v.lane[i]); });
}
FW_INLINE int32_t nearest_i32(float x) {  // out of range or NaN: INT32_MIN, as x86 does
  return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int32_t>(std::nearbyint(x)) : INT32_MIN;
}
FW_INLINE I32x16 to_i32(F32x16 v) {
  return lanes<I32x16>([&](int i) { return nearest_i32(v.lane[i]); });
}
FW_INLINE F32x16 as_f32(I32x16 v) {
  F32x16 out;
  std::memcpy(out.lane, v.lane, sizeof out.lane);
  return out;
}
FW_INLINE I32x16 as_i32(F32x16 v) {
  I32x16 out;
  std::memcpy(out.lane, v.lane, sizeof out.lane);
  return out;
}

FW_INLINE I32x16 load_i8_i32(const int8_t* p) {
  return lanes<I32x16>([&](int i) { return static_cast<int32_t>(p[i]); });
}
FW_INLINE I32x16 load_u8_i32(const uint8_t* p) {
  return lanes<I32x16>([&](int i) { return static_cast<int32_t>(p[i]); });
}
FW_INLINE I32x16 load_u16(const uint16_t* p) {
  return lanes<I32x16>([&](int i) { return static_cast<int32_t>(p[i]); });
}
FW_INLINE F32x16 load_i8(const int8_t* p) { return to_f32(load_i8_i32(p)); }
FW_INLINE F32x16 load_u8(const uint8_t* p) { return to_f32(load_u8_i32(p)); }
FW_INLINE void store_u16(uint16_t* p, I32x16 v) {  // lanes hold 0..65535
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint16_t>(v.lane[i]);
}
FW_INLINE void store_i8(int8_t* p, I32x16 v) {  // lanes hold -128..127
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(v.lane[i]);
}

FW_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, rest = h & 0x7FFFu;
  uint32_t u;
  if (rest >= 0x7C00) {  // infinity, NaN (made quiet)
    u = sign | 0x7F800000u | (rest & 0x3FF) << 13 | (rest > 0x7C00 ? 0x400000u : 0u);
  } else if (rest < 0x400) {  // zero, subnormal: rest * 2^-24 is exact
    const float f = static_cast<float>(rest) * 5.9604644775390625e-8f;
    std::memcpy(&u, &f, 4);
    u |= sign;
  } else {
    u = sign | ((rest << 13) + 0x38000000u);
  }
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

FW_INLINE uint16_t float_to_half(float f) {  // nearest even
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint32_t sign = u >> 16 & 0x8000, rest = u & 0x7FFFFFFF;
  uint32_t h;
  if (rest > 0x7F800000) {
    h = 0x7E00 | (rest >> 13 & 0x3FF);
  } else if (rest >= 0x477FF000) {  // rounds to 65536 or more
    h = 0x7C00;
  } else if (rest < 0x38800000) {  // subnormal half: adding 0.5 aligns the bits and rounds them
    float tiny;
    std::memcpy(&tiny, &rest, 4);
    tiny += 0.5f;
    std::memcpy(&h, &tiny, 4);
    h -= 0x3F000000;
  } else {
    h = (rest - 0x38000000 + 0xFFF + (rest >> 13 & 1)) >> 13;
  }
  return static_cast<uint16_t>(sign | h);
}

FW_INLINE F32x16 load_f16(const uint16_t* p) {
  return lanes<F32x16>([&](int i) { return half_to_float(p[i]); });
}
FW_INLINE void store_f16(uint16_t* p, F32x16 v) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_half(v.lane[i]);
}

FW_INLINE B8x64 bload(const void* p) {
  B8x64 v;
  std::memcpy(v.byte, p, 64);
  return v;
}
FW_INLINE void bstore(void* p, B8x64 v) { std::memcpy(p, v.byte, 64); }
FW_INLINE B8x64 as_bytes(I32x16 v) {
  B8x64 out;
  std::memcpy(out.byte, v.lane, sizeof out.byte);
  return out;
}
FW_INLINE I32x16 as_words(B8x64 v) {
  I32x16 out;
  std::memcpy(out.lane, v.byte, sizeof out.lane);
  return out;
}
FW_INLINE B8x64 set4(const void* p) {
  B8x64 v;
  for (int i = 0; i < 16; ++i) std::memcpy(v.byte + 4 * i, p, 4);
  return v;
}
template <class F>
FW_INLINE B8x64 bytes(F f) {
  B8x64 v;
  for (int i = 0; i < 64; ++i) v.byte[i] = static_cast<uint8_t>(f(i));
  return v;
}
FW_INLINE B8x64 bset1(uint8_t x) {
  return bytes([&](int) { return x; });
}
FW_INLINE B8x64 band(B8x64 a, B8x64 b) {
  return bytes([&](int i) { return a.byte[i] & b.byte[i]; });
}
FW_INLINE B8x64 bxor(B8x64 a, B8x64 b) {
  return bytes([&](int i) { return a.byte[i] ^ b.byte[i]; });
}
FW_INLINE B8x64 lookup(const uint8_t* table, B8x64 v) {
  return bytes([&](int i) { return table[v.byte[i] & 15]; });
}
FW_INLINE F32x16 pick(const float* table, I32x16 at) {
  return lanes<F32x16>([&](int i) { return table[at.lane[i] & 15]; });
}

template <class A>
FW_INLINE I32x16 dot4(I32x16 acc, B8x64 a, B8x64 b) {
  for (int i = 0; i < 64; ++i)
    acc.lane[i / 4] = wrap(bits(acc.lane[i / 4]) + bits(static_cast<A>(a.byte[i]) * static_cast<int8_t>(b.byte[i])));
  return acc;
}
// Each lane gains the four products of its bytes: unsigned a, signed b.  Exact for every value.
FW_INLINE I32x16 dot_u8i8(I32x16 acc, B8x64 a, B8x64 b) { return dot4<uint8_t>(acc, a, b); }
// The same where every byte of a is at most 127 (fewer instructions on AVX2).
FW_INLINE I32x16 dot_u7i8(I32x16 acc, B8x64 a, B8x64 b) { return dot4<uint8_t>(acc, a, b); }
// Signed a, signed b; b must not hold -128.
FW_INLINE I32x16 dot_i8i8(I32x16 acc, B8x64 a, B8x64 b) { return dot4<int8_t>(acc, a, b); }

// Each lane holds two bfloat16: acc += a0*b0, then += a1*b1, each an fma.  AVX-512 BF16 does the two in hardware with
// another order and flushes subnormals, so there the bits may differ; each target is consistent with itself.
FW_INLINE F32x16 dot_bf16(F32x16 acc, B8x64 a, B8x64 b) {
  const auto half = [](const B8x64& v, int i) {
    const uint32_t u = static_cast<uint32_t>(v.byte[i]) << 16 | static_cast<uint32_t>(v.byte[i + 1]) << 24;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  };
  return lanes<F32x16>([&](int i) {
    const float first = std::fma(half(a, 4 * i), half(b, 4 * i), acc.lane[i]);
    return std::fma(half(a, 4 * i + 2), half(b, 4 * i + 2), first);
  });
}

}  // namespace flyweight::FW_ISA
