// Blocks as GGUF files have them, taken apart: codes one a byte, scales and minima as ops/grouped.py names them.  Only moves
// bits: no value is rounded.  The layouts are those of weights/formats/, whose parsers say the same in NumPy.
#pragma once

#include "kernels_gemm.h"

namespace flyweight {

// One block of the kinds of `block_bytes`, in canonical form.
struct Parsed {
  alignas(64) uint8_t codes[256];
  uint8_t scales[16], mins[16];  // float16 or whole numbers
  uint8_t super_scales[2], super_mins[2];
};

// Bytes of a block on disk; 0: a kind that only NumPy parses.
int64_t block_bytes(Kind kind);
void parse_block(Kind kind, const uint8_t* block, Parsed& to);

}  // namespace flyweight
