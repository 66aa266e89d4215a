// Products over dense weights (f32, f16, bf16) and float panels, and the table of this target's matrix kernels.
//
// Error against float64 of the same rounded operands, per output: (kFold + K / kFold) * 2^-24 * sum |w x|.
#include "gemm_opened.h"
#include "gemm_tile.h"

#if defined(FW_BASE)  // the target this one builds on: what it does as well is not compiled twice
namespace flyweight::FW_BASE {
extern const GemmKernels gemm_kernels;
}
#endif

namespace flyweight::FW_ISA {
namespace {

#if !defined(FW_BASE)
FW_INLINE const uint16_t* halves(const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); }

struct F32Weight {
  FW_INLINE explicit F32Weight(Kind) {}
  FW_INLINE static constexpr int64_t group_bytes() { return 2048; }
  static constexpr int kRowTiles = 1;
  static constexpr int kStep = 1;
  FW_INLINE static void values(const uint8_t* tile, int64_t k, F32x16 (&out)[1]) {
    out[0] = load(reinterpret_cast<const float*>(tile) + k * kLanes);
  }
};

struct F16Weight {
  FW_INLINE explicit F16Weight(Kind) {}
  FW_INLINE static constexpr int64_t group_bytes() { return 1024; }
  static constexpr int kRowTiles = 2;
  static constexpr int kStep = 1;
  FW_INLINE static void values(const uint8_t* tile, int64_t k, F32x16 (&out)[1]) {
    out[0] = load_f16(halves(tile) + k * kLanes);
  }
};

struct BF16Weight {
  FW_INLINE explicit BF16Weight(Kind) {}
  FW_INLINE static constexpr int64_t group_bytes() { return 1024; }
  static constexpr int kRowTiles = 2;
  static constexpr int kStep = 2;
  FW_INLINE static void values(const uint8_t* tile, int64_t k, F32x16 (&out)[2]) {
    const I32x16 pair = iload(reinterpret_cast<const int32_t*>(tile) + k / 2 * kLanes);
    out[0] = as_f32(shl<16>(pair));
    out[1] = as_f32(and_(pair, iset1(static_cast<int32_t>(0xFFFF0000))));
  }
};

#endif

int64_t tiles_at_once(const LinearJob& job) {
  if (by_blocks(job)) return kSumTiles;
  const bool row = job.mode == Mode::f32 && job.tokens <= kRowTokens;
  return row ? kRowTiles : kTiles;
}

// Where tiles pass over all panels of a chunk, those should stay in L2.  A block reads a panel once for all its tiles, so
// more panels are better: a chunk opens its tiles only once.  On AMX, panels of bf16 share L2 with opened tiles and sums.
int64_t panels_near(const LinearJob& job) {
#if defined(FW_ISA_AMX)
  if (by_blocks(job) && job.mode == Mode::bf16 && !of_floats(job.kind)) return 1 << 20;
#endif
  return by_blocks(job) ? 2 << 20 : 384 << 10;
}

#if defined(FW_BASE)

// Float panels are those of the base, and so are the few tokens that matrix registers do not pay for.
bool shared(const LinearJob& job) {
#if defined(FW_ISA_AMX)
  if (job.mode == Mode::i8) return !by_blocks(job);
#endif
  return job.mode == Mode::f32 || of_floats(job.kind);
}

void multiply(const LinearJob& job, Range tiles, Range panels) {
  if (shared(job)) return FW_BASE::gemm_kernels.multiply(job, tiles, panels);
  return grouped(job.kind) ? multiply_grouped(job, tiles, panels) : multiply_pairs(job, tiles, panels);
}

void unpack(const LinearJob& job, int64_t row, float* out) { FW_BASE::gemm_kernels.unpack(job, row, out); }

#else

void multiply(const LinearJob& job, Range tiles, Range panels) {
  if (job.mode == Mode::i8) return multiply_grouped(job, tiles, panels);
  if (job.mode == Mode::bf16)
    return of_floats(job.kind) ? multiply_codes(job, tiles, panels) : multiply_pairs(job, tiles, panels);
  switch (base_of(job.kind)) {
    case Kind::f32: return multiply_dense<F32Weight>(job, tiles, panels);
    case Kind::f16: return multiply_dense<F16Weight>(job, tiles, panels);
    case Kind::bf16: return multiply_dense<BF16Weight>(job, tiles, panels);
    default: return of_floats(job.kind) ? multiply_codes_floats(job, tiles, panels) : multiply_grouped_floats(job, tiles, panels);
  }
}

void unpack(const LinearJob& job, int64_t row, float* out) {
  switch (base_of(job.kind)) {
    case Kind::f32: return unpack_row<F32Weight>(job, row, out);
    case Kind::f16: return unpack_row<F16Weight>(job, row, out);
    case Kind::bf16: return unpack_row<BF16Weight>(job, row, out);
    default: return of_floats(job.kind) ? unpack_codes(job, row, out) : unpack_grouped(job, row, out);
  }
}

#endif

}  // namespace

int64_t panel_width(const LinearJob& job) {
  if (job.mode == Mode::i8 && !by_blocks(job)) return kRowPanel;
#if defined(FW_ISA_AMX)
  if (job.mode != Mode::f32 && !of_floats(job.kind)) return job.mode == Mode::i8 ? kOpenedTokens : kTileRows;
#endif
  return kTokens;
}

#if defined(FW_PAIRS)
constexpr bool kOpensPairs = true;
#else
constexpr bool kOpensPairs = false;
#endif
extern const GemmKernels gemm_kernels;
const GemmKernels gemm_kernels = {panel_width, tiles_at_once, panels_near, fill,      multiply,
                                  unpack,      probe_read,    probe_dot,   probe_fma, probe_bf16, kOpensPairs};

}  // namespace flyweight::FW_ISA
