// Weights in 16-row tiles and the matrix product over them: kinds, byte layout, and the job a kernel is given.
//
// A weight [N, K] is ceil(N/16) tiles; lane r of tile i is output row 16 i + r, and missing rows of the last tile are
// zero.  A tile runs along K, all 16 rows of a few K side by side, so decoding reads memory strictly forward.  Nothing
// here depends on the instruction set: the same bytes are read by every target.
//
// Dense tiles: f32 K x [16 f32]; f16 K x [16 f16]; bf16 ceil(K/2) x [16 x (k, k+1)], odd K padded by zero.
// Grouped tiles: blocks of 32 K, of a group where that is wider, or of 256 where sub-scales have a super-scale.  A block
// is, 16 rows to each bracket,
//   [super-scale] [super-minimum]  if its kind has them
//   [scale] for every sub-group, then [minimum] for every sub-group if its kind has them (q2_k: both in one byte)
//   the codes of every 32 K, in planes of 8, 4, 2 or 1 bits: 8; 4; 4 + 1; 4 + 2; 2; 2 + 1
// A plane of w bits is w words of 64 bytes: four consecutive K of one row are the bytes of a 32-bit lane (a quad), and
// 8/w quads share a word, the first in the lowest bits.  Signed codes are stored + 128; codes of floats have the second
// and third K of a quad exchanged.
// What belongs to a whole weight is behind its tiles, where its kind says so: a scale a row [16 ceil(N/16) f32], the
// order of the columns [K i32], the scale of the activations [f32, padded to 64 bytes].
// Included by kernels.h.
#pragma once

#include <cstdint>

#include "pool.h"

// Shared between targets, so never compiled out of line (the linker would keep one target's copy for all).
#define FW_SIZE constexpr inline __attribute__((always_inline))

namespace flyweight {

constexpr int kPacking = 1;  // of the bytes above; files of packed tiles name it, so any change to them changes it
constexpr int kLanes = 16;  // output rows of a tile
constexpr int kGroup = 32;  // elements along K that share one activation scale

enum class Kind : int {
  f32, f16, bf16,
  q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, mxfp4, nvfp4,      // a scale to each sub-group
  q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs, int8_k,            // sub-scales, and a super-scale to each 256 K
  u2, u3, u4, u8,          // whole codes, with a scale and a zero point or minimum to each group
  s4, s8,                  // symmetric ones, with a scale to each group or a row
  nf4, fp4, e4m3, e5m2,    // codes of floats, which are opened to bf16; a scale to each group or a row
};
constexpr int kKinds = static_cast<int>(Kind::e5m2) + 1;
enum class Mode : int { f32, bf16, i8 };  // what the activations are rounded to

// How the scale of a sub-group is stored in a block: float16, the exponent of 2^(x - 128), a whole number to be multiplied by
// the super-scale, or the low half of a byte whose high half is the minimum; bfloat16, float32, or no scale at all.
enum class Number : int { f16, exponent, u8, i8, nibble, bf16, f32, none };
// What is taken off a value: nothing; a minimum, stored as scales are; a zero point, of 8 bits or as scales are.
enum class Low : int { none, min, zero, float_zero };
// What a code means: itself, or an entry of a table.
enum class Table : int { none, non_linear, e2m1 };

// A `Kind` also carries, above the 8 bits of its base, the form of a weight that does not follow from the base: K of a
// group, the numbers of scales and of what is taken off, and what is behind the tiles.
struct Form {
  int group = 0;  // 0: no scales but a row's
  Number number = Number::none;
  Low low = Low::none;
  bool rows = false, order = false, input = false;
};
FW_SIZE Kind base_of(Kind kind) { return static_cast<Kind>(static_cast<int>(kind) & 255); }
FW_SIZE Kind with_form(Kind base, const Form& f) {
  return static_cast<Kind>(static_cast<int>(base) | f.group << 8 | static_cast<int>(f.number) << 16 |
                           static_cast<int>(f.low) << 20 | f.rows << 22 | f.order << 23 | f.input << 24);
}
FW_SIZE Form form_of(Kind kind) {
  const int bits = static_cast<int>(kind);
  return {bits >> 8 & 255, static_cast<Number>(bits >> 16 & 15), static_cast<Low>(bits >> 20 & 3),
          (bits >> 22 & 1) != 0, (bits >> 23 & 1) != 0, (bits >> 24 & 1) != 0};
}
FW_SIZE bool grouped(Kind kind) { return base_of(kind) >= Kind::q8_0; }
FW_SIZE bool formed(Kind kind) { return base_of(kind) >= Kind::u2; }    // bases whose groups a `Form` describes
FW_SIZE bool of_floats(Kind kind) { return base_of(kind) >= Kind::nf4; }

// The structure of a grouped kind: ops/grouped.py's WeightLayout.  w = scale * (value - zero) - min.
struct Structure {
  int bits, sub, zero;  // K of a product in integers that has one scale
  Number number;
  bool mins;
  int super_bytes;  // of a super-scale; 0: none
  Table table;
  int group = 0;  // K of a scale, where that is more than `sub`
  Low low = Low::none;

