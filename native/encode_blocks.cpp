// Float rows to the blocks of GGUF's quantised types: loads sixteen blocks, one a lane, searches (encode_search.h,
// encode_super.h), and packs each lane's codes (encode_pack.h).
//
// A block's bytes depend on its own values and on the importance of its columns, never on its neighbours or on how the
// rows are cut.  Knows no files and no recipes; the caller has checked that the values are finite.
#include "encode_pack.h"
#include "encode_super.h"
#include "kernels.h"

namespace flyweight::FW_ISA {
namespace {

// Found by trying: finer or wider steps lower the error of random and of trained weights by less than 1 in 1000.
constexpr Reach kEight{-0.3f, 0.15f, 5, 1}, kFine{-1.2f, 0.2f, 12, 2}, kCoarse{-1.2f, 0.15f, 14, 3};

// Sixteen blocks of N elements: element k of lane l at [k * 16 + l].
template <int N>
struct Batch {
  alignas(64) float x[N * kLanes];
  alignas(64) float w[N * kLanes];
  alignas(64) uint8_t codes[N * kLanes];
};

template <int N>
void load_lane(const EncodeJob& job, int64_t block, int lane, Batch<N>& b) {
  if (job.x != nullptr) {
    const float* x = job.x + block * N;
    for (int k = 0; k < N; ++k) b.x[k * kLanes + lane] = x[k];
  } else {
    const uint16_t* bits = job.bits + block * N;
    for (int k = 0; k < N; ++k) {
      const uint32_t wide = static_cast<uint32_t>(bits[k]) << 16;
      std::memcpy(&b.x[k * kLanes + lane], &wide, 4);
    }
  }
  if (job.importance != nullptr) {
    const float* w = job.importance + block % (job.k / N) * N;
    for (int k = 0; k < N; ++k) b.w[k * kLanes + lane] = w[k];
  }
}

// Blocks past the last are the last again, and are not stored.
template <int N>
void load_batch(const EncodeJob& job, int64_t first, int64_t blocks, Batch<N>& b) {
  for (int lane = 0; lane < kLanes; ++lane) load_lane(job, first + lane < blocks ? first + lane : blocks - 1, lane, b);
  if (job.importance == nullptr)
    for (int k = 0; k < N; ++k) store(b.w + k * kLanes, set1(1.0f));
}

FW_INLINE void store_codes(uint8_t* out, I32x16 codes) {
  store_i8(reinterpret_cast<int8_t*>(out), sub(codes, iset1(128)));  // lanes 0..255, as signed bytes
}

template <int N, class Grid>
FW_INLINE void make_codes(Batch<N>& b, int from, int n, const Grid& grid, F32x16 scale, F32x16 minimum) {
  const F32x16 inverse = invert(scale);
  for (int k = from; k < from + n; ++k) {
    const I32x16 code = grid.code(mul(add(at(b.x, k), minimum), inverse));
    store_codes(b.codes + k * kLanes, code);
  }
}

template <int N>
FW_INLINE void take_codes(const Batch<N>& b, int lane, uint8_t* codes) {
  for (int k = 0; k < N; ++k) codes[k] = static_cast<uint8_t>(b.codes[k * kLanes + lane] ^ 128);
}

// f(lane, out) for each block of the batch that there is.
template <class F>
FW_INLINE void each_block(const EncodeJob& job, int64_t first, int64_t blocks, F f) {
  const int64_t nbytes = block_bytes(job.kind);
  for (int lane = 0; lane < kLanes && first + lane < blocks; ++lane) f(lane, job.out + (first + lane) * nbytes);
}

void put_short(BlockKind kind, const uint8_t* codes, uint16_t scale, uint16_t base, uint8_t* out) {
  const bool based = kind == BlockKind::q4_1 || kind == BlockKind::q5_1;
  put_half(out, scale);
  out += 2;
  if (based) put_half(out, base), out += 2;
  if (kind == BlockKind::q8_0) {  // the grid begins at -127
    for (int k = 0; k < 32; ++k) out[k] = as_byte(codes[k] - 127);
    return;
  }
  if (kind == BlockKind::q5_0 || kind == BlockKind::q5_1) put_fifths(out, codes), out += 4;
  put_nibbles(out, codes, 16);
}

// Types with a float16 scale a block of 32.
template <class Grid>
void encode_scaled(const EncodeJob& job, int64_t first, int64_t blocks, const Grid& grid, Reach reach) {
  Batch<32> b;
  load_batch(job, first, blocks, b);
  const F32x16 scale = fit_scale(b.x, b.w, 32, grid, reach).scale;
  uint16_t scales[kLanes];
  store_f16(scales, scale);
  make_codes(b, 0, 32, grid, load_f16(scales), zero());
  each_block(job, first, blocks, [&](int lane, uint8_t* out) {
    uint8_t codes[32];
    take_codes(b, lane, codes);
    put_short(job.kind, codes, scales[lane], 0, out);
  });
}

// Types with a float16 minimum too.
void encode_lines(const EncodeJob& job, int64_t first, int64_t blocks, float high) {
  Batch<32> b;
  load_batch(job, first, blocks, b);
  Mass mass;
  const Line line = fit_line<false>(b.x, b.w, 32, high, kFine, mass);
  uint16_t scales[kLanes], bases[kLanes];
  store_f16(scales, line.scale), store_f16(bases, line.base);
  make_codes(b, 0, 32, Whole{0.0f, high}, load_f16(scales), negate(load_f16(bases)));
  each_block(job, first, blocks, [&](int lane, uint8_t* out) {
    uint8_t codes[32];
    take_codes(b, lane, codes);
    put_short(job.kind, codes, scales[lane], bases[lane], out);
  });
}

// A super-block's numbers, lane by lane.
struct Numbers {
  uint16_t scale[kLanes], least[kLanes];
  int32_t scales[16][kLanes] = {}, mins[16][kLanes] = {};

