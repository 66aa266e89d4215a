// The two loops every product is made of, over `Tiles` tiles and `Tokens` tokens held in registers.
//
// Normative order: each output element is one accumulator that walks K upward, with float activations one for each
// kFold of K, added up in order; nothing else is ever added to it but the bias, last.  So an element's bits depend on its
// row of x and its weight row alone, whatever tile, panel or thread computes it.  A weight kind enters
// as a type W that is made of a `Kind` and answers for its tiles (gemm_dense.cpp, gemm_grouped.cpp).
#pragma once

#include <cstddef>
#include <utility>

#include "kernels_gemm.h"
#include "simd.h"

namespace flyweight::FW_ISA {

// Registers.  avx512: 2 tiles x 6 tokens keep 12 integer and 12 float accumulators, 2 weights and 1 activation in 32 zmm,
// and one activation load serves two multiplications.  avx2 and neon need 2 or 4 registers to a logical vector: one tile
// x 4 tokens, whose float accumulators live in L1 between groups.  scalar is a specification: small and quick to compile.
// kRowTiles bounds the tiles a float row path walks side by side (independent chains of fma hide its latency).
// Sanitized builds have the same loops in few widths only: instrumented, every one of them takes seconds to compile.
#if defined(FW_FEW_WIDTHS) && defined(FW_ISA_AVX512)
constexpr int kTokens = 2, kTiles = 2, kRowTiles = 4;
#elif defined(FW_FEW_WIDTHS) && defined(FW_ISA_SCALAR)
constexpr int kTokens = 1, kTiles = 1, kRowTiles = 1;
#elif defined(FW_FEW_WIDTHS)
constexpr int kTokens = 2, kTiles = 1, kRowTiles = 2;
#elif defined(FW_ISA_AVX512)
constexpr int kTokens = 6, kTiles = 2, kRowTiles = 4;
#elif defined(FW_ISA_SCALAR)
constexpr int kTokens = 2, kTiles = 1, kRowTiles = 1;
#else
constexpr int kTokens = 4, kTiles = 1, kRowTiles = 2;
#endif
// Decoding reads each weight once.  This far ahead of the multiplication its lines are prefetched, into L2, and half as far
// into L1: that also carries the stream over the end of a tile, where the hardware's own prefetch starts anew.  At K = 1024
// one core of a Zen 4 went from 52 % to 95 % of its bandwidth, with lines prefetched into L1 at once; a Sapphire Rapids needs the
// two stages (71 % -> 94 %: what waits for memory fills L1's few buffers).
constexpr int64_t kAhead = 4608;
// As many tokens as still leave a product waiting for memory, or nearly: with int8 activations they save opening the tiles.
constexpr int kRowTokens = 4;
#if defined(FW_ISA_AVX512)
constexpr int kRowTokensI8 = 16, kRowPanel = kTokens < 4 ? kTokens : 8;
#else
constexpr int kRowTokensI8 = 4, kRowPanel = kTokens < 4 ? kTokens : 4;
#endif
constexpr int kMostTokens = kRowPanel > kTokens ? kRowPanel : kTokens;

// Where a kernel reads and writes: `tile` is the first of its tiles, `panel` its tokens.
struct Spot {
  const uint8_t* tile;
  const uint8_t* panel;
  float* out;
  const float* bias;
  const float* row_scales;  // of these tiles' rows, or null
  int64_t left;   // rows from the first of these tiles to the end of the weight
  int64_t ahead;  // the weights are prefetched this many bytes early; 0: they were read before and are in L2
};

template <int Tiles, int Tokens>
FW_INLINE void clear(F32x16 (&acc)[Tiles][Tokens]) {
  each<Tiles>([&](auto i) FW_LAMBDA { each<Tokens>([&](auto t) FW_LAMBDA { acc[i][t] = zero(); }); });
}

// Rows of tile i that there are.
FW_INLINE int lanes_of(const Spot& at, int i) {
  const int64_t left = at.left - int64_t{kLanes} * i;
  return left < kLanes ? static_cast<int>(left) : kLanes;
}

template <int Tiles, int Tokens>
FW_INLINE void finish(const LinearJob& job, const Spot& at, F32x16 (&acc)[Tiles][Tokens]) {
  each<Tiles>([&](auto i) FW_LAMBDA {
    const int lanes = lanes_of(at, i);
    const F32x16 bias = at.bias ? load_tail(at.bias + kLanes * i, lanes) : zero();
    const F32x16 by = at.row_scales ? load(at.row_scales + kLanes * i) : zero();
    each<Tokens>([&](auto t) FW_LAMBDA {
      const F32x16 whole = at.row_scales ? mul(acc[i][t], by) : acc[i][t];
      const F32x16 y = at.bias ? add(whole, bias) : whole;
      store_tail(at.out + t * job.stride + kLanes * i, y, lanes);
    });
  });
}

FW_INLINE F32x16 broadcast(const uint8_t* p) {
  float x;
  std::memcpy(&x, p, 4);
  return set1(x);
}
FW_INLINE I32x16 ibroadcast(const uint8_t* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return iset1(x);
}

FW_INLINE void prefetch(const uint8_t* p, int64_t bytes) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}
// What is ahead of a stream at p that goes on by `bytes`.  At the end of the tiles that is what is stored behind them: what the
// thread reads next, mostly (linear.cpp).
FW_INLINE void prefetch_stream(int64_t ahead, const uint8_t* p, int64_t bytes) {
  prefetch(p + ahead, bytes);
  if (ahead > kAhead) return;
  const uint8_t* near = p + ahead / 2;
#pragma GCC unroll 8
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(near + i);
}

