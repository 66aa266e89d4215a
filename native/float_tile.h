// A product of two float32 panels in registers: gram.cpp and sweep.cpp are made of it.
//
// Each output is one sum in the order of k, rounded after each step by one fma, so its bits depend neither on the target
// nor on the tile it is in.
#pragma once

#include "simd.h"

namespace flyweight::FW_ISA {

// Outputs of a tile: kTileOuts x kTileVectors vectors, as many as registers hold next to the operands.
#if defined(FW_ISA_AVX512)
constexpr int kTileOuts = 8, kTileVectors = 2;
#else
constexpr int kTileOuts = 4, kTileVectors = 1;
#endif

struct FloatTile {
  F32x16 sum[kTileOuts][kTileVectors];
};

// sum[m][v] = sum over k of a[k * a_step + m] * b[k * b_step + v * b_vector ...], k in [0, depth).
FW_INLINE FloatTile multiply_tile(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t b_vector,
                                  int64_t depth) {
  FloatTile tile;
  each<kTileOuts>([&](auto m) FW_LAMBDA { each<kTileVectors>([&](auto v) FW_LAMBDA { tile.sum[m][v] = zero(); }); });
  for (int64_t k = 0; k < depth; ++k) {
    F32x16 right[kTileVectors];
    each<kTileVectors>([&](auto v) FW_LAMBDA { right[v] = load(b + v * b_vector); });
    each<kTileOuts>([&](auto m) FW_LAMBDA {
      const F32x16 left = set1(a[m]);
      each<kTileVectors>([&](auto v) FW_LAMBDA { tile.sum[m][v] = fma(left, right[v], tile.sum[m][v]); });
    });
    a += a_step, b += b_step;
  }
  return tile;
}

}  // namespace flyweight::FW_ISA
