// Products over grouped weights (q8_0, q4_0, q4_k, q6_k) and the rounding of activations to int8.
//
// Each kind is a type that answers four questions about a tile: the codes of four K, the scale of a sub-group, how codes
// multiply, and the exact float32 values.  Loops and the order of summation are in gemm_tile.h.
//
// Error against float64 of the same rounded operands, per output: at most (2 K/sub + 2) * 2^-24 * sum |scale dot| for
// int8 activations (integer dots are exact), K * 2^-24 * sum |w x| for float activations (one fma per K).
#include "gemm_tile.h"

namespace flyweight::FW_ISA {
namespace {

FW_INLINE const uint16_t* halves(const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); }

// Four consecutive K of 16 rows from codes in 32-bit lanes: byte b is K + b.
FW_INLINE void spread(B8x64 codes, F32x16 (&out)[4]) {
  alignas(64) int32_t words[kLanes];
  bstore(words, codes);
  const I32x16 w = iload(words), byte = iset1(255);
  out[0] = to_f32(and_(w, byte));
  out[1] = to_f32(and_(shr<8>(w), byte));
  out[2] = to_f32(and_(shr<16>(w), byte));
  out[3] = to_f32(shr<24>(w));
}

FW_INLINE B8x64 nibbles(const uint8_t* codes, int q) {
  const B8x64 both = bload(codes + q / 2 * 64);
  return q % 2 ? high_nibbles(both) : low_nibbles(both);
}

// Kinds without minima: w = scale * (code - kOffset).
template <class W>
FW_INLINE void plain_values(const uint8_t* tile, int64_t k, F32x16 (&out)[4]) {
  const int64_t g = k / kGroup;
  const int q = static_cast<int>(k % kGroup) / 4;
  spread(W::quad(tile, g, q), out);
  const F32x16 scale = W::scale(tile, g, q * 4 / W::kSub);
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) out[b] = mul(scale, sub(out[b], set1(W::kOffset)));
}

struct Q8 {
  static constexpr Kind kKind = Kind::q8_0;
  static constexpr int kGroupBytes = 544, kRowTiles = 4;
  static constexpr int kSub = 32, kStep = 4;
  static constexpr float kOffset = 128;
  static constexpr bool kMins = false;
  FW_INLINE static const uint8_t* at(const uint8_t* tile, int64_t g) { return tile + g * 544; }
  FW_INLINE static B8x64 quad(const uint8_t* tile, int64_t g, int q) { return bload(at(tile, g) + 32 + 64 * q); }
  FW_INLINE static F32x16 scale(const uint8_t* tile, int64_t g, int) { return load_f16(halves(at(tile, g))); }
#if defined(FW_ISA_AVX512)  // vpdpbusd wants unsigned x signed; the offset comes off through the sum of x
  static constexpr int kZero = 128;
  FW_INLINE static I32x16 dot(I32x16 acc, B8x64 w, B8x64 x) { return dot_u8i8(acc, w, x); }
#else  // signed x signed is cheaper than full-range unsigned
  static constexpr int kZero = 0;
  FW_INLINE static I32x16 dot(I32x16 acc, B8x64 w, B8x64 x) { return dot_i8i8(acc, bxor(w, bset1(128)), x); }
#endif
  FW_INLINE static void values(const uint8_t* tile, int64_t k, F32x16 (&out)[4]) { plain_values<Q8>(tile, k, out); }
};

struct Q4 {
  static constexpr Kind kKind = Kind::q4_0;
  static constexpr int kGroupBytes = 288, kRowTiles = 4;
  static constexpr int kSub = 32, kStep = 4, kZero = 8;
  static constexpr float kOffset = 8;
  static constexpr bool kMins = false;
  FW_INLINE static const uint8_t* at(const uint8_t* tile, int64_t g) { return tile + g * 288; }
  FW_INLINE static B8x64 quad(const uint8_t* tile, int64_t g, int q) { return nibbles(at(tile, g) + 32, q); }
  FW_INLINE static F32x16 scale(const uint8_t* tile, int64_t g, int) { return load_f16(halves(at(tile, g))); }
  FW_INLINE static I32x16 dot(I32x16 acc, B8x64 w, B8x64 x) { return dot_u7i8(acc, w, x); }
  FW_INLINE static void values(const uint8_t* tile, int64_t k, F32x16 (&out)[4]) { plain_values<Q4>(tile, k, out); }
};

