// Waves of pairs (token, expert): up, activation, down; then each token's sum in the order of its ids.
//
// A wave is a run of the pairs as sorted by expert.  It bounds the memory, and keeps it in cache; where it cuts decides
// no bit, because the rows of a product are independent.
#include "experts.h"

namespace flyweight {
namespace {

// Enough pairs that a wave's weights keep all threads busy; few enough that gate, up and product stay in L2 and L3.
constexpr int64_t kWaveBytes = 16 << 20, kLeastWave = 64;

int64_t token_bytes_of(const Parts& parts) {
  int64_t bytes = 0;
  for (const Matrix& part : parts) bytes += token_bytes(part.mode, part.k);
  return bytes;
}

// Adds one product a part to `jobs`: `rows` gives x, out and tokens, `panels` moves past what they need.
void add_jobs(const Parts& parts, LinearJob rows, uint8_t*& panels, std::vector<LinearJob>& jobs) {
  for (const Matrix& part : parts) {
    rows.weight = part.tiles, rows.bias = part.bias, rows.panels = panels;
    rows.n = part.n, rows.k = part.k, rows.kind = part.kind, rows.mode = part.mode, rows.round_bf16 = part.round_bf16;
    jobs.push_back(rows);
    panels += rows.tokens * token_bytes(part.mode, part.k);
    rows.out += part.n;
  }
}

void run_jobs(Pool& pool, const Kernels& kernels, const std::vector<LinearJob>& jobs) {
  std::vector<Cut> cuts(jobs.size());
  linear(pool, *kernels.gemm, jobs.data(), static_cast<int64_t>(jobs.size()), cuts.data());
}

// Where a call keeps what.
struct Room {
  float *said, *gate_up, *product;  // [pairs, hidden], [wave, 2 inner], [wave, inner]
  uint8_t* panels;
};

Room room_of(const ExpertsArgs& args, const ExpertsPlan& plan, uint8_t* scratch) {
  Room room{};
  room.said = reinterpret_cast<float*>(scratch);
  room.gate_up = room.said + plan.pairs() * args.hidden;
  room.product = room.gate_up + plan.wave * 2 * args.inner;
  room.panels = reinterpret_cast<uint8_t*>(room.product + plan.wave * args.inner);
  return room;
}

// Calls f(expert, pairs of this wave) for every expert that has some.
template <class F>
void each_expert(const ExpertsPlan& plan, Range wave, F f) {
  for (size_t e = 0; e + 1 < plan.starts.size(); ++e) {
    const int64_t begin = plan.starts[e] > wave.begin ? plan.starts[e] : wave.begin;
    const int64_t end = plan.starts[e + 1] < wave.end ? plan.starts[e + 1] : wave.end;
    if (begin < end) f(e, Range{begin, end});
  }
}

void run_wave(Pool& pool, const Kernels& kernels, const ExpertsArgs& args, const std::vector<Expert>& all,
              const ExpertsPlan& plan, const Room& room, Range wave) {
  std::vector<LinearJob> jobs;
  uint8_t* panels = room.panels;
  each_expert(plan, wave, [&](size_t e, Range pairs) {
    LinearJob rows;
    rows.x = args.x, rows.x_stride = args.hidden, rows.rows = plan.rows.data() + pairs.begin;
    rows.out = room.gate_up + (pairs.begin - wave.begin) * 2 * args.inner, rows.stride = 2 * args.inner;
    rows.tokens = pairs.end - pairs.begin;
    add_jobs(all[e].up, rows, panels, jobs);
  });
  run_jobs(pool, kernels, jobs);
  kernels.elementwise->act(pool, room.gate_up, room.product, wave.end - wave.begin, args.inner, args.act);
  jobs.clear();
  panels = room.panels;
  each_expert(plan, wave, [&](size_t e, Range pairs) {
    LinearJob rows;
    rows.x = room.product + (pairs.begin - wave.begin) * args.inner, rows.x_stride = args.inner;
    rows.out = room.said + pairs.begin * args.hidden, rows.stride = args.hidden;
    rows.tokens = pairs.end - pairs.begin;
    add_jobs(all[e].down, rows, panels, jobs);
  });
  run_jobs(pool, kernels, jobs);
}

}  // namespace

ExpertsPlan plan_experts(const ExpertsArgs& args, const std::vector<Expert>& experts) {
  ExpertsPlan plan;
  const int64_t pairs = args.tokens * args.top;
  plan.starts.assign(experts.size() + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++plan.starts[static_cast<size_t>(args.ids[i]) + 1];
  for (size_t e = 0; e < experts.size(); ++e) {
    plan.starts[e + 1] += plan.starts[e];
    for (const Parts* parts : {&experts[e].up, &experts[e].down}) {
      const int64_t bytes = token_bytes_of(*parts);
      plan.panel_bytes = bytes > plan.panel_bytes ? bytes : plan.panel_bytes;
    }
  }
  plan.rows.resize(static_cast<size_t>(pairs));
  plan.place.resize(static_cast<size_t>(pairs));
  std::vector<int64_t> next = plan.starts;
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t at = next[static_cast<size_t>(args.ids[i])]++;
    plan.rows[static_cast<size_t>(at)] = static_cast<int32_t>(i / args.top);
    plan.place[static_cast<size_t>(i)] = static_cast<int32_t>(at);
  }
  const int64_t fit = kWaveBytes / (3 * args.inner * static_cast<int64_t>(sizeof(float)) + plan.panel_bytes);
  const int64_t most = fit > kLeastWave ? fit : kLeastWave;
  plan.wave = most < pairs ? most : pairs;
  return plan;
}

int64_t experts_bytes(const ExpertsArgs& args, const ExpertsPlan& plan) {
  const int64_t floats = plan.pairs() * args.hidden + plan.wave * 3 * args.inner;
  return floats * static_cast<int64_t>(sizeof(float)) + plan.wave * plan.panel_bytes;
}

void experts(Pool& pool, const Kernels& kernels, const ExpertsArgs& args, const std::vector<Expert>& experts,
             const ExpertsPlan& plan, uint8_t* scratch) {
  const Room room = room_of(args, plan, scratch);
  for (int64_t begin = 0; begin < plan.pairs(); begin += plan.wave) {
    const int64_t end = begin + plan.wave < plan.pairs() ? begin + plan.wave : plan.pairs();
    run_wave(pool, kernels, args, experts, plan, room, {begin, end});
  }
  kernels.moe->mix(pool, {room.said, plan.place.data(), args.weights, args.out, args.tokens, args.top, args.hidden});
}

int64_t heads_bytes(const HeadsArgs& args, const std::vector<Parts>& heads) {
  int64_t bytes = 0;
  for (const Parts& parts : heads) bytes += args.tokens * token_bytes_of(parts);
  return bytes;
}

void linear_heads(Pool& pool, const Kernels& kernels, const HeadsArgs& args, const std::vector<Parts>& heads,
                  uint8_t* scratch) {
  const auto count = static_cast<int64_t>(heads.size());
  std::vector<LinearJob> jobs;
  for (int64_t h = 0; h < count; ++h) {
    LinearJob rows;
    rows.x = args.x + h * args.k, rows.x_stride = count * args.k;
    rows.out = args.out + h * args.n, rows.stride = count * args.n;
    rows.tokens = args.tokens;
    add_jobs(heads[static_cast<size_t>(h)], rows, scratch, jobs);
  }
  run_jobs(pool, kernels, jobs);
}

}  // namespace flyweight
