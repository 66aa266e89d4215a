// Sums of a block of tiles x tokens, side by side while they are worked on.
//
// Rows of `out` are pages apart: written a tile at a time they cost more than the products (the processor remembers the
// places of a few pages only).  Here a tile's sums are [tokens][16] in one piece, and rows of several tiles go out at once.
#pragma once

#include "gemm_tile.h"

namespace flyweight::FW_ISA {

constexpr int kSumTiles = 8, kSumTokens = 32;
constexpr int kRowTokensAmx = 8;  // with more, opening tiles for matrix registers pays
constexpr int kFewOpened = 32;    // tokens of an opened product that passes tiles over panels

// Whether a product takes a few tiles at a time, kSumTiles at most, and passes panels over them, rather than tiles over
// panels.
inline bool by_blocks(const LinearJob& job) {
  if (job.mode == Mode::bf16 && of_floats(job.kind)) return job.tokens > kRowTokens;
#if defined(FW_ISA_AMX)
  if (job.mode == Mode::i8) return job.tokens > kRowTokensAmx;
  return job.mode == Mode::bf16 && job.tokens > (grouped(job.kind) ? kFewOpened : kRowTokens);
#else
  return job.mode == Mode::i8 && job.tokens > kRowTokensI8;
#endif
}

class Sums {
 public:
  // The sums of tile i of the block, kLanes floats a token.
  float* of(int64_t i) { return room_ + i * kSumTokens * kLanes; }

  // What an earlier stretch of K left in `out`.
  void take(const LinearJob& job, Range tiles, int64_t token, int64_t size) {
    rows(job, tiles, token, size, [](float* sum, float* out, int lanes, int64_t) FW_LAMBDA { store(sum, get(out, lanes)); });
  }

  // `last` of K: times the row scales and `unit`, and with the bias.
  void give(const LinearJob& job, Range tiles, int64_t token, int64_t size, bool last, float unit = 1) {
    const float* scales = last ? row_scales_of(job) : nullptr;
    const float* bias = last ? job.bias : nullptr;
    if (scales || bias)
      rows(job, tiles, token, size, [&](float* sum, float* out, int lanes, int64_t n) FW_LAMBDA {
        const F32x16 whole = scales ? mul(load(sum), mul(load(scales + n), set1(unit))) : load(sum);
        put(out, bias ? add(whole, get(bias + n, lanes)) : whole, lanes);
      });
    else
      rows(job, tiles, token, size, [](float* sum, float* out, int lanes, int64_t) FW_LAMBDA { put(out, load(sum), lanes); });
  }

 private:
  FW_INLINE static F32x16 get(const float* p, int lanes) { return lanes == kLanes ? load(p) : load_tail(p, lanes); }
  FW_INLINE static void put(float* p, F32x16 v, int lanes) { lanes == kLanes ? store(p, v) : store_tail(p, v, lanes); }

  // f(sum, out, rows of the tile, its first) for every token and tile; only the last tile of a weight can be short.
  template <class F>
  FW_INLINE void rows(const LinearJob& job, Range tiles, int64_t token, int64_t size, F f) {
    const int64_t whole = tiles.end * kLanes <= job.n ? tiles.end : tiles.end - 1;
    for (int64_t t = 0; t < size; ++t) {
      float* out = job.out + (token + t) * job.stride;
      float* sum = room_ + t * kLanes;
      int64_t i = tiles.begin;
      for (; i < whole; ++i, sum += kSumTokens * kLanes) f(sum, out + i * kLanes, kLanes, i * kLanes);
      if (i < tiles.end) f(sum, out + i * kLanes, static_cast<int>(job.n - i * kLanes), i * kLanes);
    }
  }

  alignas(64) float room_[kSumTiles * kSumTokens * kLanes];
};

// Sums of one panel with `Tiles` tiles go between registers and a block's room; `first` of K: there are none yet.
template <int Tiles, int Tokens>
FW_INLINE void resume(const float* sums, bool first, F32x16 (&acc)[Tiles][Tokens]) {
  each<Tiles>([&](auto i) FW_LAMBDA {
    each<Tokens>([&](auto t) FW_LAMBDA { acc[i][t] = first ? zero() : load(sums + (i * kSumTokens + t) * kLanes); });
  });
}
template <int Tiles, int Tokens>
FW_INLINE void leave(float* sums, const F32x16 (&acc)[Tiles][Tokens]) {
  each<Tiles>([&](auto i) FW_LAMBDA {
    each<Tokens>([&](auto t) FW_LAMBDA { store(sums + (i * kSumTokens + t) * kLanes, acc[i][t]); });
  });
}

}  // namespace flyweight::FW_ISA
