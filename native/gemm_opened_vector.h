// The product of opened tiles on vector units: a block of tiles x tokens in registers.  Included by gemm_opened.cpp.
#pragma once

#include "gemm_opened.h"

namespace flyweight::FW_ISA {

struct Arrangement {  // vector units need none
  void set(const OpenedForm&, int64_t) {}
};

// How codes and activations multiply: with VNNI codes are unsigned, and an offset comes off through the sum of x, which
// kinds with minima need for those.
enum class Codes { u8, i8, u4 };
inline Codes codes_of(const OpenedForm& form) {
#if defined(FW_VNNI)
  return form.is_signed && form.mins ? Codes::i8 : Codes::u8;
#elif defined(FW_PAIR_SUMS)
  return form.is_signed ? Codes::i8 : form.small ? Codes::u4 : Codes::u8;
#else
  return form.is_signed ? Codes::i8 : Codes::u8;
#endif
}

template <Codes C>
FW_INLINE I32x16 dot_opened(I32x16 acc, B8x64 w, B8x64 x) {
  if constexpr (C == Codes::i8) return dot_i8i8(acc, w, x);
#if defined(FW_VNNI)
  return dot_u8i8(acc, w, x);
#else
  return dot_u7i8(acc, w, x);
#endif
}

// The dots of a sub-group: `w(i, j)` are codes of quad j of tile i, `x(t, j)` activations of token t.
template <Codes C, int Quads, int Tiles, int Tokens, class W, class X>
FW_INLINE void dots_of(I32x16 (&dot)[Tiles][Tokens], W codes, X tokens) {
#if defined(FW_PAIR_SUMS)
  if constexpr (C == Codes::u4) {
    B8x64 pairs[Tiles][Tokens];
    each<Quads>([&](auto j) FW_LAMBDA {
      each<Tiles>([&](auto i) FW_LAMBDA {
        const B8x64 w = codes(i, j);
        each<Tokens>([&](auto t) FW_LAMBDA {
          const B8x64 p = pairs_u4i8(w, tokens(t, j));
          if constexpr (j == 0)
            pairs[i][t] = p;
          else
            pairs[i][t] = add16(pairs[i][t], p);
        });
      });
    });
    each<Tiles>([&](auto i) FW_LAMBDA {
      each<Tokens>([&](auto t) FW_LAMBDA { dot[i][t] = add_pairs(dot[i][t], pairs[i][t]); });
    });
    return;
  }
#endif
#pragma GCC unroll 8
  for (int j = 0; j < Quads; ++j) {
    B8x64 w[Tiles];
    each<Tiles>([&](auto i) FW_LAMBDA { w[i] = codes(i, j); });
    each<Tokens>([&](auto t) FW_LAMBDA {
      const B8x64 xs = tokens(t, j);
      each<Tiles>([&](auto i) FW_LAMBDA { dot[i][t] = dot_opened<C>(dot[i][t], w[i], xs); });
    });
  }
}

template <int Sub, bool Mins, Codes C, int Tiles, int Tokens>
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
#pragma GCC unroll 2
    for (int part = 0; part < subs; ++part) {
      const int sums = (subs == 1 ? 44 : 36 + 4 * part) * Tokens;
      const int64_t place = g * subs + part;
      I32x16 dot[Tiles][Tokens];
      each<Tokens>([&](auto t) FW_LAMBDA {
        const I32x16 start = Mins || C == Codes::i8 ? izero() : ibroadcast(x + sums + 4 * t);
        each<Tiles>([&](auto i) FW_LAMBDA { dot[i][t] = start; });
      });
      dots_of<C, quads>(
          dot, [&](int i, int j) FW_LAMBDA { return bload(tiles[i].codes + (place * quads + j) * 64); },
          [&](int t, int j) FW_LAMBDA { return set4(x + kGroup * t + 4 * (part * quads + j)); });
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
    }
  }
  leave(sums_at, acc);
}

template <int Sub, bool Mins, Codes C, int Tokens>
void multiply_opened(const Stretch& s) {
  int64_t i = 0;
  for (; i + kTiles <= s.count; i += kTiles) multiply_tiles<Sub, Mins, C, kTiles, Tokens>(s, i);
  if constexpr (kTiles > 1)
    for (; i < s.count; ++i) multiply_tiles<Sub, Mins, C, 1, Tokens>(s, i);
}

}  // namespace flyweight::FW_ISA
