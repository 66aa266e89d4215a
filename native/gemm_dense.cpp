// Products over dense weights (f32, f16, bf16), float and bf16 panels, and the table of this target's matrix kernels.
//
// Error against float64 of the same rounded operands, per output: K * 2^-24 * sum |w x| for float panels (one fma per
// K).  bf16 x bf16 takes two K at a time through dot_bf16 (simd.h): the same bound, plus subnormals flushed on AVX-512.
#include "gemm_tile.h"

namespace flyweight::FW_ISA {
namespace {

FW_INLINE const uint16_t* halves(const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); }

struct F32Weight {
  static constexpr Kind kKind = Kind::f32;
  static constexpr int kGroupBytes = 2048, kRowTiles = 1;
  static constexpr int kStep = 1;
  FW_INLINE static void values(const uint8_t* tile, int64_t k, F32x16 (&out)[1]) {
    out[0] = load(reinterpret_cast<const float*>(tile) + k * kLanes);
  }
};

struct F16Weight {
  static constexpr Kind kKind = Kind::f16;
  static constexpr int kGroupBytes = 1024, kRowTiles = 2;
  static constexpr int kStep = 1;
  FW_INLINE static void values(const uint8_t* tile, int64_t k, F32x16 (&out)[1]) {
    out[0] = load_f16(halves(tile) + k * kLanes);
  }
};

struct BF16Weight {
  static constexpr Kind kKind = Kind::bf16;
  static constexpr int kGroupBytes = 1024, kRowTiles = 2;
  static constexpr int kStep = 2;
  FW_INLINE static void values(const uint8_t* tile, int64_t k, F32x16 (&out)[2]) {
    const I32x16 pair = iload(reinterpret_cast<const int32_t*>(tile) + k / 2 * kLanes);
    out[0] = as_f32(shl<16>(pair));
    out[1] = as_f32(and_(pair, iset1(static_cast<int32_t>(0xFFFF0000))));
  }
};

// bf16 weights and activations: acc = dot_bf16(acc, pair of w, pair of x), K upward.
template <int Tiles, int Tokens>
void multiply_bf16(const LinearJob& job, const Spot& at) {
  const int64_t bytes = tile_bytes(Kind::bf16, job.k);
  F32x16 acc[Tiles][Tokens];
#pragma GCC unroll 8
  for (int i = 0; i < Tiles; ++i)
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; ++t) acc[i][t] = zero();
  const uint8_t* x = at.panel;
  for (int64_t pair = 0; pair < (job.k + 1) / 2; ++pair, x += 4 * Tokens) {
    if (at.ahead) prefetch(at.tile + at.ahead + 64 * Tiles * pair, 64 * Tiles);
    B8x64 w[Tiles];
#pragma GCC unroll 8
    for (int i = 0; i < Tiles; ++i) w[i] = bload(at.tile + bytes * i + 64 * pair);
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; ++t) {
      const B8x64 xs = set4(x + 4 * t);
#pragma GCC unroll 8
      for (int i = 0; i < Tiles; ++i) acc[i][t] = dot_bf16(acc[i][t], w[i], xs);
    }
  }
  finish<Tiles, Tokens>(job, at, acc);
}

struct BF16Pairs {
  template <int Tiles, int Tokens>
  static void run(const LinearJob& job, const Spot& at) {
    multiply_bf16<Tiles, Tokens>(job, at);
  }
};

// float32 to the nearest bfloat16, ties to even; NaN stays NaN.
FW_INLINE uint32_t bf16_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if (x != x) return u >> 16 | 0x40;
  return (u + 0x7FFF + (u >> 16 & 1)) >> 16;
}

void fill_f32(const LinearJob& job, int64_t token, int64_t size) {
  uint8_t* word = job.panels + token * token_bytes(Mode::f32, job.k);
  for (int64_t k = 0; k < job.k; ++k)
    for (int64_t t = 0; t < size; ++t, word += 4) {
      const float x = row_of(job, token + t)[k];
      const uint32_t rounded = bf16_of(x) << 16;
      std::memcpy(word, job.round_bf16 ? static_cast<const void*>(&rounded) : &x, 4);
    }
}

void fill_bf16(const LinearJob& job, int64_t token, int64_t size) {
  uint8_t* word = job.panels + token * token_bytes(Mode::bf16, job.k);
  for (int64_t k = 0; k < job.k; k += 2)
    for (int64_t t = 0; t < size; ++t, word += 4) {
      const float* x = row_of(job, token + t) + k;
      const uint32_t pair = bf16_of(x[0]) | (k + 1 < job.k ? bf16_of(x[1]) << 16 : 0);
      std::memcpy(word, &pair, 4);
    }
}

int64_t panel_width() { return kTokens; }
int64_t tiles_at_once(const LinearJob& job) { return job.mode == Mode::f32 && job.tokens <= kRowTokens ? kRowTiles : kTiles; }

void fill(const LinearJob& job, Range panels) {
  const int64_t count = panel_count(job.tokens, kTokens);
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    const int64_t token = panel_start(job.tokens, count, p), size = panel_start(job.tokens, count, p + 1) - token;
    switch (job.mode) {
      case Mode::f32: fill_f32(job, token, size); break;
      case Mode::bf16: fill_bf16(job, token, size); break;
      case Mode::i8: fill_i8(job, token, size); break;
    }
  }
}

void multiply(const LinearJob& job, Range tiles, Range panels) {
  switch (job.kind) {
    case Kind::f32: return multiply_float_tiles<F32Weight>(job, tiles, panels);
    case Kind::f16: return multiply_float_tiles<F16Weight>(job, tiles, panels);
    case Kind::bf16:
      if (job.mode == Mode::bf16)
        return walk(job, job.tokens <= kRowTokens ? kInners<BF16Pairs, 1> : kInners<BF16Pairs, kTiles>, tiles, panels);
      return multiply_float_tiles<BF16Weight>(job, tiles, panels);
    default: return multiply_grouped(job, tiles, panels);
  }
}

void unpack(const LinearJob& job, int64_t row, float* out) {
  switch (job.kind) {
    case Kind::f32: return unpack_row<F32Weight>(job, row, out);
    case Kind::f16: return unpack_row<F16Weight>(job, row, out);
    case Kind::bf16: return unpack_row<BF16Weight>(job, row, out);
    default: return unpack_grouped(job, row, out);
  }
}

}  // namespace

extern const GemmKernels gemm_kernels;
const GemmKernels gemm_kernels = {panel_width, tiles_at_once, fill,      multiply,
                                  unpack,      probe_read,    probe_dot, probe_fma};

}  // namespace flyweight::FW_ISA