  FW_SIZE int per() const { return group ? group : sub; }
  FW_SIZE int k() const { return super_bytes ? 256 : per() > 32 ? per() : 32; }
  FW_SIZE int groups() const { return number == Number::none ? 0 : k() / per(); }
  FW_SIZE int scale_bytes() const {
    return number == Number::f32 ? 4 : number == Number::f16 || number == Number::bf16 ? 2 : number == Number::none ? 0 : 1;
  }
  FW_SIZE int low_bytes() const { return !mins || number == Number::nibble ? 0 : low == Low::zero ? 1 : scale_bytes(); }
  FW_SIZE bool is_signed() const { return bits == 8; }  // the codes, as kernels read them
  // Where the parts of a block begin.
  FW_SIZE int scales() const { return kLanes * super_bytes * (mins ? 2 : 1); }
  FW_SIZE int minima() const { return scales() + kLanes * groups() * scale_bytes(); }
  FW_SIZE int codes() const { return minima() + kLanes * groups() * low_bytes(); }
  FW_SIZE int bytes() const { return codes() + k() / kGroup * 64 * bits; }
};
FW_SIZE Structure formed_structure(Kind kind, int bits, int zero) {
  const Form form = form_of(kind);
  return {bits, 32, zero, form.number, form.low != Low::none, 0, Table::none, form.group, form.low};
}
FW_SIZE Structure structure_of(Kind kind) {
  using enum Number;
  switch (base_of(kind)) {
    case Kind::q8_0: return {8, 32, 0, f16, false, 0, Table::none};
    case Kind::q4_0: return {4, 32, 8, f16, false, 0, Table::none};
    case Kind::q4_1: return {4, 32, 0, f16, true, 0, Table::none};
    case Kind::q5_0: return {5, 32, 16, f16, false, 0, Table::none};
    case Kind::q5_1: return {5, 32, 0, f16, true, 0, Table::none};
    case Kind::iq4_nl: return {4, 32, 0, f16, false, 0, Table::non_linear};
    case Kind::mxfp4: return {4, 32, 0, exponent, false, 0, Table::e2m1};
    case Kind::nvfp4: return {4, 16, 0, f16, false, 0, Table::e2m1};
    case Kind::q2_k: return {2, 16, 0, nibble, true, 2, Table::none};
    case Kind::q3_k: return {3, 16, 4, i8, false, 2, Table::none};
    case Kind::q4_k: return {4, 32, 0, u8, true, 2, Table::none};
    case Kind::q5_k: return {5, 32, 0, u8, true, 2, Table::none};
    case Kind::q6_k: return {6, 16, 32, i8, false, 2, Table::none};
    case Kind::iq4_xs: return {4, 32, 0, i8, false, 2, Table::non_linear};
    case Kind::int8_k: return {8, 16, 0, i8, false, 4, Table::none};
    case Kind::u2: return formed_structure(kind, 2, 0);
    case Kind::u3: return formed_structure(kind, 3, 0);
    case Kind::u4: return formed_structure(kind, 4, 0);
    case Kind::u8: return formed_structure(kind, 8, 0);
    case Kind::s4: return formed_structure(kind, 4, 8);
    case Kind::s8: return formed_structure(kind, 8, 0);
    case Kind::nf4: case Kind::fp4: return formed_structure(kind, 4, 0);
    case Kind::e4m3: case Kind::e5m2: return formed_structure(kind, 8, 0);
    default: return {};
  }
}
// Bits of the planes that hold a code: 4 + 1, say.
FW_SIZE int low_bits(int bits) { return bits == 8 ? 8 : bits >= 4 ? 4 : 2; }

// K of one packed block, and its bytes for 16 rows.
struct Block {
  int64_t k, bytes;
};
FW_SIZE Block block_of(Kind kind) {
  switch (base_of(kind)) {
    case Kind::f32: return {1, 64};
    case Kind::f16: return {1, 32};
    case Kind::bf16: return {2, 64};
    default: return {structure_of(kind).k(), structure_of(kind).bytes()};
  }
}
FW_SIZE int64_t tile_bytes(Kind kind, int64_t k) {
  const Block b = block_of(kind);
  return (k + b.k - 1) / b.k * b.bytes;
}
FW_SIZE int64_t tile_count(int64_t n) { return (n + kLanes - 1) / kLanes; }

// Bytes of what is behind the tiles, and where: row scales, then the order of the columns, then the activations' scale.
struct Extras {
  int64_t rows, order, input, bytes;
};
FW_SIZE Extras extras_of(Kind kind, int64_t n, int64_t k) {
  const Form form = form_of(kind);
  const int64_t order = form.rows ? tile_count(n) * kLanes * 4 : 0;
  const int64_t input = order + (form.order ? (k * 4 + 63) / 64 * 64 : 0);
  return {0, order, input, input + (form.input ? 64 : 0)};
}
FW_SIZE int64_t weight_bytes(Kind kind, int64_t n, int64_t k) {
  return tile_count(n) * tile_bytes(kind, k) + extras_of(kind, n, k).bytes;
}

// Activations lie in panels of a few tokens, which a kernel walks with one pointer.  A panel of `size` tokens is
//   f32   for every K: [size f32]
//   bf16  for every 32 K: [size x 32 bf16], the last padded by zeros; for grouped weights of whole codes the second and
//         third of every four K are exchanged
//   i8    for every 32 K: [size x 32 i8 codes] [size f32 scales] [size x a] [size x b] [size x c], where a, b and c stand
//         for the first 16, the second 16, and all 32 codes: i32 -zero * sum, which undoes the offset of the weight's
//         codes, or for kinds with minima, which have no offset, f32 scale * sum.
constexpr int kRecord = 48;  // bytes of 32 K of one token, i8
FW_SIZE int64_t token_bytes(Mode mode, int64_t k) {
  if (mode == Mode::i8) return k / kGroup * kRecord;
  return mode == Mode::bf16 ? (k + kGroup - 1) / kGroup * kGroup * 2 : k * 4;
}

// One call of `linear`: out[t, n] = bias[n] + sum over k of x[t, k] * weight[n, k].
// `mode` is how kernels read the panels; rounding to bf16 while multiplying in float32 is Mode::f32 with `round_bf16`.
struct LinearJob {
  const float* x = nullptr;       // [T, K], rows `x_stride` floats apart; 0: K
  const int32_t* rows = nullptr;  // [T]: token t is row rows[t] of x; null: row t
  const uint8_t* weight = nullptr;
  const float* bias = nullptr;  // [N] or null
  float* out = nullptr;         // [T, N], rows `stride` floats apart
  uint8_t* panels = nullptr;    // scratch, T * token_bytes(mode, K)
  int64_t tokens = 0, n = 0, k = 0, stride = 0, x_stride = 0;
  Kind kind = Kind::f32;
  Mode mode = Mode::f32;
  bool round_bf16 = false;
  bool filled = false;  // the panels hold x already, or will by an earlier job of the call
};

// What is behind the tiles of a job's weight; null where there is none.
FW_SIZE const uint8_t* behind(const LinearJob& job) { return job.weight + tile_count(job.n) * tile_bytes(job.kind, job.k); }
inline __attribute__((always_inline)) const float* row_scales_of(const LinearJob& job) {
  return form_of(job.kind).rows ? reinterpret_cast<const float*>(behind(job)) : nullptr;
}
inline __attribute__((always_inline)) const int32_t* order_of(const LinearJob& job) {
  const Extras extras = extras_of(job.kind, job.n, job.k);
  return form_of(job.kind).order ? reinterpret_cast<const int32_t*>(behind(job) + extras.order) : nullptr;
}
inline __attribute__((always_inline)) float input_scale_of(const LinearJob& job) {
  const Extras extras = extras_of(job.kind, job.n, job.k);
  return form_of(job.kind).input ? *reinterpret_cast<const float*>(behind(job) + extras.input) : 0;
}

FW_SIZE const float* row_of(const LinearJob& job, int64_t token) {
  return job.x + (job.rows ? job.rows[token] : token) * (job.x_stride ? job.x_stride : job.k);
}

// Tokens are shared out evenly over panels of at most `width`: panel p holds tokens [panel_start(p), panel_start(p+1)).
FW_SIZE int64_t panel_count(int64_t tokens, int64_t width) { return (tokens + width - 1) / width; }
FW_SIZE int64_t panel_start(int64_t tokens, int64_t panels, int64_t p) { return tokens * p / panels; }

struct Range {
  int64_t begin, end;
};

// The kernels of one instruction set.  They do not know the pool: linear.cpp cuts the work.
struct GemmKernels {
  int64_t (*panel_width)(const LinearJob& job);    // most tokens a panel may hold
  int64_t (*tiles_at_once)(const LinearJob& job);  // best divisor of a run of tiles
  int64_t (*panels_near)(const LinearJob& job);    // bytes of panels a run of tiles may pass over
  void (*fill)(const LinearJob& job, Range panels, Range k);      // x -> panels, k whole groups of 32 or to the end
  void (*multiply)(const LinearJob& job, Range tiles, Range panels);
  void (*unpack)(const LinearJob& job, int64_t row, float* out);  // one weight row [K], exactly as the format defines
  // probe.cpp: what the machine can do at most; the results only keep the work alive
  int32_t (*read)(const uint8_t* data, int64_t size);  // size a multiple of 512
  int32_t (*dot)(int64_t rounds);                      // kDotOps int8 operations a round
  float (*fma)(int64_t rounds);                        // kFmaOps float32 operations a round
  float (*bf16)(int64_t rounds);                       // kBf16Ops bf16 operations a round
  bool opens_pairs;  // whether grouped weights of whole codes take bf16 panels
};
constexpr int64_t kDotOps = 1536, kFmaOps = 384, kBf16Ops = 768;

// How linear.cpp shares out one product of a call: runs of tiles by layers of panels, and panels to be filled in slices of K.
struct Cut {
  int64_t step, runs, depth, panels;  // tiles not to be parted, chunks side by side; panels of a chunk, of the product
  int64_t slices;                     // of a panel
  int64_t first_slice, first_chunk;   // numbers in the whole call
};

// Whole products, each of one token or more: workers fill the panels together, then take the tiles of all of them.  A
// chunk's bits do not depend on who computes it.  `cuts` is scratch, one a job.
void linear(Pool& pool, const GemmKernels& kernels, const LinearJob* jobs, int64_t count, Cut* cuts);
inline void linear(Pool& pool, const GemmKernels& kernels, const LinearJob& job) {
  Cut cut;
  linear(pool, kernels, &job, 1, &cut);
}

// Rows [row, row + rows) of a weight, in canonical form: dense values in `codes`, or the fields of GroupedWeight.
struct PackPart {
  const void* codes = nullptr;
  const void* scales = nullptr;
  const void* mins = nullptr;  // or zero points
  const void* super_scales = nullptr;
  const void* super_mins = nullptr;
  int64_t row = 0, rows = 0, k = 0;
  Kind kind = Kind::f32;
};
void pack(Pool& pool, const PackPart& part, uint8_t* weight);
// The same from blocks of a file (blocks.h): `codes` are their bytes, the other fields are not looked at.
void pack_blocks(Pool& pool, const PackPart& part, uint8_t* weight);

}  // namespace flyweight
