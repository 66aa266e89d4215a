// Activations into the panels of kernels_gemm.h, rounded to what the products multiply with.
//
// Every token's numbers depend on that token's row alone.
#include "gemm_tile.h"

namespace flyweight::FW_ISA {
namespace {

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

// The codes of 32 numbers, by the largest of them; returns their scale.  Where 127 / max is no finite positive number (all
// zero, denormal, or not finite) they become zero.
FW_INLINE float quantize_by_largest(F32x16 a, F32x16 b, int8_t* codes) {
  const float max = largest(a, b), inverse = 127.0f / max;
  const bool usable = inverse > 0 && inverse <= 3.4028234e38f;
  const F32x16 by = set1(inverse);
  store_i8(codes, usable ? to_i32(mul(a, by)) : izero());
  store_i8(codes + 16, usable ? to_i32(mul(b, by)) : izero());
  return usable ? max / 127.0f : 0.0f;
}

// The codes of 16 numbers by a calibrated scale: the nearest of -127 to 127 (products may negate them); NaN becomes 127.
FW_INLINE void quantize_by(float scale, F32x16 x, int8_t* codes) {
  store_i8(codes, to_i32(max(set1(-127), min(rint(div(x, set1(scale))), set1(127)))));
}

// One group of 32 of token t of a panel; `calibrated` is the scale of all, 0 where each group has its own.
FW_INLINE void quantize_group(const float* x, float calibrated, const CodeSums& sums, uint8_t* group, int64_t t,
                              int64_t size) {
  const F32x16 a = load(x), b = load(x + 16);
  uint8_t* codes = group + kGroup * t;
  auto* to = reinterpret_cast<int8_t*>(codes);
  float scale = calibrated;
  if (calibrated > 0) {
    quantize_by(calibrated, a, to);
    quantize_by(calibrated, b, to + 16);
  } else {
    scale = quantize_by_largest(a, b, to);
  }
  const int32_t first = sum16(codes), second = sum16(codes + 16), all[3] = {first, second, first + second};
  uint8_t* word = group + kGroup * size + 4 * t;
  std::memcpy(word, &scale, 4);
  for (const int32_t sum : all) {
    word += 4 * size;
    const int32_t offset = -sums.zero * sum;
    const float total = scale * static_cast<float>(sum);
    std::memcpy(word, sums.scaled ? static_cast<const void*>(&total) : &offset, 4);
  }
}

// Elements of a row in the order of the weight's columns.
class Columns {
 public:
  explicit Columns(const LinearJob& job) : order_(order_of(job)), k_(job.k) {}

  // Elements [k, k + Count): in the row itself, or taken to `room`; zeros beyond the last.
  template <int Count>
  FW_INLINE const float* take(const float* x, int64_t k, float (&room)[Count]) const {
    if (!order_) return x + k;
    for (int i = 0; i < Count; ++i) room[i] = k + i < k_ ? x[order_[k + i]] : 0;
    return room;
  }
  FW_INLINE float one(const float* x, int64_t k) const { return x[order_ ? order_[k] : k]; }

 private:
  const int32_t* order_;
  int64_t k_;
};

void fill_i8(const LinearJob& job, int64_t token, int64_t size, Range k) {
  const CodeSums sums = code_sums(job.kind);
  const float calibrated = input_scale_of(job);
  const Columns columns(job);
  uint8_t* group = job.panels + token * token_bytes(Mode::i8, job.k);
  for (int64_t t = 0; t < size; ++t) {
    const float* x = row_of(job, token + t);
    for (int64_t g = k.begin / kGroup; g < k.end / kGroup; ++g) {
      float some[kGroup];
      quantize_group(columns.take(x, g * kGroup, some), calibrated, sums, group + g * kRecord * size, t, size);
    }
  }
}

// float32 to the nearest bfloat16, ties to even; NaN stays NaN.
FW_INLINE uint32_t bf16_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if (x != x) return u >> 16 | 0x40;
  return (u + 0x7FFF + (u >> 16 & 1)) >> 16;
}

void fill_f32(const LinearJob& job, int64_t token, int64_t size, Range k) {
  const Columns columns(job);
  uint8_t* word = job.panels + token * token_bytes(Mode::f32, job.k) + k.begin * size * 4;
  for (int64_t at = k.begin; at < k.end; ++at)
    for (int64_t t = 0; t < size; ++t, word += 4) {
      const float x = columns.one(row_of(job, token + t), at);
      const uint32_t rounded = bf16_of(x) << 16;
      std::memcpy(word, job.round_bf16 ? static_cast<const void*>(&rounded) : &x, 4);
    }
}

// The second and third of every four, exchanged: as gemm_pairs.h opens codes.
FW_INLINE F32x16 exchange(F32x16 x) {
#if defined(FW_ISA_AMX)
  return {_mm512_shuffle_ps(x.v, x.v, _MM_SHUFFLE(3, 1, 2, 0))};
#else
  return x;
#endif
}

// 32 elements of a token from `at` on.
FW_INLINE void pack_group(const Columns& columns, const float* x, int64_t at, bool exchanged, uint8_t* to) {
  float some[kGroup];
  const float* from = columns.take(x, at, some);
  const F32x16 a = load(from), b = load(from + 16);
  bstore(to, exchanged ? pack_bf16(exchange(a), exchange(b)) : pack_bf16(a, b));
}

// Fewer of them, filled up with zeros.
void pack_last(const LinearJob& job, const float* x, int64_t at, bool exchanged, uint8_t* to) {
  float some[kGroup] = {};
  for (int64_t i = 0; at + i < job.k; ++i) some[i] = Columns(job).one(x, at + i);
  const F32x16 a = load(some), b = load(some + 16);
  bstore(to, exchanged ? pack_bf16(exchange(a), exchange(b)) : pack_bf16(a, b));
}

// Group by group, so that lines are written in their order.
void fill_bf16(const LinearJob& job, int64_t token, int64_t size, Range k) {
  const bool exchanged = grouped(job.kind) && !of_floats(job.kind);
  const Columns columns(job);
  uint8_t* to = job.panels + token * token_bytes(Mode::bf16, job.k) + k.begin * size * 2;
  for (int64_t at = k.begin; at < k.end; at += kGroup)
    for (int64_t t = 0; t < size; ++t, to += 64) {
      const float* x = row_of(job, token + t);
      at + kGroup <= job.k ? pack_group(columns, x, at, exchanged, to) : pack_last(job, x, at, exchanged, to);
    }
}

}  // namespace

void fill(const LinearJob& job, Range panels, Range k) {
  const int64_t count = panel_count(job.tokens, panel_width(job));
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    const int64_t token = panel_start(job.tokens, count, p), size = panel_start(job.tokens, count, p + 1) - token;
    switch (job.mode) {
      case Mode::f32: fill_f32(job, token, size, k); break;
      case Mode::bf16: fill_bf16(job, token, size, k); break;
      case Mode::i8: fill_i8(job, token, size, k); break;
    }
  }
}

}  // namespace flyweight::FW_ISA
