#include "attend_plan.h"

#include <algorithm>
#include <numeric>

namespace flyweight {
namespace {

constexpr int64_t kMaxRecords = 1 << 17;  // 70 MB at 128 elements; beyond it, contexts stay whole
constexpr int64_t kMaxShared = 1 << 12;   // rows (token, head) that share prefixes, two records each
constexpr int64_t kMostTokens = 8;        // of a sequence that shares: one, and drafts

// Tokens [token, token + count) of `order`, positions ascending, and the positions that they see.
struct Run {
  int32_t sequence, token, count, first, last;

  int64_t splits() const { return last / kSplit - first / kSplit; }
};

class Planner {
 public:
  explicit Planner(const AttendShape& s) : s_(s), step_(static_cast<int32_t>(item_tokens(s.heads / s.kv_heads))) {
    plan_.order.resize(static_cast<size_t>(s.place.starts[s.place.sequences]));
    std::iota(plan_.order.begin(), plan_.order.end(), 0);
    plan_.tokens.assign(plan_.order.size(), 0);
    shared_.assign(static_cast<size_t>(s.place.sequences), 0);
  }

  AttendPlan plan() {
    for (int32_t i = 0; i < s_.place.sequences; ++i) add_runs(i);
    const bool few = s_.threads > 1 && static_cast<int64_t>(runs_.size()) * s_.kv_heads < 4 * s_.threads;
    if (few && records() <= kMaxRecords) {
      cut();
    } else {
      share();
    }
    return std::move(plan_);
  }

 private:
  int32_t position(int32_t token) const { return s_.place.positions[token]; }
  int64_t first_split(int32_t token) const { return first_seen(position(token), s_.sight) / kSplit; }

  Run run(int32_t sequence, int32_t token, int32_t count) const {
    const int64_t first = first_seen(position(plan_.order[static_cast<size_t>(token)]), s_.sight) / kSplit;
    const int64_t last = position(plan_.order[static_cast<size_t>(token + count - 1)]) / kSplit + 1;
    return {sequence, token, count, static_cast<int32_t>(first * kSplit), static_cast<int32_t>(last * kSplit)};
  }

  // The latest tokens, with the longest context, first.
  void add_runs(int32_t sequence) {
    const int32_t begin = s_.place.starts[sequence];
    for (int32_t end = s_.place.starts[sequence + 1]; end > begin;) {
      const int32_t first = std::max(begin, end - step_);
      runs_.push_back(run(sequence, first, end - first));
      end = first;
    }
  }

  int64_t records() const {
    int64_t sum = 0;
    for (const Run& r : runs_) sum += r.splits() > 1 ? r.count * s_.heads * r.splits() : 0;
    return sum;
  }

  // For all heads.
  void add_items(const Run& r, int32_t first, int32_t last, int32_t record) {
    for (int32_t head = 0; head < s_.kv_heads; ++head)
      plan_.items.push_back({r.sequence, head, r.token, r.count, first, last, record, false});
  }

  // The tokens of all sequences of a prefix as runs of their own, by position.
  std::vector<Run> shared_runs(const SharedPrefix& prefix) {
    std::vector<std::pair<int32_t, int32_t>> found;  // (token, sequence)
    for (const int32_t i : prefix.sequences)
      for (int32_t t = s_.place.starts[i]; t < s_.place.starts[i + 1]; ++t) found.emplace_back(t, i);
    std::stable_sort(found.begin(), found.end(),
                     [&](auto a, auto b) { return position(a.first) < position(b.first); });
    std::vector<Run> runs;
    const auto begin = static_cast<int32_t>(plan_.order.size()), count = static_cast<int32_t>(found.size());
    for (const auto& [token, sequence] : found) plan_.order.push_back(token);
    for (int32_t at = 0; at < count; at += step_)
      runs.push_back(run(found[static_cast<size_t>(at)].second, begin + at, std::min(step_, count - at)));
    return runs;
  }

