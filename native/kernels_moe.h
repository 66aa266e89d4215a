// Entry points of moe.cpp: which experts a token goes to, and the sum of what they said.  Included by kernels.h.
#pragma once

#include <cstdint>

#include "pool.h"

namespace flyweight {

constexpr int64_t kMostExperts = 1024;  // bounds what `route` keeps on the stack

enum class Scoring { softmax, chosen, sigmoid };

// flyweight.spec.RouteSpec and one call's arrays; 1 <= top <= experts <= kMostExperts, groups divides experts.
struct RouteArgs {
  const float* logits;  // [T, experts]
  const float* bias;    // [experts] or null: takes part in choosing only
  int32_t* ids;         // [T, top], written, best first
  float* weights;       // [T, top], written
  int64_t tokens, experts, top;
  Scoring scoring;
  bool normalise;
  double scale;
  int64_t groups, kept, judges;  // a group is as good as the sum of its `judges` best experts
};

// out[t] = the sum over j, upward, of weights[t, j] * y[place[t, j]].
struct MixArgs {
  const float* y;         // [T * top, width], in any order
  const int32_t* place;   // [T, top]
  const float* weights;   // [T, top]
  float* out;             // [T, width]
  int64_t tokens, top, width;
};

struct MoeKernels {
  void (*route)(Pool&, const RouteArgs&);
  void (*mix)(Pool&, const MixArgs&);
};

}  // namespace flyweight
