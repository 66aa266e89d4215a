// Entry points of encode_blocks.cpp: float rows to the blocks of GGUF's quantised types.
#pragma once

#include <cstdint>

#include "pool.h"

namespace flyweight {

enum class BlockKind { q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs };

constexpr int64_t block_length(BlockKind kind) { return kind < BlockKind::q2_k ? 32 : 256; }

constexpr int64_t block_bytes(BlockKind kind) {
  constexpr int64_t kBytes[] = {18, 20, 22, 24, 34, 18, 84, 110, 144, 176, 210, 136};
  return kBytes[static_cast<int>(kind)];
}

// Rows [rows, k] as float32, or as bfloat16 bits where `x` is null; k is whole blocks, every value finite and at most
// 65504.  `importance` [k], not negative, weighs the squared error of a column; null: all the same.
struct EncodeJob {
  const float* x = nullptr;
  const uint16_t* bits = nullptr;
  const float* importance = nullptr;
  uint8_t* out = nullptr;  // [rows, k / block_length * block_bytes]
  int64_t rows = 0, k = 0;
  BlockKind kind = BlockKind::q4_0;
};

struct EncodeKernels {
  void (*encode)(Pool&, const EncodeJob&);
};

}  // namespace flyweight
