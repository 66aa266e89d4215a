// Products over grouped weights with float activations: a stretch of a few tiles becomes float32 once and is then multiplied
// with every panel of the chunk.
//
// Invariant: acc = fma(w[k], x[k], acc) over kFold of K, k upward, then total = total + acc, whatever the kind; between
// stretches a total waits in `out`, which changes no bit.  What is opened is the same for every kind, so the loops are compiled once, not per kind.
#pragma once

#include "gemm_sums.h"

namespace flyweight::FW_ISA {

// Writes the exact values of K [k, k + count) of a tile: [count][16].
using OpenFloats = void (*)(Kind kind, const uint8_t* tile, int64_t k, int64_t count, float* to);

void multiply_floats(const LinearJob& job, Range tiles, Range panels, OpenFloats open);

}  // namespace flyweight::FW_ISA