  Numbers(const Super& found, int groups, bool with_minima) {
    store_f16(scale, found.scale), store_f16(least, found.least);
    for (int g = 0; g < groups; ++g) {
      istore(scales[g], to_i32(found.scales[g]));
      if (with_minima) istore(mins[g], to_i32(found.mins[g]));
    }
  }

  void take(int lane, int groups, int* to_scales, int* to_mins) const {
    for (int g = 0; g < groups; ++g) {
      to_scales[g] = scales[g][lane];
      if (to_mins != nullptr) to_mins[g] = mins[g][lane];
    }
  }
};

void put_signed(BlockKind kind, const uint8_t* codes, const int* scales, uint16_t scale, uint8_t* out) {
  if (kind == BlockKind::q3_k) {
    put_planes(out, codes, 256, 2, 1);
    put_planes(out + 32, codes, 256, 0, 2);
    put_signed_scales(out + 96, scales);
    put_half(out + 108, scale);
  } else if (kind == BlockKind::q6_k) {
    for (int half = 0; half < 2; ++half) put_nibbles(out + 64 * half, codes + 128 * half, 64);
    put_planes(out + 128, codes, 256, 4, 2);
    for (int g = 0; g < 16; ++g) out[192 + g] = as_byte(scales[g]);
    put_half(out + 208, scale);
  } else {
    put_half(out, scale);
    put_split_scales(out + 2, scales);
    for (int g = 0; g < 8; ++g) put_nibbles(out + 8 + 16 * g, codes + 32 * g, 16);
  }
}

template <class Grid>
void encode_signed(const EncodeJob& job, int64_t first, int64_t blocks, int n, const Grid& grid, const Whole& numbers,
                   Reach reach) {
  Batch<kSuper> b;
  load_batch(job, first, blocks, b);
  const Super found = fit_signed(b.x, b.w, n, grid, numbers, reach);
  const int groups = kSuper / n;
  for (int g = 0; g < groups; ++g) make_codes(b, g * n, n, grid, mul(found.scale, found.scales[g]), zero());
  const Numbers lanes(found, groups, false);
  each_block(job, first, blocks, [&](int lane, uint8_t* out) {
    uint8_t codes[kSuper];
    int scales[16] = {};
    take_codes(b, lane, codes);
    lanes.take(lane, groups, scales, nullptr);
    put_signed(job.kind, codes, scales, lanes.scale[lane], out);
  });
}

void put_lined(BlockKind kind, const uint8_t* codes, const int* scales, const int* mins, uint16_t scale, uint16_t least,
               uint8_t* out) {
  if (kind == BlockKind::q2_k) {
    for (int g = 0; g < 16; ++g) out[g] = as_byte(scales[g] | mins[g] << 4);
    put_planes(out + 16, codes, 256, 0, 2);
    put_half(out + 80, scale), put_half(out + 82, least);
    return;
  }
  put_half(out, scale), put_half(out + 2, least);
  put_six_bits(out + 4, scales, mins);
  out += 16;
  if (kind == BlockKind::q5_k) put_planes(out, codes, 256, 4, 1), out += 32;
  for (int run = 0; run < 4; ++run) put_nibbles(out + 32 * run, codes + 64 * run, 32);
}

void encode_super_lines(const EncodeJob& job, int64_t first, int64_t blocks, int n, float high, float top, Reach reach) {
  Batch<kSuper> b;
  load_batch(job, first, blocks, b);
  const Super found = fit_lines(b.x, b.w, n, high, top, reach);
  const int groups = kSuper / n;
  for (int g = 0; g < groups; ++g)
    make_codes(b, g * n, n, Whole{0.0f, high}, mul(found.scale, found.scales[g]), mul(found.least, found.mins[g]));
  const Numbers lanes(found, groups, true);
  each_block(job, first, blocks, [&](int lane, uint8_t* out) {
    uint8_t codes[kSuper];
    int scales[16] = {}, mins[16] = {};
    take_codes(b, lane, codes);
    lanes.take(lane, groups, scales, mins);
    put_lined(job.kind, codes, scales, mins, lanes.scale[lane], lanes.least[lane], out);
  });
}

void encode_batch(const EncodeJob& job, int64_t first, int64_t blocks) {
  switch (job.kind) {
    case BlockKind::q4_0: return encode_scaled(job, first, blocks, Whole{-8, 7}, kFine);
    case BlockKind::q5_0: return encode_scaled(job, first, blocks, Whole{-16, 15}, kFine);
    case BlockKind::q8_0: return encode_scaled(job, first, blocks, Whole{-127, 127}, kEight);
    case BlockKind::iq4_nl: return encode_scaled(job, first, blocks, NonLinear{}, Reach{-8.0f, 2.0f, 9, 2});
    case BlockKind::q4_1: return encode_lines(job, first, blocks, 15);
    case BlockKind::q5_1: return encode_lines(job, first, blocks, 31);
    case BlockKind::q2_k: return encode_super_lines(job, first, blocks, 16, 3, 15, kCoarse);
    case BlockKind::q4_k: return encode_super_lines(job, first, blocks, 32, 15, 63, kFine);
    case BlockKind::q5_k: return encode_super_lines(job, first, blocks, 32, 31, 63, kFine);
    case BlockKind::q3_k: return encode_signed(job, first, blocks, 16, Whole{-4, 3}, Whole{-32, 31}, kCoarse);
    case BlockKind::q6_k: return encode_signed(job, first, blocks, 16, Whole{-32, 31}, Whole{-128, 127}, kFine);
    case BlockKind::iq4_xs:
      return encode_signed(job, first, blocks, 32, NonLinear{}, Whole{-32, 31}, Reach{-8.0f, 2.0f, 9, 2});
  }
}

void encode(Pool& pool, const EncodeJob& job) {
  const int64_t blocks = job.rows * (job.k / block_length(job.kind));
  const int64_t chunk = block_length(job.kind) == 32 ? 32 * kLanes : 4 * kLanes;  // blocks; 16,384 elements
  pool.run((blocks + chunk - 1) / chunk, [&](int64_t i, int) {
    const int64_t last = blocks < (i + 1) * chunk ? blocks : (i + 1) * chunk;
    for (int64_t first = i * chunk; first < last; first += kLanes) encode_batch(job, first, blocks);
  });
}

}  // namespace

extern const EncodeKernels encode_kernels;
const EncodeKernels encode_kernels = {encode};

}  // namespace flyweight::FW_ISA