// Of K with float activations: summed by themselves, as the error of one sum grows with its length.  At K = 1024 the rms
// error is a quarter of that of one accumulator.
constexpr int64_t kFold = 32;

template <int Tiles, int Tokens>
FW_INLINE void add_to(F32x16 (&total)[Tiles][Tokens], const F32x16 (&acc)[Tiles][Tokens]) {
  each<Tiles>([&](auto i) FW_LAMBDA { each<Tokens>([&](auto t) FW_LAMBDA { total[i][t] = add(total[i][t], acc[i][t]); }); });
}

// acc = fma(w[k], x[k], acc) over K [k, whole), upward; W::kStep of them share one call of W::values.  Returns the x after.
template <class W, int Tiles, int Tokens>
FW_INLINE const uint8_t* multiply_run(const LinearJob& job, const W& weight, const Spot& at, int64_t k, int64_t whole, const uint8_t* x,
                                      F32x16 (&acc)[Tiles][Tokens]) {
  constexpr int step = W::kStep;
  const int64_t bytes = tile_bytes(job.kind, job.k), group = weight.group_bytes();
  for (; k < whole; k += step, x += 4 * step * Tokens) {
    if (at.ahead)
      prefetch_stream(at.ahead, at.tile + k * group * Tiles / kGroup, group * Tiles * step / kGroup);
    F32x16 w[Tiles][step];
    each<Tiles>([&](auto i) FW_LAMBDA { weight.values(at.tile + bytes * i, k, w[i]); });
    each<step>([&](auto j) FW_LAMBDA {
      each<Tokens>([&](auto t) FW_LAMBDA {
        const F32x16 xs = broadcast(x + 4 * (j * Tokens + t));
        each<Tiles>([&](auto i) FW_LAMBDA { acc[i][t] = fma(w[i][j], xs, acc[i][t]); });
      });
    });
  }
  return x;
}

// Float activations: total = total + acc for every kFold of K; w[k] is the exact dequantised weight.
template <class W, int Tiles, int Tokens>
void multiply_float(const LinearJob& job, const Spot& at) {
  constexpr int step = W::kStep;
  const W weight(job.kind);
  F32x16 total[Tiles][Tokens], acc[Tiles][Tokens];
  clear(total);
  const uint8_t* x = at.panel;
  const int64_t whole = job.k / step * step;
  for (int64_t k = 0; k < job.k; k += kFold) {
    clear(acc);
    x = multiply_run(job, weight, at, k, k + kFold < whole ? k + kFold : whole, x, acc);
    if (whole < job.k && k + kFold >= job.k) {  // bf16 with odd K: the second half of the last pair is padding
      each<Tiles>([&](auto i) FW_LAMBDA {
        F32x16 w[step];
        weight.values(at.tile + tile_bytes(job.kind, job.k) * i, whole, w);
        each<Tokens>([&](auto t) FW_LAMBDA { acc[i][t] = fma(w[0], broadcast(x + 4 * t), acc[i][t]); });
      });
    }
    add_to(total, acc);
  }
  finish<Tiles, Tokens>(job, at, total);
}

