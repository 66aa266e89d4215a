#include "attend_plan.h"

#include <algorithm>

namespace flyweight {
namespace {

constexpr int64_t kMaxRecords = 1 << 17;  // 70 MB at 128 elements; beyond it, contexts stay whole

int64_t splits(const AttendItem& item) { return item.last - item.first; }

// Runs of tokens, the latest of each sequence (the longest context) first.
std::vector<AttendItem> token_runs(const AttendShape& s) {
  const auto step = static_cast<int32_t>(item_tokens(s.heads / s.kv_heads));
  std::vector<AttendItem> runs;
  for (int32_t i = 0; i < s.sequences; ++i) {
    for (int32_t end = s.starts[i + 1]; end > s.starts[i];) {
      const int32_t first = std::max(s.starts[i], end - step);
      const int64_t from = first_seen(s.positions[first], s.window) / kSplit, to = s.positions[end - 1] / kSplit + 1;
      runs.push_back({i, 0, first, end - first, static_cast<int32_t>(from), static_cast<int32_t>(to), -1});
      end = first;
    }
  }
  return runs;
}

void cut(const AttendShape& s, AttendItem item, AttendPlan& plan) {
  plan.merges.push_back({item.head, item.token, item.count, item.first, plan.records});
  for (int32_t split = item.first; split < item.last; ++split) {
    AttendItem part = item;
    part.first = split;
    part.last = split + 1;
    part.record = plan.records;
    plan.records += item.count * (s.heads / s.kv_heads);
    plan.items.push_back(part);
  }
}

}  // namespace

AttendPlan plan_attend(const AttendShape& s) {
  const std::vector<AttendItem> runs = token_runs(s);
  const bool few = s.threads > 1 && static_cast<int64_t>(runs.size()) * s.kv_heads < 4 * s.threads;
  int64_t records = 0;
  for (const AttendItem& run : runs) records += splits(run) > 1 ? run.count * s.heads * splits(run) : 0;
  AttendPlan plan;
  for (const AttendItem& run : runs) {
    for (int32_t head = 0; head < s.kv_heads; ++head) {
      AttendItem item = run;
      item.head = head;
      if (few && splits(item) > 1 && records <= kMaxRecords) {
        cut(s, item, plan);
      } else {
        plan.items.push_back(item);
      }
    }
  }
  return plan;
}

int64_t attend_floats(const AttendArgs& a, const AttendPlan& plan, int threads) {
  return plan.records * record_floats(a.kv.v_dim) + threads * worker_floats(a.heads / a.kv.heads, a.kv) +
         kSpare / static_cast<int64_t>(sizeof(float));
}

}  // namespace flyweight