  // Shared prefixes first, from their beginning to their end; then every sequence from there.
  void share() {
    int64_t rows = 0;
    for (const SharedPrefix& prefix : shared_prefixes(s_.place, kMostTokens)) {
      int64_t tokens = 0;
      for (const int32_t i : prefix.sequences) tokens += s_.place.starts[i + 1] - s_.place.starts[i];
      rows += tokens * s_.heads;
      if (rows > kMaxShared) break;
      for (const int32_t i : prefix.sequences) {
        shared_[static_cast<size_t>(i)] = prefix.end;
        for (int32_t t = s_.place.starts[i]; t < s_.place.starts[i + 1]; ++t) keep(t, 0, 2);
      }
      for (const Run& r : shared_runs(prefix)) add_items(r, 0, prefix.end, 0);
    }
    add_own(false);
    plan_.early = static_cast<int64_t>(plan_.items.size());
    add_own(true);
  }

  // Whole runs.  A sequence's runs at one head follow each other, so that its K and V stay in the cache.
  void add_own(bool sharing) {
    for (size_t begin = 0, end; begin < runs_.size(); begin = end) {
      const int32_t sequence = runs_[begin].sequence, after = shared_[static_cast<size_t>(sequence)];
      for (end = begin; end < runs_.size() && runs_[end].sequence == sequence;) ++end;
      if ((after > 0) != sharing) continue;
      for (int32_t head = 0; head < s_.kv_heads; ++head)
        for (size_t i = begin; i < end; ++i) add_item(runs_[i], head, sharing ? after : runs_[i].first, sharing);
    }
  }

  void add_item(const Run& r, int32_t head, int32_t first, bool resumes) {
    plan_.items.push_back({r.sequence, head, r.token, r.count, first, r.last, -1, resumes});
  }

  // Every split by itself, those of shared prefixes for all who share them.
  void cut() {
    for (const SharedPrefix& prefix : shared_prefixes(s_.place, kMostTokens)) {
      const auto end = static_cast<int32_t>(prefix.end / kSplit * kSplit);
      for (const int32_t i : prefix.sequences) shared_[static_cast<size_t>(i)] = end;
      for (const Run& r : shared_runs(prefix)) add_splits(r, r.first, end);
    }
    for (const Run& r : runs_) {
      if (r.splits() == 1) {
        add_items(r, r.first, r.last, -1);
        continue;
      }
      for (int32_t i = r.token; i < r.token + r.count; ++i)
        keep(i, first_split(i), position(i) / kSplit + 1 - first_split(i));
      add_splits(r, std::max(r.first, shared_[static_cast<size_t>(r.sequence)]), r.last);
      for (int32_t head = 0; head < s_.kv_heads; ++head) plan_.merges.push_back({head, r.token, r.count});
    }
    plan_.early = static_cast<int64_t>(plan_.items.size());
  }

  void add_splits(const Run& r, int32_t first, int32_t last) {
    for (int32_t at = first; at < last; at += kSplit)
      add_items(r, at, at + static_cast<int32_t>(kSplit), static_cast<int32_t>(at / kSplit));
  }

  // Room for a token's records, of which the least is number `first`.
  void keep(int32_t token, int64_t first, int64_t count) {
    plan_.tokens[static_cast<size_t>(token)] = plan_.records - first * s_.heads;
    plan_.records += count * s_.heads;
  }

  const AttendShape& s_;
  int32_t step_;  // tokens of an item
  std::vector<Run> runs_;
  std::vector<int32_t> shared_;  // positions that each sequence reads with others
  AttendPlan plan_;
};

}  // namespace

AttendPlan plan_attend(const AttendShape& s) { return Planner(s).plan(); }

int64_t attend_floats(const AttendArgs& a, const AttendPlan& plan, int threads) {
  return plan.records * record_floats(a.kv.v_dim) + threads * worker_floats(a.heads / a.kv.heads, a.kv) +
         kSpare / static_cast<int64_t>(sizeof(float));
}

}  // namespace flyweight