// Integer activations.  For each sub-group of W::kSub along K, upward:
//   acc = fma(float(dot), scale_w * scale_x, acc)        dot = sum of (code - zero) * x, exact in int32
//   acc = fma(-min_w, scale_x * sum of x, acc)           kinds with minima only
// where scale_w and min_w are exact in float32 and |dot| < 2^24, so each line rounds twice at most.
template <class W, int Tiles, int Tokens>
void multiply_i8(const LinearJob& job, const Spot& at) {
  constexpr int subs = kGroup / W::kSub, quads = W::kSub / 4;
  const W weight(job.kind);
  const int64_t bytes = tile_bytes(job.kind, job.k), group = Tiles * weight.group_bytes();
  F32x16 acc[Tiles][Tokens];
  clear(acc);
  const uint8_t* x = at.panel;
  for (int64_t g = 0; g < job.k / kGroup; ++g, x += kRecord * Tokens) {
    if (at.ahead) prefetch_stream(at.ahead, at.tile + g * group, group);
#pragma GCC unroll 2
    for (int s = 0; s < subs; ++s) {
      const int sums = (subs == 1 ? 44 : 36 + 4 * s) * Tokens;
      I32x16 dot[Tiles][Tokens];
      each<Tokens>([&](auto t) FW_LAMBDA {
        const I32x16 start = W::kZero ? ibroadcast(x + sums + 4 * t) : izero();
        each<Tiles>([&](auto i) FW_LAMBDA { dot[i][t] = start; });
      });
#pragma GCC unroll 8
      for (int j = 0; j < quads; ++j) {
        B8x64 w[Tiles];
        each<Tiles>([&](auto i) FW_LAMBDA { w[i] = weight.quad(at.tile + bytes * i, g, s * quads + j); });
        each<Tokens>([&](auto t) FW_LAMBDA {
          const uint8_t* four = x + kGroup * t + 4 * (s * quads + j);
          if constexpr (Tiles == 1) {
            dot[0][t] = W::dot(dot[0][t], w[0], four);
          } else {
            const B8x64 xs = set4(four);
            each<Tiles>([&](auto i) FW_LAMBDA { dot[i][t] = W::dot(dot[i][t], w[i], xs); });
          }
        });
      }
      each<Tiles>([&](auto i) FW_LAMBDA {
        const F32x16 scale = weight.scale(at.tile + bytes * i, g, s);
        each<Tokens>([&](auto t) FW_LAMBDA {
          acc[i][t] = fma(to_f32(dot[i][t]), mul(scale, broadcast(x + kGroup * Tokens + 4 * t)), acc[i][t]);
        });
        if constexpr (W::kMins) {
          const F32x16 low = sub(zero(), weight.min(at.tile + bytes * i, g, s));
          each<Tokens>([&](auto t) FW_LAMBDA { acc[i][t] = fma(low, broadcast(x + sums + 4 * t), acc[i][t]); });
        }
      });
    }
  }
  finish<Tiles, Tokens>(job, at, acc);
}

int64_t panel_width(const LinearJob& job);

using Inner = void (*)(const LinearJob&, const Spot&);

// The kernels of one product by panel size: `many` tiles at once, and one tile for what is left over.
struct Inners {
  int tiles;
  Inner many[kMostTokens], one[kMostTokens];
};

template <class M, int Tiles, int... T>
constexpr Inners inners(std::integer_sequence<int, T...>) {
  return {Tiles, {M::template run<Tiles, T + 1>...}, {M::template run<1, T + 1>...}};
}
// For panels of up to kTokens, or of the int8 row path.
template <class M, int Tiles>
constexpr Inners kInners = inners<M, Tiles>(std::make_integer_sequence<int, kTokens>{});
template <class M>
constexpr Inners kRowInners = inners<M, 1>(std::make_integer_sequence<int, kRowPanel>{});

