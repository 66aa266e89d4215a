// plan_attend: every tile a row sees is read for it once, in order, and blocks that sequences share once for all.
// Exit status 1 names the first case that fails.
#include "../attend_plan.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

namespace {

using namespace flyweight;

constexpr int64_t kHeads = 16, kKvHeads = 8, kBlock = 32;

// `shared[i]` leading blocks of sequence i are those of sequence 0; one token each, at `positions[i]`.
struct Case {
  const char* name;
  std::vector<int32_t> positions, shared;
  int threads;
  int64_t window, reads;  // positions to be read for one KV head
  int64_t chunk = 0;
};

int64_t reads(const Case& c) {
  std::vector<int32_t> starts{0}, tables;
  const auto count = static_cast<int32_t>(c.positions.size());
  constexpr int32_t width = 128;
  for (int32_t i = 0; i < count; ++i) {
    starts.push_back(i + 1);
    for (int32_t b = 0; b < width; ++b) tables.push_back(b < c.shared[static_cast<size_t>(i)] ? b : i * width + b);
  }
  const AttendPlace place{count, starts.data(), c.positions.data(), tables.data(), width, kBlock};
  const AttendPlan plan = plan_attend({place, kHeads, kKvHeads, {c.window, c.chunk}, c.threads});
  std::map<std::pair<int32_t, int32_t>, int64_t> seen;  // (token, KV head) -> tiles
  int64_t sum = 0;
  for (const AttendItem& item : plan.items) {
    int64_t least = item.last, end = item.first;
    for (int32_t i = item.token; i < item.token + item.count; ++i) {
      const int32_t token = plan.order[static_cast<size_t>(i)], position = c.positions[static_cast<size_t>(token)];
      const int64_t low = std::max<int64_t>(item.first, first_seen(position, {c.window, c.chunk}) / kTile * kTile);
      const int64_t high = std::min<int64_t>(item.last, (position / kTile + 1) * kTile);
      for (int64_t at = low; at < high; at += kTile) ++seen[{token, item.head}];
      least = std::min(least, low);
      end = std::max(end, high);
    }
    sum += std::max<int64_t>(0, end - least);
  }
  for (int32_t token = 0; token < count; ++token) {
    const int32_t position = c.positions[static_cast<size_t>(token)];
    const int64_t tiles = position / kTile + 1 - first_seen(position, {c.window, c.chunk}) / kTile;
    for (int32_t head = 0; head < kKvHeads; ++head)
      if (seen[{token, head}] != tiles) return -1;
  }
  return sum / kKvHeads;
}

}  // namespace

int main() {
  const std::vector<int32_t> at3000(16, 3000), all94(16, 93), none(16, 0);
  std::vector<int32_t> halves;
  for (int32_t i = 0; i < 16; ++i) halves.push_back(i % 2 == 0 ? 93 : 20);
  const Case cases[] = {
      // 93 blocks are 2,976 positions, 46 whole tiles are 2,944; each goes on alone for one tile, to 3,008.
      {"a prefix of 3,000", at3000, all94, 2, 0, 2944 + 16 * 64},
      {"nothing shared", at3000, none, 2, 0, 16 * 3008},
      {"one alone", {3000}, {0}, 1, 0, 3008},
      // Half share 2,944, the others 640 with them: reading 2,944 together for eight saves most.
      {"two lengths", at3000, halves, 2, 0, 2944 + 8 * 64 + 8 * 3008},
      {"a window", at3000, all94, 2, 512, (2944 - 2432) + 16 * 64},
      // Cut at splits: 5 x 512 are shared.
      // The chunk of 512 from 2,560 on: the shared part of it, then a tile each.
      {"a chunk", at3000, all94, 2, 0, (2944 - 2560) + 16 * 64, 512},
      {"many threads", at3000, all94, 64, 0, 2560 + 16 * 448},
      {"short ones", std::vector<int32_t>(16, 40), std::vector<int32_t>(16, 1), 2, 0, 16 * 64},
  };
  for (const Case& c : cases) {
    if (const int64_t got = reads(c); got != c.reads) {
      std::printf("FAIL %s: %lld positions instead of %lld\n", c.name, static_cast<long long>(got),
                  static_cast<long long>(c.reads));
      return 1;
    }
  }
  std::puts("attend_plan: ok");
  return 0;
}
