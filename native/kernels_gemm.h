// Weights in 16-row tiles and the matrix product over them: kinds, byte layout, and the job a kernel is given.
//
// A weight [N, K] is ceil(N/16) tiles; lane r of tile i is output row 16 i + r, and missing rows of the last tile are
// zero.  A tile runs along K, all 16 rows of a few K side by side, so decoding reads memory strictly forward.  Nothing
// here depends on the instruction set: the same bytes are read by every target.
//
// Tile layout by kind (q = four consecutive K of one row in one 32-bit lane, 16 lanes = 64 bytes):
//   f32   K x [16 f32]            f16  K x [16 f16]            bf16  ceil(K/2) x [16 x (k, k+1)], odd K padded by zero
//   q8_0  per 32 K: [16 f16 scale][8 q of code + 128]                                        544 B, as the file
//   q4_0  per 32 K: [16 f16 scale][4 x 64 B; low nibbles q = 2z, high nibbles q = 2z + 1]     288 B, as the file
//   q4_k  per 256 K: [16 f16 d][16 f16 dmin][8 x 16 u8 scale][8 x 16 u8 min][8 x 256 B nibbles]  2368 B (file 2304)
//   q6_k  per 256 K: [16 f16 d][16 x 16 i8 scale][8 x (256 B low nibbles, 128 B high pairs)]     3360 B, as the file
//         high pairs: byte of 64-byte word h holds the two top bits of q = 4h, 4h+1, 4h+2, 4h+3 from bit 0 up
// Included by kernels.h.
#pragma once

#include <cstdint>

#include "pool.h"

// Shared between targets, so never compiled out of line (the linker would keep one target's copy for all).
#define FW_SIZE constexpr inline __attribute__((always_inline))

namespace flyweight {

constexpr int kLanes = 16;  // output rows of a tile
constexpr int kGroup = 32;  // elements along K that share one activation scale

enum class Kind : int { f32, f16, bf16, q8_0, q4_0, q4_k, q6_k };
enum class Mode : int { f32, bf16, i8 };  // what the activations are rounded to

FW_SIZE bool grouped(Kind kind) { return kind >= Kind::q8_0; }

// K of one packed block, and its bytes for 16 rows.
struct Block {
  int64_t k, bytes;
};
FW_SIZE Block block_of(Kind kind) {
  switch (kind) {
    case Kind::f32: return {1, 64};
    case Kind::f16: return {1, 32};
    case Kind::bf16: return {2, 64};
    case Kind::q8_0: return {32, 544};
    case Kind::q4_0: return {32, 288};
    case Kind::q4_k: return {256, 2368};
    case Kind::q6_k: return {256, 3360};
  }
  return {1, 0};
}
FW_SIZE int64_t tile_bytes(Kind kind, int64_t k) {
  const Block b = block_of(kind);
  return (k + b.k - 1) / b.k * b.bytes;
}
FW_SIZE int64_t tile_count(int64_t n) { return (n + kLanes - 1) / kLanes; }

// Bytes one token's K activations take in a panel: f32 words; pairs of bf16; or per 32 K a record of
// [32 i8 codes][f32 scale][i32 a][i32 b][i32 or f32 c], where (a, b, c) undo the offset of the weight's codes:
// a, b are -zero * (sum of the first, second 16 codes), c is -zero * (sum of all 32), for q4_k scale * (sum of all 32).
constexpr int kRecord = 48;
FW_SIZE int64_t token_bytes(Mode mode, int64_t k) {
  if (mode == Mode::i8) return k / kGroup * kRecord;
  return mode == Mode::bf16 ? (k + 1) / 2 * 4 : k * 4;
}

// One call of `linear`: out[t, n] = bias[n] + sum over k of x[t, k] * weight[n, k].
// `mode` is how kernels read the panels; rounding to bf16 while multiplying in float32 is Mode::f32 with `round_bf16`.
struct LinearJob {
  const float* x = nullptr;  // [T, K], contiguous
  const uint8_t* weight = nullptr;
  const float* bias = nullptr;  // [N] or null
  float* out = nullptr;         // [T, N], rows `stride` floats apart
  uint8_t* panels = nullptr;    // scratch, T * token_bytes(mode, K)
  int64_t tokens = 0, n = 0, k = 0, stride = 0;
  Kind kind = Kind::f32;
  Mode mode = Mode::f32;
  bool round_bf16 = false;
};

// Tokens are shared out evenly over panels of at most `width`: panel p holds tokens [panel_start(p), panel_start(p+1)),
// interleaved word by word (record by record for i8) so that a kernel walks one pointer.
FW_SIZE int64_t panel_count(int64_t tokens, int64_t width) { return (tokens + width - 1) / width; }
FW_SIZE int64_t panel_start(int64_t tokens, int64_t panels, int64_t p) { return tokens * p / panels; }

struct Range {
  int64_t begin, end;
};

// The kernels of one instruction set.  They do not know the pool: linear.cpp cuts the work.
struct GemmKernels {
  int64_t (*panel_width)();                   // most tokens a panel may hold
  int64_t (*tiles_at_once)(const LinearJob& job);  // best divisor of a run of tiles
  void (*fill)(const LinearJob& job, Range panels);               // x -> panels
  void (*multiply)(const LinearJob& job, Range tiles, Range panels);
  void (*unpack)(const LinearJob& job, int64_t row, float* out);  // one weight row [K], exactly as the format defines
  // probe.cpp: what the machine can do at most; the results only keep the work alive
  int32_t (*read)(const uint8_t* data, int64_t size);  // size a multiple of 512
  int32_t (*dot)(int64_t rounds);                      // kDotOps int8 operations a round
  float (*fma)(int64_t rounds);                        // kFmaOps float32 operations a round
};
constexpr int64_t kDotOps = 1536, kFmaOps = 384;

// The whole product: fills the panels, then hands out runs of tiles.  A chunk's bits do not depend on who computes it.
void linear(Pool& pool, const GemmKernels& kernels, const LinearJob& job);

// Rows [row, row + rows) of a weight, in canonical form: dense values in `codes`, or the fields of GroupedWeight.
struct PackPart {
  const void* codes = nullptr;
  const void* scales = nullptr;
  const uint8_t* mins = nullptr;
  const uint16_t* super_scales = nullptr;
  const uint16_t* super_mins = nullptr;
  int64_t row = 0, rows = 0, k = 0;
  Kind kind = Kind::f32;
};
void pack(Pool& pool, const PackPart& part, uint8_t* weight);

}  // namespace flyweight
