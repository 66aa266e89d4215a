// Products whose outputs are used while they are in cache: a few tiles at a time go to a room of the worker's own, and
// what is computed of them leaves it.  So the outputs themselves never go through memory.
//
// Invariant: the bits are those of `linear` and of what follows, one after another.  Compiled once; knows how work is cut,
// and leaves every bit to the kernels of the target.
#pragma once

#include "kernels.h"

namespace flyweight {

// Scratch, for all workers.
struct Rooms {
  float* floats;
  int64_t size;
};

// Rows of a weight from `tile` on.  `job` has no `out`.
struct WeightRows {
  LinearJob job;
  int64_t tile = 0;
};

// The first half of a gated MLP: act(gate) * up, rounded into the panels that `down` reads.
struct GatedProduct {
  WeightRows gate, up;  // read the same panels, gate's
  int64_t inner;        // rows of each
  GatedAct act;
  LinearJob down;  // no `x`
  Rooms rooms;
};

// Queries, keys and values: normed, rotated and stored by KV heads.
struct HeadsProduct {
  WeightRows q, k, v;   // read the same panels, q's
  RopeStoreArgs store;  // no `x`
  Rooms rooms;
};

// Whether it can be done so: enough tokens to pay, halves cut into the same panels, and room for every worker.
bool can_fuse(const GatedProduct& product, const GemmKernels& kernels, int threads);
bool can_fuse(const HeadsProduct& product, const GemmKernels& kernels, int threads);
void multiply_fused(Pool& pool, const Kernels& kernels, const GatedProduct& product);
void multiply_fused(Pool& pool, const Kernels& kernels, const HeadsProduct& product);

}  // namespace flyweight