// Tiles outside, panels inside: a pair of tiles stays in L2 (at most 110 KB at K = 3072) while the panels pass.
inline void walk(const LinearJob& job, const Inners& inner, Range tiles, Range panels) {
  const int64_t bytes = tile_bytes(job.kind, job.k), token = token_bytes(job.mode, job.k);
  const int64_t count = panel_count(job.tokens, panel_width(job));
  const float* scales = row_scales_of(job);
  for (int64_t i = tiles.begin; i < tiles.end;) {
    const bool many = i + inner.tiles <= tiles.end;
    const int64_t row = i * kLanes;
    for (int64_t p = panels.begin; p < panels.end; ++p) {
      const int64_t t = panel_start(job.tokens, count, p), size = panel_start(job.tokens, count, p + 1) - t;
      // The first panel fetches the tiles after these, place by place; with few tokens memory sets the pace and the
      // fetching stays close.
      const int64_t ahead = p > panels.begin ? 0 : job.tokens <= kRowTokensI8 ? kAhead : bytes * (many ? inner.tiles : 1);
      const Spot at{job.weight + i * bytes, job.panels + t * token, job.out + t * job.stride + row,
                    job.bias ? job.bias + row : nullptr, scales ? scales + row : nullptr, job.n - row,
                    ahead};
      (many ? inner.many : inner.one)[size - 1](job, at);
    }
    i += many ? inner.tiles : 1;
  }
}

template <class W>
struct Float {
  template <int Tiles, int Tokens>
  static void run(const LinearJob& job, const Spot& at) {
    multiply_float<W, Tiles, Tokens>(job, at);
  }
};
template <class W>
struct Int8 {
  template <int Tiles, int Tokens>
  static void run(const LinearJob& job, const Spot& at) {
    multiply_i8<W, Tiles, Tokens>(job, at);
  }
};

template <class W>
void multiply_dense(const LinearJob& job, Range tiles, Range panels) {
  constexpr int side_by_side = W::kRowTiles < kRowTiles ? W::kRowTiles : kRowTiles;
  const bool row = job.tokens <= kRowTokens;
  walk(job, row ? kInners<Float<W>, side_by_side> : kInners<Float<W>, kTiles>, tiles, panels);
}

// One row of a weight: the float path's own values, lane by lane.
template <class W>
void unpack_row(const LinearJob& job, int64_t row, float* out) {
  const W weight(job.kind);
  const uint8_t* tile = job.weight + row / kLanes * tile_bytes(job.kind, job.k);
  const float* scales = row_scales_of(job);
  const int32_t* order = order_of(job);
  for (int64_t k = 0; k < job.k; k += W::kStep) {
    F32x16 w[W::kStep];
    weight.values(tile, k, w);
    for (int j = 0; j < W::kStep && k + j < job.k; ++j) {
      float lane[kLanes];
      store(lane, w[j]);
      const float value = lane[row % kLanes];
      out[order ? order[k + j] : k + j] = scales ? value * scales[row] : value;
    }
  }
}

int32_t probe_read(const uint8_t* data, int64_t size);
int32_t probe_dot(int64_t rounds);
float probe_fma(int64_t rounds);
float probe_bf16(int64_t rounds);
void fill(const LinearJob& job, Range panels, Range k);
// How the sums of codes in a panel are kept: times -zero, or times their scale (kernels_gemm.h).
struct CodeSums {
  int32_t zero;
  bool scaled;
};
CodeSums code_sums(Kind kind);
void multiply_pairs(const LinearJob& job, Range tiles, Range panels);
void multiply_grouped(const LinearJob& job, Range tiles, Range panels);
void multiply_grouped_floats(const LinearJob& job, Range tiles, Range panels);
void unpack_grouped(const LinearJob& job, int64_t row, float* out);
// The same of kinds whose codes represent floats; products in bf16.
void multiply_codes(const LinearJob& job, Range tiles, Range panels);
void multiply_codes_floats(const LinearJob& job, Range tiles, Range panels);
void unpack_codes(const LinearJob& job, int64_t row, float* out);

}  // namespace flyweight::FW_ISA