struct Q6K {
  static constexpr Kind kKind = Kind::q6_k;
  static constexpr int kGroupBytes = 420, kRowTiles = 4;
  static constexpr int kSub = 16, kStep = 4, kZero = 32;
  static constexpr float kOffset = 32;
  static constexpr bool kMins = false;
  FW_INLINE static const uint8_t* at(const uint8_t* tile, int64_t g) { return tile + g / 8 * 3360; }
  FW_INLINE static B8x64 quad(const uint8_t* tile, int64_t g, int q) {
    const uint8_t* codes = at(tile, g) + 288 + g % 8 * 384;
    const B8x64 high = bload(codes + 256 + q / 4 * 64);
    return bor(nibbles(codes, q), top_pair(high, q % 4));
  }
  // Pair p of every byte, moved to bits 4 and 5.  Shifting whole words is safe: the mask drops what crosses a byte.
  FW_INLINE static B8x64 top_pair(B8x64 v, int p) {
    alignas(64) int32_t words[kLanes];
    bstore(words, v);
    const I32x16 w = iload(words);
    const I32x16 moved = p == 0 ? shl<4>(w) : p == 1 ? shl<2>(w) : p == 2 ? w : shr<2>(w);
    istore(words, and_(moved, iset1(0x30303030)));
    return bload(words);
  }
  FW_INLINE static B8x64 bor(B8x64 a, B8x64 b) { return bxor(a, b); }  // no bit is set in both
  FW_INLINE static F32x16 scale(const uint8_t* tile, int64_t g, int s) {
    const uint8_t* block = at(tile, g);
    const auto* sub = reinterpret_cast<const int8_t*>(block + 32 + (g % 8 * 2 + s) * 16);
    return mul(load_f16(halves(block)), load_i8(sub));
  }
  FW_INLINE static I32x16 dot(I32x16 acc, B8x64 w, B8x64 x) { return dot_u7i8(acc, w, x); }
  FW_INLINE static void values(const uint8_t* tile, int64_t k, F32x16 (&out)[4]) { plain_values<Q6K>(tile, k, out); }
};

struct Q4K {
  static constexpr Kind kKind = Kind::q4_k;
  static constexpr int kGroupBytes = 296, kRowTiles = 4;
  static constexpr int kSub = 32, kStep = 4, kZero = 0;
  static constexpr bool kMins = true;
  FW_INLINE static const uint8_t* at(const uint8_t* tile, int64_t g) { return tile + g / 8 * 2368; }
  FW_INLINE static B8x64 quad(const uint8_t* tile, int64_t g, int q) {
    return nibbles(at(tile, g) + 320 + g % 8 * 256, q);
  }
  FW_INLINE static F32x16 scale(const uint8_t* tile, int64_t g, int) {
    const uint8_t* block = at(tile, g);
    return mul(load_f16(halves(block)), load_u8(block + 64 + g % 8 * 16));
  }
  FW_INLINE static F32x16 minus_min(const uint8_t* tile, int64_t g) {
    const uint8_t* block = at(tile, g);
    return sub(zero(), mul(load_f16(halves(block + 32)), load_u8(block + 192 + g % 8 * 16)));
  }
  FW_INLINE static I32x16 dot(I32x16 acc, B8x64 w, B8x64 x) { return dot_u7i8(acc, w, x); }
  FW_INLINE static void values(const uint8_t* tile, int64_t k, F32x16 (&out)[4]) {
    const int64_t g = k / kGroup;
    spread(quad(tile, g, static_cast<int>(k % kGroup) / 4), out);
    const F32x16 s = scale(tile, g, 0), low = minus_min(tile, g);
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) out[b] = add(mul(s, out[b]), low);  // the product is exact: 11 + 8 + 4 bits
  }
};

template <class W>
void multiply_kind(const LinearJob& job, Range tiles, Range panels) {
  if (job.mode != Mode::i8) return multiply_float_tiles<W>(job, tiles, panels);
  const bool row = job.tokens <= kRowTokens;
  walk(job, row ? kInners<Int8<W>, 1> : kInners<Int8<W>, kTiles>, tiles, panels);
}

