// Scores and weighted sums of a few query rows against one tile of 64 positions, in registers.  Included by attention.cpp.
//
// Invariant: one order per row, whatever the number of rows: a score is a chain of fmas over d, one for each kScoreRun of
// them, added up in order; an element of the weighted sum is a chain of fmas over positions.  Knows nothing of what a row may see.
#pragma once

#include <type_traits>

#include "kv.h"
#include "simd.h"

namespace flyweight::FW_ISA {

// Register tiles: kRowTile query rows x kWide vectors of accumulators, kWide loads and one broadcast must fit.
#if defined(FW_ISA_AVX512)
constexpr int kRowTile = 6, kWide = 4;  // 24 + 4 + 1 of 32 zmm
#elif defined(FW_ISA_AVX2)
constexpr int kRowTile = 3, kWide = 2;  // 12 + 2 of 16 ymm pairs-as-two, the broadcast from memory
#elif defined(FW_ISA_NEON)
constexpr int kRowTile = 4, kWide = 1;  // 16 + 4 + 1 of 32 q registers
#else
constexpr int kRowTile = 2, kWide = 1;
#endif
constexpr int kParts = static_cast<int>(kTile / 16);

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
FW_INLINE F32x16 widen(const float* p) { return load(p); }
FW_INLINE F32x16 widen(const Half* p) { return load_f16(&p->bits); }
FW_INLINE F32x16 widen(const Brain* p) { return load_bf16(&p->bits); }

// A tile's memory: K as four [k_dim][16] parts, V as four [16][v_stride] parts.  Parts past the context repeat part 0.
template <class T>
struct Parts {
  const T* k[kParts];
  const T* v[kParts];
};

// Reading a tile in the cache's own memory touches the same places of the one after it: blocks lie anywhere, so the
// hardware's prefetchers start anew every 16 positions.
template <class T>
struct StoredTile : Parts<T> {
  using Element = T;
  Parts<T> next;
  int64_t v_stride;

  FW_INLINE void touch_k(int part, int64_t at) const { touch(next.k[part] + at); }
  FW_INLINE void touch_v(int64_t part, int64_t at) const { touch(next.v[part] + at); }
  FW_INLINE static void touch(const T* p) { __builtin_prefetch(p, 0, 2); }
};

struct WidenedTile : Parts<float> {
  using Element = float;
  int64_t v_stride;

  FW_INLINE void touch_k(int, int64_t) const {}
  FW_INLINE void touch_v(int64_t, int64_t) const {}
};

constexpr int64_t kScoreRun = 128;  // only latents are longer, of 576 elements

// scores[r][16*part + lane] for R rows, of d [begin, end), added to those before; q is packed [k_dim][R].
template <int R, class Tile>
void score_run(const float* q, const Tile& tile, int64_t begin, int64_t end, float* scores) {
  for (int part = 0; part < kParts; part += kWide) {
    F32x16 sum[R][kWide];
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < kWide; ++w) sum[r][w] = zero();
    for (int64_t d = begin; d < end; ++d) {
      F32x16 k[kWide];
      for (int w = 0; w < kWide; ++w) k[w] = widen(tile.k[part + w] + d * 16);
      for (int w = 0; w < kWide; ++w) tile.touch_k(part + w, d * 16);
      for (int r = 0; r < R; ++r) {
        const F32x16 x = set1(q[d * R + r]);
        for (int w = 0; w < kWide; ++w) sum[r][w] = fma(x, k[w], sum[r][w]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < kWide; ++w) {
        float* to = scores + r * kTile + (part + w) * 16;
        store(to, begin > 0 ? add(load(to), sum[r][w]) : sum[r][w]);
      }
  }
}

template <int R, class Tile>
void score_rows(const float* q, const Tile& tile, int64_t k_dim, float* scores) {
  for (int64_t at = 0; at < k_dim; at += kScoreRun)
    score_run<R>(q, tile, at, at + kScoreRun < k_dim ? at + kScoreRun : k_dim, scores);
}

// acc[r] = acc[r] * factor[r] + sum over positions [from, to) of p[r] * v, W vectors of it.
template <int R, int W, class Tile>
void mix_columns(const float* p, const float* factor, const Tile& tile, int64_t from, int64_t to, int64_t column,
                 float* acc, int64_t stride) {
  F32x16 sum[R][W];
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) sum[r][w] = mul(load(acc + r * stride + column + w * 16), set1(factor[r]));
  while (from < to) {
    const int64_t part = from / 16, stop = to < (part + 1) * 16 ? to : (part + 1) * 16;
    int64_t at = (from % 16) * tile.v_stride + column;
    for (; from < stop; ++from, at += tile.v_stride) {
      F32x16 v[W];
      for (int w = 0; w < W; ++w) v[w] = widen(tile.v[part] + at + w * 16);
      for (int w = 0; w < W; w += 4 / static_cast<int>(sizeof(typename Tile::Element))) tile.touch_v(part, at + w * 16);
      for (int r = 0; r < R; ++r) {
        const F32x16 x = set1(p[r * kTile + from]);
        for (int w = 0; w < W; ++w) sum[r][w] = fma(x, v[w], sum[r][w]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) store(acc + r * stride + column + w * 16, sum[r][w]);
}

template <int R, class Tile>
void mix_rows(const float* p, const float* factor, const Tile& tile, int64_t from, int64_t to, int64_t v_padded,
              float* acc, int64_t stride) {
  int64_t column = 0;
  for (; column + 16 * kWide <= v_padded; column += 16 * kWide)
    mix_columns<R, kWide>(p, factor, tile, from, to, column, acc, stride);
  for (; column < v_padded; column += 16) mix_columns<R, 1>(p, factor, tile, from, to, column, acc, stride);
}

// Calls f with the row count as a constant: kernels are instantiated for 1..kRowTile rows.
template <int R = kRowTile, class F>
FW_INLINE void with_rows(int64_t rows, F&& f) {
  if constexpr (R == 1) {
    f(std::integral_constant<int, 1>{});
  } else if (rows == R) {
    f(std::integral_constant<int, R>{});
  } else {
    with_rows<R - 1>(rows, f);
  }
}

}  // namespace flyweight::FW_ISA
