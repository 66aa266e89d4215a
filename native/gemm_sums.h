// Sums of a block of tiles x tokens, side by side while they are worked on.
//
// Rows of `out` are pages apart: written a tile at a time they cost more than the products (the processor remembers the
// places of a few pages only).  Here a tile's sums are [tokens][16] in one piece, and rows of several tiles go out at once.
#pragma once

#include "gemm_tile.h"

namespace flyweight::FW_ISA {

constexpr int kSumTiles = 8, kSumTokens = 32;

class Sums {
 public:
  // The sums of tile i of the block, kLanes floats a token.
  float* of(int64_t i) { return room_ + i * kSumTokens * kLanes; }

  // What an earlier stretch of K left in `out`.
  void take(const LinearJob& job, Range tiles, int64_t token, int64_t size) {
    rows(job, tiles, token, size, [&](float* sum, float* out, int lanes, int64_t) FW_LAMBDA { store(sum, load_tail(out, lanes)); });
  }

  // `last` of K: with the bias.
  void give(const LinearJob& job, Range tiles, int64_t token, int64_t size, bool last) {
    if (last && job.bias)
      rows(job, tiles, token, size, [&](float* sum, float* out, int lanes, int64_t n) FW_LAMBDA {
        store_tail(out, add(load(sum), load_tail(job.bias + n, lanes)), lanes);
      });
    else
      rows(job, tiles, token, size, [&](float* sum, float* out, int lanes, int64_t) FW_LAMBDA { store_tail(out, load(sum), lanes); });
  }

 private:
  template <class F>
  FW_INLINE void rows(const LinearJob& job, Range tiles, int64_t token, int64_t size, F f) {
    for (int64_t t = 0; t < size; ++t)
      for (int64_t i = tiles.begin; i < tiles.end; ++i) {
        const int64_t n = i * kLanes, left = job.n - n;
        f(of(i - tiles.begin) + t * kLanes, job.out + (token + t) * job.stride + n, static_cast<int>(left < kLanes ? left : kLanes), n);
      }
  }

  alignas(64) float room_[kSumTiles * kSumTokens * kLanes];
};

}  // namespace flyweight::FW_ISA
