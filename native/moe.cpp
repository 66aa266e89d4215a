// Routing, one token after the other in double, and the weighted sum of the experts' outputs.
//
// A token's experts and weights depend on its own logits alone; sums run upward, over experts when routing and over the
// chosen when mixing.  exp64 is plain arithmetic and mixing one fma an expert: the same bits on every target.
#include "exp64.h"
#include "kernels.h"
#include "simd.h"

namespace flyweight::FW_ISA {
namespace {

constexpr int64_t kRouteRows = 8;  // tokens of a chunk: some 5 us with 128 experts
constexpr int64_t kMixSpan = 1024;

void softmax(double* x, int64_t count) {
  double top = -INFINITY, total = 0;
  for (int64_t i = 0; i < count; ++i) top = x[i] > top ? x[i] : top;
  for (int64_t i = 0; i < count; ++i) total += x[i] = exp64(x[i] - top);
  for (int64_t i = 0; i < count; ++i) x[i] /= total;
}

double sigmoid(double x) {
  const double e = exp64(x > 0 ? -x : x);
  return x > 0 ? 1 / (1 + e) : e / (1 + e);
}

// Whether a score goes before another of a lower id: NaN after everything.
FW_INLINE bool before(double a, double b) { return a > b || (b != b && a == a); }

// Sets the `count` best of [0, size), best first, equal ones by lower id.
void best_of(const double* score, int64_t size, int64_t count, int32_t* best) {
  int64_t used = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (used == count && !before(score[i], score[best[count - 1]])) continue;
    int64_t at = used < count ? used++ : count - 1;
    for (; at > 0 && before(score[i], score[best[at - 1]]); --at) best[at] = best[at - 1];
    best[at] = static_cast<int32_t>(i);
  }
}

// The sum of the best experts' scores, best first; one NaN spoils a group.
double judged(const double* score, int64_t size, int64_t judges) {
  int32_t best[kMostExperts];
  double sum = 0;
  best_of(score, size, judges, best);
  for (int64_t i = 0; i < judges; ++i) sum += score[best[i]];
  for (int64_t e = 0; e < size; ++e) sum = score[e] != score[e] ? score[e] : sum;
  return sum;
}

// Experts of all but the best groups go to minus infinity.
void keep_groups(const RouteArgs& args, double* score) {
  const int64_t each = args.experts / args.groups;
  double top[kMostExperts];
  int32_t kept[kMostExperts];
  bool out[kMostExperts];
  for (int64_t g = 0; g < args.groups; ++g) top[g] = judged(score + g * each, each, args.judges), out[g] = true;
  best_of(top, args.groups, args.kept, kept);
  for (int64_t i = 0; i < args.kept; ++i) out[kept[i]] = false;
  for (int64_t e = 0; e < args.experts; ++e)
    if (out[e / each]) score[e] = -INFINITY;
}

void route_row(const RouteArgs& args, int64_t t) {
  double score[kMostExperts], choose[kMostExperts], chosen[kMostExperts];
  const float* logits = args.logits + t * args.experts;
  for (int64_t e = 0; e < args.experts; ++e) score[e] = static_cast<double>(logits[e]);
  if (args.scoring == Scoring::softmax) softmax(score, args.experts);
  if (args.scoring == Scoring::sigmoid)
    for (int64_t e = 0; e < args.experts; ++e) score[e] = sigmoid(score[e]);
  for (int64_t e = 0; e < args.experts; ++e)
    choose[e] = args.bias ? score[e] + static_cast<double>(args.bias[e]) : score[e];
  if (args.groups > 1) keep_groups(args, choose);

  int32_t* ids = args.ids + t * args.top;
  best_of(choose, args.experts, args.top, ids);
  double total = 0;
  for (int64_t j = 0; j < args.top; ++j) chosen[j] = score[ids[j]];
  if (args.scoring == Scoring::chosen) softmax(chosen, args.top);
  for (int64_t j = 0; j < args.top; ++j) total += chosen[j];
  for (int64_t j = 0; j < args.top; ++j) {
    const double share = args.normalise ? chosen[j] / total : chosen[j];
    args.weights[t * args.top + j] = static_cast<float>(share * args.scale);
  }
}

void route(Pool& pool, const RouteArgs& args) {
  pool.run((args.tokens + kRouteRows - 1) / kRouteRows, [&](int64_t chunk, int) {
    for (int64_t t = chunk * kRouteRows; t < args.tokens && t < (chunk + 1) * kRouteRows; ++t) route_row(args, t);
  });
}

void mix_span(const MixArgs& args, int64_t t, int64_t first, int64_t last) {
  const int32_t* place = args.place + t * args.top;
  const float* weights = args.weights + t * args.top;
  for (int64_t i = first; i < last; i += kLanes) {
    const int n = last - i < kLanes ? static_cast<int>(last - i) : kLanes;
    F32x16 total = zero();
    for (int64_t j = 0; j < args.top; ++j)
      total = fma(set1(weights[j]), load_tail(args.y + place[j] * args.width + i, n), total);
    store_tail(args.out + t * args.width + i, total, n);
  }
}

void mix(Pool& pool, const MixArgs& args) {
  const int64_t spans = (args.width + kMixSpan - 1) / kMixSpan;
  pool.run(args.tokens * spans, [&](int64_t chunk, int) {
    const int64_t first = chunk % spans * kMixSpan, end = first + kMixSpan;
    mix_span(args, chunk / spans, first, end < args.width ? end : args.width);
  });
}

}  // namespace

extern const MoeKernels moe_kernels;
const MoeKernels moe_kernels = {route, mix};

}  // namespace flyweight::FW_ISA
