// The product of opened tiles on AMX: 16 tokens x 16 rows a tile, one instruction a sub-group.  Included by gemm_opened.cpp.
//
// tdpbssd adds int8 products exactly, so the bits are those of the vector path.  Its result goes through memory, where
// vectors convert, scale and add it; the next sub-group's product is under way meanwhile.
#pragma once

#include "amx.h"
#include "gemm_opened.h"

namespace flyweight::FW_ISA {

constexpr bool kOpenSigned = true;
constexpr int kOpenedTokens = kTileRows;

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

// A sub-group goes through three stages: its product is started, stored, and added to the sums.  A step of the loop does
// one stage of three sub-groups, a quarter of the vector work between any two tile instructions: done one after the other
// they would wait for each other (measured: 20 ns a sub-group, against 14.5).  The tiles of a stretch follow each other
// without a gap.
template <int Sub, bool Mins, int Tokens>
class OpenedProduct {
 public:
  explicit OpenedProduct(const Stretch& s) : s_(s), count_(s.groups * kSubs), end_(s.count * count_) {}

  FW_INLINE void run() {
    F32x16 acc[1][Tokens];
    load_tokens<0>();
    load_codes<0>();
    multiply<0>();
    if (end_ > 1) {
      load_tokens<1>();
      load_codes<1>();
      multiply<1>();
    }
    tile_store<0>(dots_[0], 64);
    for (int64_t i = 0; i < end_; i += kSets)
      each<kSets>([&](auto set) FW_LAMBDA {
        if (i + set < end_) step<set>(i + set, acc);
      });
  }

 private:
  static constexpr int kSubs = kGroup / Sub, kSets = 4, kQuarter = (Tokens + 3) / 4;

  // A sub-group of one of the tiles.
  struct Place {
    const Opened* tile;
    float* sums;
    int64_t i;
  };
  FW_INLINE void advance(Place& place) const {
    if (++place.i < count_) return;
    place.i = 0, ++place.tile, place.sums += kSumTokens * kLanes;
  }
  FW_INLINE const uint8_t* group(int64_t i) const { return s_.panel + i / kSubs * kRecord * Tokens; }

  template <int Set>
  FW_INLINE void load_tokens() {
    tile_zero<Set>();
    tile_load<4 + Set % 2>(group(ahead_.i) + ahead_.i % kSubs * Sub, kGroup);
  }
  template <int Set>
  FW_INLINE void load_codes() {
    tile_load<6 + Set % 2>(ahead_.tile->codes + ahead_.i * Sub * kLanes, 64);
    advance(ahead_);
  }
  template <int Set>
  FW_INLINE void multiply() {
    tile_dot_i8<Set, 4 + Set % 2, 6 + Set % 2>();
  }

  // Sub-group i of all.
  template <int Set>
  FW_INLINE void step(int64_t i, F32x16 (&acc)[1][Tokens]) {
    constexpr int next = (Set + 1) % kSets, after = (Set + 2) % kSets;
    const bool more = i + 2 < end_;
    if (here_.i == 0) resume(here_.sums, s_.first, acc);
    if (more) load_tokens<after>();
    add<0>(dots_[Set], acc);
    if (more) load_codes<after>();
    add<1>(dots_[Set], acc);
    if (more) multiply<after>();
    add<2>(dots_[Set], acc);
    if (i + 1 < end_) tile_store<next>(dots_[next], 64);
    add<3>(dots_[Set], acc);
    if (here_.i == count_ - 1) leave(here_.sums, acc);
    advance(here_);
  }

  // A quarter of the tokens.
  template <int Quarter>
  FW_INLINE void add(const int32_t* dots, F32x16 (&acc)[1][Tokens]) const {
    constexpr int first = Quarter * kQuarter < Tokens ? Quarter * kQuarter : Tokens;
    constexpr int tokens = Tokens - first < kQuarter ? Tokens - first : kQuarter;
    const uint8_t* scales = group(here_.i) + kGroup * Tokens + 4 * first;
    const F32x16 scale = load(here_.tile->scales + here_.i * kLanes);
    each<tokens>([&](auto t) FW_LAMBDA {
      F32x16& sum = acc[0][first + t];
      sum = fma(to_f32(iload(dots + (first + t) * kLanes)), mul(scale, broadcast(scales + 4 * t)), sum);
    });
    if constexpr (Mins) {
      const uint8_t* sums = scales + (kSubs == 1 ? 12 : 4 + 4 * (here_.i % kSubs)) * Tokens;
      const F32x16 low = load(here_.tile->lows + here_.i * kLanes);
      each<tokens>([&](auto t) FW_LAMBDA {
        F32x16& sum = acc[0][first + t];
        sum = fma(low, broadcast(sums + 4 * t), sum);
      });
    }
    each<tokens>([&](auto t) FW_LAMBDA { settle(acc[0][first + t]); });
  }

  const Stretch& s_;
  const int64_t count_, end_;
  Place here_{s_.tiles, s_.sums, 0}, ahead_{s_.tiles, s_.sums, 0};
  alignas(64) int32_t dots_[kSets][kTileRows * kLanes];
};

template <int Sub, bool Mins, bool, int Tokens>
void multiply_opened(const Stretch& s) {
  OpenedProduct<Sub, Mins, Tokens>(s).run();
}

}  // namespace flyweight::FW_ISA
