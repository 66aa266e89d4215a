// Products with bf16 activations on AMX: grouped weights, whose codes are opened to pairs of bf16 first, and for many tokens
// weights of bf16.
//
// Invariant: a grouped weight is rounded to bf16 by its codes, scale and minimum alone (gemm_open_pairs.h), and each output
// is one accumulator that takes 32 of K an instruction, upward.  So its bits depend on its row of x and its weight row
// alone.  In a group of 32 K opened from codes, and in its panels, the second and third K of every four are exchanged.
#pragma once

#include "gemm_sums.h"

namespace flyweight::FW_ISA {

constexpr int kOpenedBytes = kGroup * kLanes * 2;  // of a group of a tile: a register

// Values of groups, before the scales of rows, may be large: they are opened so many times as large, and sums divided.
FW_SIZE float opened_unit(Kind kind) {
  if (!grouped(kind) || !form_of(kind).rows) return 1;
  return base_of(kind) == Kind::nvfp4 ? 1.0f / 8192 : 1.0f / 256;
}

// How tiles of a kind, of `bytes` each, are opened.  `one` and `two` are for few tokens.
struct OpenPairs {
  // Groups [group, group + groups) of a tile of `bytes`; null where they need not be opened.
  void (*some)(Kind kind, const uint8_t* tile, int64_t bytes, int64_t group, int64_t groups, uint8_t* to);
  // A group of one tile, or of two; prefetches what such calls will open later.
  void (*one)(Kind kind, const uint8_t* tile, int64_t bytes, int64_t group, uint8_t* to);
  void (*two)(Kind kind, const uint8_t* tile, int64_t bytes, int64_t group, uint8_t* to);
};

void multiply_opened_pairs(const LinearJob& job, Range tiles, Range panels, const OpenPairs& open);

}  // namespace flyweight::FW_ISA
