// Cuts one `attend` call into work items for the pool.  Compiled once; knows shapes, not K, V or targets.
//
// Invariant: what a row goes through is the same however the call is cut: its tiles and splits in ascending order.
#pragma once

#include <cstdint>
#include <vector>

#include "attend_share.h"
#include "kernels_attention.h"

namespace flyweight {

struct AttendShape {
  AttendPlace place;
  int64_t heads, kv_heads;
  Sight sight;
  int threads;
};

struct AttendPlan {
  std::vector<AttendItem> items;
  std::vector<AttendMerge> merges;
  std::vector<int32_t> order;   // tokens, for items to name runs of
  std::vector<int64_t> tokens;  // where each token's records start
  int64_t early = 0, records = 0;

  AttendWork work() const {
    return {items.data(), early, static_cast<int64_t>(items.size()), merges.data(),
            static_cast<int64_t>(merges.size()), order.data(), tokens.data()};
  }
};

// An item is a run of tokens of one sequence x a KV head.  Where sequences begin with the same blocks, items for the
// tokens of all of them come first and leave their softmax in records, where each sequence's own items go on.  Where
// there would be fewer than four items a thread, contexts are cut at the splits instead, shared ones too, and the parts
// merged.
AttendPlan plan_attend(const AttendShape& shape);

// Floats of scratch `attend` needs.
int64_t attend_floats(const AttendArgs& args, const AttendPlan& plan, int threads);

}  // namespace flyweight