// Largest |x| of 32 as bits, so that a NaN wins; and the sum of 16 codes.  Both run once a group on the thread that calls
// `linear` for one token, so they avoid the way through memory of simd.h's reductions.
#if defined(FW_ISA_AVX512) || defined(FW_ISA_AVX2)
FW_INLINE float largest(F32x16 a, F32x16 b) {
  const I32x16 both = imax(as_i32(abs(a)), as_i32(abs(b)));
#if defined(FW_ISA_AVX512)
  const __m256i eight = _mm256_max_epi32(_mm512_castsi512_si256(both.v), _mm512_extracti64x4_epi64(both.v, 1));
#else
  const __m256i eight = _mm256_max_epi32(both.a, both.b);
#endif
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  return _mm_cvtss_f32(_mm_castsi128_ps(four));
}
FW_INLINE int32_t sum16(const uint8_t* codes) {  // vpsadbw adds unsigned bytes: code + 128
  const __m128i offset = _mm_xor_si128(load16(codes), _mm_set1_epi8(static_cast<char>(0x80)));
  const __m128i halves = _mm_sad_epu8(offset, _mm_setzero_si128());
  return _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - 16 * 128;
}
#else
FW_INLINE float largest(F32x16 a, F32x16 b) {
  int32_t lane[kLanes];
  istore(lane, imax(as_i32(abs(a)), as_i32(abs(b))));
  for (int i = 1; i < kLanes; ++i) lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
  float out;
  std::memcpy(&out, lane, 4);
  return out;
}
FW_INLINE int32_t sum16(const uint8_t* codes) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += static_cast<int8_t>(codes[i]);
  return sum;
}
#endif

// One group of 32 into a record (kernels_gemm.h).  A group whose 127 / max is no finite positive number (all zero, denormal,
// or not finite) becomes zero.
FW_INLINE void quantize_group(const float* x, int zero, bool mins, uint8_t* record) {
  const F32x16 a = load(x), b = load(x + 16);
  const float max = largest(a, b), inverse = 127.0f / max;
  const bool usable = inverse > 0 && inverse <= 3.4028234e38f;
  const float scale = usable ? max / 127.0f : 0.0f;
  const F32x16 by = set1(inverse);
  const I32x16 low = usable ? to_i32(mul(a, by)) : izero(), high = usable ? to_i32(mul(b, by)) : izero();
  store_i8(reinterpret_cast<int8_t*>(record), low);
  store_i8(reinterpret_cast<int8_t*>(record + 16), high);
  const int32_t first = sum16(record), second = sum16(record + 16);
  const int32_t sums[3] = {-zero * first, -zero * second, -zero * (first + second)};
  std::memcpy(record + 32, &scale, 4);
  std::memcpy(record + 36, sums, 12);
  if (mins) {
    const float total = scale * static_cast<float>(first + second);
    std::memcpy(record + 44, &total, 4);
  }
}

constexpr int zero_of(Kind kind) {
  switch (kind) {
    case Kind::q8_0: return Q8::kZero;
    case Kind::q4_0: return Q4::kZero;
    case Kind::q6_k: return Q6K::kZero;
    default: return 0;
  }
}

}  // namespace

void fill_i8(const LinearJob& job, int64_t token, int64_t size) {
  const int zero = zero_of(job.kind);
  const bool mins = job.kind == Kind::q4_k;
  uint8_t* record = job.panels + token * token_bytes(Mode::i8, job.k);
  for (int64_t k = 0; k < job.k; k += kGroup)
    for (int64_t t = 0; t < size; ++t, record += kRecord)
      quantize_group(job.x + (token + t) * job.k + k, zero, mins, record);
}

void multiply_grouped(const LinearJob& job, Range tiles, Range panels) {
  switch (job.kind) {
    case Kind::q8_0: return multiply_kind<Q8>(job, tiles, panels);
    case Kind::q4_0: return multiply_kind<Q4>(job, tiles, panels);
    case Kind::q4_k: return multiply_kind<Q4K>(job, tiles, panels);
    case Kind::q6_k: return multiply_kind<Q6K>(job, tiles, panels);
    default: return;
  }
}

void unpack_grouped(const LinearJob& job, int64_t row, float* out) {
  switch (job.kind) {
    case Kind::q8_0: return unpack_row<Q8>(job, row, out);
    case Kind::q4_0: return unpack_row<Q4>(job, row, out);
    case Kind::q4_k: return unpack_row<Q4K>(job, row, out);
    case Kind::q6_k: return unpack_row<Q6K>(job, row, out);
    default: return;
  }
}

}  // namespace flyweight::FW_ISA
