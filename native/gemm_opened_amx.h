// The product of opened tiles on AMX: 16 tokens x 16 rows a tile, one instruction a sub-group.  Included by gemm_opened.cpp.
//
// tdpbssd adds int8 products exactly, so the bits are those of the vector path.  Its result goes through memory, where
// vectors convert, scale and add it; the next sub-group's product is under way meanwhile.
#pragma once

#include "gemm_opened.h"

namespace flyweight::FW_ISA {

enum class Codes { i8 };  // codes are opened signed, without an offset
inline Codes codes_of(const OpenedForm&) { return Codes::i8; }

// The shapes of the tile registers: set anew where the panel's size or the sub-group changes.
class Arrangement {
 public:
  ~Arrangement() {
    if (tokens_) TileShapes::release();
  }
  void set(const OpenedForm& form, int64_t tokens) {
    if (tokens == tokens_) return;
    tokens_ = tokens;
    TileShapes shapes;
    for (const int i : {0, 1, 2, 3}) shapes.set(i, tokens, 64);
    for (const int i : {0, 1}) {
      shapes.set(4 + i, tokens, form.sub);
      shapes.set(6 + i, form.sub / 4, 64);
    }
    shapes.load();
  }

 private:
  int64_t tokens_ = 0;
};

// A sub-group goes through three stages: its product is started, stored, and added to the sums.  A step does one stage of
// three sub-groups, a quarter of the vector work between any two tile instructions: one after the other they would wait
// for each other (measured: 20 ns a sub-group, against 14.5).  The tiles of a stretch follow each other without a gap; what
// is started beyond the last is never stored.
template <int Sub, bool Mins, int Tokens>
class OpenedProduct {
 public:
  // Whole runs of kSets sub-groups only.
  static bool fits(const Stretch& s) { return s.groups * kSubs % kSets == 0; }

  explicit OpenedProduct(const Stretch& s) : s_(s) {}

  FW_INLINE void run() {
    begin<0>(s_.panel, s_.tiles->codes);
    begin<1>(s_.panel + tokens(1), s_.tiles->codes + kCodes);
    tile_store<0>(dots_[0], 64);
    for (int64_t i = 0; i < s_.count; ++i) {
      const Opened* tile = s_.tiles + i;
      multiply(*tile, i + 1 < s_.count ? tile[1].codes : s_.tiles->codes, s_.sums + i * kSumTokens * kLanes,
               s_.ahead + i * s_.ahead_stride);
    }
  }

  // Any number of sub-groups, one after the other.
  FW_INLINE void run_slowly() {
    for (int64_t i = 0; i < s_.count; ++i) {
      float* sums = s_.sums + i * kSumTokens * kLanes;
      F32x16 acc[1][Tokens];
      resume(sums, s_.first, acc);
      for (int64_t g = 0; g < s_.groups; ++g)
        each<kSubs>([&](auto part) FW_LAMBDA {
          const uint8_t* x = s_.panel + g * kRecord * Tokens;
          const int64_t at = g * kSubs + part;
          begin<0>(x + part * Sub, s_.tiles[i].codes + at * kCodes);
          tile_store<0>(dots_[0], 64);
          const float* scale = s_.tiles[i].scales + at * kLanes;
          each<4>([&](auto quarter) FW_LAMBDA { add<quarter, part>(x, scale, dots_[0], acc); });
        });
      leave(sums, acc);
    }
  }

 private:
  static constexpr int kSubs = kGroup / Sub, kSets = 4, kQuarter = (Tokens + 3) / 4, kCodes = Sub * kLanes;

  // Where the codes of sub-group i of a panel begin, and those of its group.
  static constexpr int64_t group(int i) { return i / kSubs * kRecord * Tokens; }
  static constexpr int64_t tokens(int i) { return group(i) + i % kSubs * Sub; }

  template <int Set>
  FW_INLINE static void begin(const uint8_t* x, const uint8_t* codes) {
    tile_zero<Set>();
    tile_load<4 + Set % 2>(x, kGroup);
    tile_load<6 + Set % 2>(codes, 64);
    tile_dot_i8<Set, 4 + Set % 2, 6 + Set % 2>();
  }

