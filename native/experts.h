// Many small products in one go: a mixture's experts, or heads with a matrix each.  Compiled once; knows shapes and who
// gets which rows, and leaves every bit to the kernels of the target.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace flyweight {

// A packed matrix [n, k] with its bias, and what its activations are rounded to.
struct Matrix {
  const uint8_t* tiles = nullptr;
  const float* bias = nullptr;
  int64_t n = 0, k = 0;
  Kind kind = Kind::f32;
  Mode mode = Mode::f32;
  bool round_bf16 = false;
};
using Parts = std::vector<Matrix>;  // side by side along n

struct Expert {
  Parts up, down;  // [2 inner, hidden], [hidden, inner]; empty where no token chose it
};

struct ExpertsArgs {
  const float* x;         // [T, hidden]
  const int32_t* ids;     // [T, top], each within `experts`
  const float* weights;   // [T, top]
  float* out;             // [T, hidden], written
  int64_t tokens, top, hidden, inner;
  GatedAct act;
};

// The pairs (token, choice) sorted by expert, and the memory a wave of them needs.
struct ExpertsPlan {
  std::vector<int64_t> starts;  // [experts + 1]: expert e owns sorted pairs [starts[e], starts[e + 1])
  std::vector<int32_t> rows;    // [T * top]: the token of a sorted pair
  std::vector<int32_t> place;   // [T, top]: the place of a pair among the sorted
  int64_t wave = 0;             // pairs worked on together, at most
  int64_t panel_bytes = 0;      // rounded activations of one pair, at most

  int64_t pairs() const { return static_cast<int64_t>(rows.size()); }
};

ExpertsPlan plan_experts(const ExpertsArgs& args, const std::vector<Expert>& experts);
int64_t experts_bytes(const ExpertsArgs& args, const ExpertsPlan& plan);  // of scratch, 64-byte aligned
void experts(Pool& pool, const Kernels& kernels, const ExpertsArgs& args, const std::vector<Expert>& experts,
             const ExpertsPlan& plan, uint8_t* scratch);

// x [T, heads, K] -> out [T, heads, N]: head h through its own matrix.
struct HeadsArgs {
  const float* x;
  float* out;
  int64_t tokens, k, n;
};
int64_t heads_bytes(const HeadsArgs& args, const std::vector<Parts>& heads);
void linear_heads(Pool& pool, const Kernels& kernels, const HeadsArgs& args, const std::vector<Parts>& heads,
                  uint8_t* scratch);

}  // namespace flyweight
