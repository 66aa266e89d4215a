// Cuts one `attend` call into work items for the pool.  Compiled once; knows shapes, not K, V or targets.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels_attention.h"

namespace flyweight {

struct AttendShape {
  int64_t sequences;
  const int32_t* starts;     // [S+1]
  const int32_t* positions;  // [T]
  int64_t heads, kv_heads, window;
  int threads;
};

struct AttendPlan {
  std::vector<AttendItem> items;
  std::vector<AttendMerge> merges;
  int64_t records = 0;  // of splits computed apart

  AttendWork work() const {
    return {items.data(), static_cast<int64_t>(items.size()), merges.data(), static_cast<int64_t>(merges.size())};
  }
};

// An item is a run of tokens x a KV head.  Where that leaves fewer than four items a thread, contexts are cut at the
// splits too, and the parts merged afterwards.
AttendPlan plan_attend(const AttendShape& shape);

// Floats of scratch `attend` needs.
int64_t attend_floats(const AttendArgs& args, const AttendPlan& plan, int threads);

}  // namespace flyweight