  // One tile; `next` are the codes of the one after it, `ahead` what to prefetch meanwhile.
  FW_INLINE void multiply(const Opened& tile, const uint8_t* next, float* sums, const uint8_t* ahead) {
    F32x16 acc[1][Tokens];
    resume(sums, s_.first, acc);
    const uint8_t *x = s_.panel, *codes = tile.codes;
    const float* scale = tile.scales;
    for (int64_t left = s_.groups * kSubs / kSets; left > 0; --left) {
      const int64_t bytes = s_.ahead_bytes * (kSets / kSubs);
      prefetch(ahead, bytes);
      ahead += bytes;
      const uint8_t* x_after = left > 1 ? x + group(kSets) : s_.panel;
      const uint8_t* codes_after = left > 1 ? codes + kSets * kCodes : next;
      step<0>(x, scale, x + tokens(2), codes + 2 * kCodes, acc);
      step<1>(x, scale, x + tokens(3), codes + 3 * kCodes, acc);
      step<2>(x, scale, x_after, codes_after, acc);
      step<3>(x, scale, x_after + tokens(1), codes_after + kCodes, acc);
      x = x_after, codes = codes_after, scale += kSets * kLanes;
    }
    leave(sums, acc);
  }

  // Adds set `Set` of a run, stores the one after it, starts the one after that.
  template <int Set>
  FW_INLINE void step(const uint8_t* x, const float* scale, const uint8_t* x_ahead, const uint8_t* codes_ahead,
                      F32x16 (&acc)[1][Tokens]) {
    constexpr int next = (Set + 1) % kSets, after = (Set + 2) % kSets, part = Set % kSubs;
    x += group(Set), scale += Set * kLanes;
    tile_zero<after>();
    tile_load<4 + after % 2>(x_ahead, kGroup);
    add<0, part>(x, scale, dots_[Set], acc);
    tile_load<6 + after % 2>(codes_ahead, 64);
    add<1, part>(x, scale, dots_[Set], acc);
    tile_dot_i8<after, 4 + after % 2, 6 + after % 2>();
    add<2, part>(x, scale, dots_[Set], acc);
    tile_store<next>(dots_[next], 64);
    add<3, part>(x, scale, dots_[Set], acc);
  }

  // A quarter of the tokens: x is their group, `scale` the sub-group's, its minimum as far on as lows are from scales.
  template <int Quarter, int Part>
  FW_INLINE static void add(const uint8_t* x, const float* scale, const int32_t* dots, F32x16 (&acc)[1][Tokens]) {
    constexpr int first = Quarter * kQuarter < Tokens ? Quarter * kQuarter : Tokens;
    constexpr int tokens = Tokens - first < kQuarter ? Tokens - first : kQuarter;
    const uint8_t* scales = x + kGroup * Tokens + 4 * first;
    const F32x16 by = load(scale);
    each<tokens>([&](auto t) FW_LAMBDA {
      F32x16& sum = acc[0][first + t];
      sum = fma(to_f32(iload(dots + (first + t) * kLanes)), mul(by, broadcast(scales + 4 * t)), sum);
    });
    if constexpr (Mins) {
      const uint8_t* sums = scales + (kSubs == 1 ? 12 : 4 + 4 * Part) * Tokens;
      const F32x16 low = load(scale + kOpenScales);
      each<tokens>([&](auto t) FW_LAMBDA {
        F32x16& sum = acc[0][first + t];
        sum = fma(low, broadcast(sums + 4 * t), sum);
      });
    }
    each<tokens>([&](auto t) FW_LAMBDA { settle(acc[0][first + t]); });
  }

  const Stretch& s_;
  alignas(64) int32_t dots_[kSets][kTileRows * kLanes];
};

template <int Sub, bool Mins, Codes, int Tokens>
void multiply_opened(const Stretch& s) {
  OpenedProduct<Sub, Mins, Tokens> product(s);
  product.fits(s) ? product.run() : product.run_slowly();
}

}  // namespace flyweight::FW_ISA
