// Products of more than a few tokens over grouped weights with int8 activations: a stretch of each tile is opened once
// (codes to bytes, scales to float32) and then multiplied with every panel of the chunk.
//
// Invariant: the sums of multiply_i8 in gemm_tile.h, operation by operation; between stretches an accumulator waits in
// `out`, which changes no bit.  What is opened is the same for every kind, so these loops are compiled once, not per kind.
#pragma once

#include "gemm_sums.h"
#if defined(FW_ISA_AMX)
#include "amx.h"
#endif

namespace flyweight::FW_ISA {

constexpr int kOpenK = 1024;  // K of a stretch: the activations of a panel stay in L1 while tiles pass
constexpr int kFewK = 512, kFewTiles = 2;  // the same for few tokens: 20 KiB of codes and scales, which stay in L1
constexpr int kOpenTiles = kSumTiles;  // tiles opened at a time, 192 KiB of a thread's stack; they stay in L2 while panels pass

#if !defined(FW_ISA_AMX)
constexpr int kOpenedTokens = kTokens;  // of a panel
#elif defined(FW_FEW_WIDTHS)
constexpr int kOpenedTokens = 4;
#else
constexpr int kOpenedTokens = kTileRows;
#endif
constexpr int kOpenScales = kOpenK / 16 * kLanes;

// A stretch of one tile.  Codes are quads as in a plane of 8 bits.
struct alignas(64) Opened {
  uint8_t codes[kOpenK * kLanes];
  float scales[kOpenScales];  // of sub-groups, 16 rows each
  float lows[kOpenScales];    // minima, negated
};

// How products read opened tiles.
struct OpenedForm {
  int sub;     // K that share a scale
  bool mins;
  bool is_signed;  // codes are int8 and have no offset, else uint8
  bool small;      // no code is above 15
};

// Opens groups [group, group + groups) of a tile.
using OpenTile = void (*)(Kind kind, const uint8_t* tile, int64_t group, int64_t groups, Opened& to);

void multiply_opened(const LinearJob& job, Range tiles, Range panels, const OpenedForm& form, OpenTile open);

// What the products of some opened tiles with one panel read, and where they add.
struct Stretch {
  const Opened* tiles;
  int64_t count;
  const uint8_t* panel;  // its first group
  float* sums;           // of the first tile; those of the next are kSumTokens rows further
  int64_t groups;
  bool first;  // of K: there are no sums yet
  // What is opened next.  The first panel's products prefetch it, so that memory is busy while they multiply: `ahead_bytes`
  // a group (0: others did), the tiles `ahead_stride` apart.
  const uint8_t* ahead;
  int64_t ahead_bytes, ahead_stride;
};

}  // namespace flyweight::FW_ISA
