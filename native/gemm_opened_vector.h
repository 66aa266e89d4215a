// The product of opened tiles on vector units: a block of tiles x tokens in registers.  Included by gemm_opened.cpp.
#pragma once

#include "gemm_opened.h"

namespace flyweight::FW_ISA {

// What `open` makes of codes that have a sign or an offset of 128.
#if defined(FW_ISA_AVX512)
constexpr bool kOpenSigned = false;  // vpdpbusd takes unsigned codes; the offset comes off through the sum of x
#else
constexpr bool kOpenSigned = true;
#endif
constexpr int kOpenedTokens = kTokens;

struct Arrangement {  // vector units need none
  void set(const OpenedForm&, int64_t) {}
};

template <bool Signed>
FW_INLINE I32x16 dot_opened(I32x16 acc, B8x64 w, B8x64 x) {
#if defined(FW_ISA_AVX512)
  return dot_u8i8(acc, w, x);
#else
  if constexpr (Signed) return dot_i8i8(acc, w, x);
  return dot_u7i8(acc, w, x);
#endif
}

template <int Sub, bool Mins, bool Signed, int Tiles, int Tokens>
void multiply_tiles(const Stretch& s, int64_t first) {
  const uint8_t* ahead = s.ahead + first * s.ahead_stride;
  const Opened* tiles = s.tiles + first;
  float* sums_at = s.sums + first * kSumTokens * kLanes;
  constexpr int subs = kGroup / Sub, quads = Sub / 4;
  F32x16 acc[Tiles][Tokens];
  resume(sums_at, s.first, acc);
  const uint8_t* x = s.panel;
  for (int64_t g = 0; g < s.groups; ++g, x += kRecord * Tokens) {
    for (int i = 0; i < Tiles; ++i) prefetch(ahead + i * s.ahead_stride + g * s.ahead_bytes, s.ahead_bytes);
    each<subs>([&](auto part) FW_LAMBDA {
      constexpr int sums = (subs == 1 ? 44 : 36 + 4 * part) * Tokens;
      const int64_t place = g * subs + part;
      I32x16 dot[Tiles][Tokens];
      each<Tokens>([&](auto t) FW_LAMBDA {
        const I32x16 start = Mins || Signed ? izero() : ibroadcast(x + sums + 4 * t);
        each<Tiles>([&](auto i) FW_LAMBDA { dot[i][t] = start; });
      });
      each<quads>([&](auto j) FW_LAMBDA {
        B8x64 w[Tiles];
        each<Tiles>([&](auto i) FW_LAMBDA { w[i] = bload(tiles[i].codes + (place * quads + j) * 64); });
        each<Tokens>([&](auto t) FW_LAMBDA {
          const B8x64 xs = set4(x + kGroup * t + 4 * (part * quads + j));
          each<Tiles>([&](auto i) FW_LAMBDA { dot[i][t] = dot_opened<Signed>(dot[i][t], w[i], xs); });
        });
      });
      each<Tiles>([&](auto i) FW_LAMBDA {
        const F32x16 scale = load(tiles[i].scales + place * kLanes);
        each<Tokens>([&](auto t) FW_LAMBDA {
          acc[i][t] = fma(to_f32(dot[i][t]), mul(scale, broadcast(x + kGroup * Tokens + 4 * t)), acc[i][t]);
        });
        if constexpr (Mins) {
          const F32x16 low = load(tiles[i].lows + place * kLanes);
          each<Tokens>([&](auto t) FW_LAMBDA { acc[i][t] = fma(low, broadcast(x + sums + 4 * t), acc[i][t]); });
        }
      });
    });
  }
  leave(sums_at, acc);
}

template <int Sub, bool Mins, bool Signed, int Tokens>
void multiply_opened(const Stretch& s) {
  int64_t i = 0;
  for (; i + kTiles <= s.count; i += kTiles) multiply_tiles<Sub, Mins, Signed, kTiles, Tokens>(s, i);
  if constexpr (kTiles > 1)
    for (; i < s.count; ++i) multiply_tiles<Sub, Mins, Signed, 1, Tokens>(s, i);
}

}  // namespace flyweight::FW_ISA
