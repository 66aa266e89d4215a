// A run of decoder layers in one call: attention and feed-forward between norms, kernel after kernel.  Compiled once;
// knows their order and the place of each result, and leaves every bit to the kernels, which are given what the ops they
// represent would give them.
#pragma once

#include <cstdint>
#include <vector>

#include "attend_plan.h"
#include "experts.h"
#include "kernels.h"

namespace flyweight {

struct RowNorm {
  enum class Kind { none, rms, layer };
  Kind kind = Kind::none;
  const float *w = nullptr, *b = nullptr;  // [hidden]; b may be null
  float eps = 0;
};

// What is done to a block's output before it is added to the residual.
struct After {
  RowNorm norm;
  float factor = 1;
};

struct StackLayer {
  RowNorm attn_norm, mlp_norm;
  After attn_post, mlp_post;
  Parts qkv, out, up, down;  // up [inner or 2 inner, hidden], the rest as their names say
  HeadWeights q_norm, k_norm;
  float head_eps = 0;
  int64_t heads = 0, inner = 0;
  KVView kv;  // its shape, without memory
  float scale = 0, softcap = 0;
  Sight sight;
  const float* sinks = nullptr;  // [heads], or null
  bool gated = false;
  GatedAct act = GatedAct::silu;         // where gated
  PlainAct activation = PlainAct::silu;  // where not
  int64_t rope = 0;                      // which of the call's; -1: the last
};
using StackLayers = std::vector<StackLayer>;

struct StackRope {
  const float *cos, *sin;  // [T, half]
  int64_t half;
};

// Slots that every layer copies once it has written K and V, before it attends: as if all were read first.
struct StackCopies {
  const int32_t *from = nullptr, *to = nullptr;
  int64_t count = 0;
};

struct StackArgs {
  int64_t tokens, hidden;
  const float* pending;  // [T, hidden], to be added to the residual before the first layer; or null
  float* residual;       // [T, hidden], added to
  float* out;            // [T, hidden], written: what is still to be added after the last layer
  const KVView* kv;      // one a layer
  const StackRope* ropes;
  int64_t rope_count;
  const int32_t *slots, *positions;  // [T]
  int64_t sequences, table_width;
  const int32_t *starts, *tables;  // [S+1], [S, table_width]
  StackCopies copies;
  float* const* taps = nullptr;  // null, or one a layer: [T, hidden] for the residual after it, or null
};

// Who computes what of attention in this step, and the memory the step works in.
struct StackPlan {
  std::vector<AttendPlan> attends;  // layers of one shape share one
  std::vector<size_t> attend_of;    // [layers]
  int64_t panel_bytes = 0, attend_floats = 0;  // attention's copies are within its floats
};

struct StackMemory {
  float* arrays;    // [T, widths_of(...).all()]
  uint8_t* panels;  // plan.panel_bytes
  float* attend;    // plan.attend_floats
};

// Floats of a token in each of the arrays between kernels: what a block reads; what a projection gives; queries, or what
// the MLP multiplies.  Fused products (fused.h) use the second for their rooms and the third for panels.
struct StackWidths {
  int64_t normed, wide, narrow;
  int64_t all() const { return normed + wide + narrow; }
};

StackWidths widths_of(const StackLayers& layers, int64_t hidden);
StackPlan plan_stack(const StackLayers& layers, const StackArgs& args, int threads);
void run_stack(Pool& pool, const Kernels& kernels, const StackLayers& layers, const StackArgs& args,
               const StackPlan& plan, const StackMemory& memory);

}  // namespace flyweight
