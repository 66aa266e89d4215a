#include "attend_share.h"

#include <algorithm>

#include "kv.h"

namespace flyweight {
namespace {

struct Context {
  int32_t sequence;
  const int32_t* blocks;
  int64_t count;  // blocks filled before this step

  bool operator<(const Context& other) const {
    return std::lexicographical_compare(blocks, blocks + count, other.blocks, other.blocks + other.count);
  }
};

std::vector<Context> sorted_contexts(const AttendPlace& p, int64_t most) {
  std::vector<Context> found;
  for (int32_t i = 0; i < p.sequences; ++i) {
    const int32_t tokens = p.starts[i + 1] - p.starts[i];
    if (tokens == 0 || tokens > most) continue;
    const int64_t full = p.positions[p.starts[i]] / p.block;
    if (full * p.block >= kTile) found.push_back({i, p.tables + i * p.table_width, full});
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Of contexts in order, those that share a prefix are neighbours: common[i] is what i has in common with i - 1.
class Grouping {
 public:
  Grouping(const AttendPlace& place, int64_t most) : contexts_(sorted_contexts(place, most)) {
    for (size_t i = 0; i < contexts_.size(); ++i) common_.push_back(i == 0 ? 0 : common(i, place.block));
  }

  std::vector<SharedPrefix> groups() {
    best(0, contexts_.size());
    return std::move(found_);
  }

 private:
  int32_t common(size_t i, int64_t block) const {
    const Context &a = contexts_[i - 1], &b = contexts_[i];
    const int64_t most = std::min(a.count, b.count);
    const int64_t same = std::mismatch(a.blocks, a.blocks + most, b.blocks).first - a.blocks;
    return static_cast<int32_t>(same * block / kTile * kTile);
  }

  // Groups contexts [begin, end), all as one or each part between the weakest links by itself; returns the positions
  // that need not be read again.
  int64_t best(size_t begin, size_t end) {
    if (end - begin < 2) return 0;
    const auto link = common_.begin() + static_cast<std::ptrdiff_t>(begin) + 1;
    const int32_t least = *std::min_element(link, link + static_cast<std::ptrdiff_t>(end - begin - 1));
    const int64_t together = static_cast<int64_t>(end - begin - 1) * least;
    const size_t known = found_.size();
    int64_t apart = 0;
    size_t from = begin;
    for (size_t i = begin + 1; i <= end; ++i) {
      if (i < end && common_[i] > least) continue;
      apart += best(from, i);
      from = i;
    }
    if (together == 0 || together < apart) return apart;
    found_.resize(known);
    found_.push_back({{}, least});
    for (size_t i = begin; i < end; ++i) found_.back().sequences.push_back(contexts_[i].sequence);
    return together;
  }

  std::vector<Context> contexts_;
  std::vector<int32_t> common_;
  std::vector<SharedPrefix> found_;
};

}  // namespace

std::vector<SharedPrefix> shared_prefixes(const AttendPlace& place, int64_t most) {
  if (place.sequences < 2) return {};
  return Grouping(place, most).groups();
}

}  // namespace flyweight
