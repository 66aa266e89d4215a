// Routing, mixing and whole mixtures on every target against the scalar twin; a mixture against its pairs one by one.
#include <cmath>
#include <vector>

#include "../experts.h"
#include "check.h"

using namespace flyweight;

namespace {

struct Routed {
  std::vector<int32_t> ids;
  Floats weights;
};

Routed routed(const Kernels& kernels, int threads, const Floats& logits, const Floats& bias, RouteArgs rule) {
  const auto size = static_cast<size_t>(rule.tokens * rule.top);
  Routed out{std::vector<int32_t>(size, -1), Floats(size, -1.0f)};
  rule.logits = logits.data(), rule.bias = bias.empty() ? nullptr : bias.data();
  rule.ids = out.ids.data(), rule.weights = out.weights.data();
  Pool pool(threads);
  kernels.moe->route(pool, rule);
  return out;
}

void check_route(std::mt19937& random, const RouteArgs& rule) {
  Floats logits = normal(random, rule.tokens * rule.experts, 3), bias = normal(random, rule.experts);
  logits[0] = NAN;
  for (int64_t e = 0; e < rule.experts; ++e) logits[static_cast<size_t>(rule.experts + e)] = 1;  // all equal
  for (const Floats& b : {Floats{}, bias}) {
    const Routed want = routed(scalar_twin(), 1, logits, b, rule);
    for (size_t i = 0; i < want.ids.size(); ++i)
      CHECK(want.ids[i] >= 0 && want.ids[i] < rule.experts, "id %d of %d", want.ids[i], static_cast<int>(rule.experts));
    if (b.empty() && rule.groups == 1)
      for (int64_t j = 0; j < rule.top; ++j)
        CHECK(want.ids[static_cast<size_t>(rule.top + j)] == j, "equal scores go by id");
    each_target([&](const Kernels& kernels) {
      const Routed got = routed(kernels, 3, logits, b, rule);
      CHECK(got.ids == want.ids, "ids on %s, %d experts", kernels.isa, static_cast<int>(rule.experts));
      for (size_t i = 0; i < got.weights.size(); ++i)
        CHECK(same_bits(Floats{got.weights[i]}, Floats{want.weights[i]}) || std::isnan(want.weights[i]), "weights on %s",
              kernels.isa);
    });
  }
}

void routes() {
  std::mt19937 random(3);
  for (const Scoring scoring : {Scoring::softmax, Scoring::chosen, Scoring::sigmoid}) {
    const bool even = scoring == Scoring::chosen;
    RouteArgs rule{nullptr, nullptr, nullptr, nullptr, 19, 60, 8, scoring, !even, 2.5, 1, 1, 1};
    check_route(random, rule);
    rule.groups = 5, rule.kept = 2;
    check_route(random, rule);
    rule.judges = 2;
    check_route(random, rule);
    rule.judges = 1;
    rule.tokens = 2, rule.experts = rule.top = 3, rule.groups = rule.kept = 1;
    check_route(random, rule);
  }
}

// A mixture of `count` experts with float32 or q8_0 matrices and biases.
struct Mixture {
  int64_t hidden, inner;
  std::vector<std::vector<uint8_t>> memory;
  std::vector<Floats> biases;
  std::vector<Expert> experts;

  Matrix matrix(std::mt19937& random, Kind kind, int64_t n, int64_t k) {
    std::vector<uint8_t> bytes(static_cast<size_t>(tile_count(n) * tile_bytes(kind, k)));
    if (kind == Kind::f32) {
      const Floats values = normal(random, static_cast<int64_t>(bytes.size()) / 4);
      std::memcpy(bytes.data(), values.data(), bytes.size());
    } else {  // f16 scales of about 2^-8, any codes
      for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
      for (size_t at = 0; at < bytes.size(); at += 544)
        for (size_t i = at + 1; i < at + 32; i += 2) bytes[i] = static_cast<uint8_t>((bytes[i] & 0x83) | 0x1C);
    }
    memory.push_back(std::move(bytes));
    biases.push_back(normal(random, n));
    return {memory.back().data(), biases.back().data(), n, k, kind, kind == Kind::f32 ? Mode::f32 : Mode::i8, false};
  }

  Mixture(int count, int64_t hidden_, int64_t inner_) : hidden(hidden_), inner(inner_) {
    std::mt19937 random(5);
    for (int e = 0; e < count; ++e) {
      Expert expert;
      const Kind kind = e % 2 == 0 ? Kind::q8_0 : Kind::f32;
      if (e % 3 == 0) {  // gate and up of two kinds
        expert.up = {matrix(random, Kind::f32, inner, hidden), matrix(random, Kind::q8_0, inner, hidden)};
      } else {
        expert.up = {matrix(random, kind, 2 * inner, hidden)};
      }
      expert.down = {matrix(random, kind, hidden, inner)};
      experts.push_back(std::move(expert));
    }
  }

  Floats run(const Kernels& kernels, int threads, const Floats& x, const std::vector<int32_t>& ids,
             const Floats& weights) const {
    const int64_t tokens = static_cast<int64_t>(x.size()) / hidden, top = static_cast<int64_t>(ids.size()) / tokens;
    Floats out(x.size());
    const ExpertsArgs args{x.data(), ids.data(), weights.data(), out.data(), tokens, top, hidden, inner, GatedAct::silu};
    const ExpertsPlan plan = plan_experts(args, experts);
    std::vector<uint8_t> scratch(static_cast<size_t>(experts_bytes(args, plan)));
    Pool pool(threads);
    flyweight::experts(pool, kernels, args, experts, plan, scratch.data());
    return out;
  }
};

Floats slice(const Floats& x, int64_t begin, int64_t end) { return {x.begin() + begin, x.begin() + end}; }

void check_mixture(const Mixture& m, int64_t tokens, int64_t top, int64_t first_experts) {
  std::mt19937 random(11);
  const Floats x = normal(random, tokens * m.hidden), weights = normal(random, tokens * top);
  std::vector<int32_t> ids(static_cast<size_t>(tokens * top));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(first_experts));
  const Floats want = m.run(scalar_twin(), 2, x, ids, weights);
  each_target([&](const Kernels& kernels) {
    for (const int threads : {1, 3})
      CHECK(same_bits(m.run(kernels, threads, x, ids, weights), want), "%s, %d threads, %d tokens of %d experts",
            kernels.isa, threads, static_cast<int>(tokens), static_cast<int>(first_experts));
  });
  const int64_t step = tokens > 20 ? 37 : 1;
  for (int64_t t = 0; t < tokens; t += step) {
    const Kernels& best = *targets().list[targets().count - 1];
    const Floats row = slice(x, t * m.hidden, (t + 1) * m.hidden), own = slice(weights, t * top, (t + 1) * top);
    const std::vector<int32_t> chosen(ids.begin() + t * top, ids.begin() + (t + 1) * top);
    CHECK(same_bits(m.run(best, 1, row, chosen, own), slice(want, t * m.hidden, (t + 1) * m.hidden)), "company");
    Floats total(static_cast<size_t>(m.hidden), 0.0f);  // and choice by choice, summed upward
    for (int64_t j = 0; j < top; ++j) {
      const Floats said = m.run(best, 1, row, {chosen[static_cast<size_t>(j)]}, {1.0f});
      for (size_t i = 0; i < total.size(); ++i) total[i] = std::fma(own[static_cast<size_t>(j)], said[i], total[i]);
    }
    CHECK(same_bits(total, slice(want, t * m.hidden, (t + 1) * m.hidden)), "choice by choice");
  }
}

void heads() {
  Mixture m(4, 96, 64);
  std::mt19937 random(2);
  const int64_t tokens = 7, count = 4;
  const Floats x = normal(random, tokens * count * m.hidden);
  std::vector<Parts> parts;
  for (const Expert& expert : m.experts) parts.push_back(expert.up);
  const auto run = [&](const Kernels& kernels, int threads) {
    Floats out(static_cast<size_t>(tokens * count * 2 * m.inner));
    const HeadsArgs args{x.data(), out.data(), tokens, m.hidden, 2 * m.inner};
    std::vector<uint8_t> scratch(static_cast<size_t>(heads_bytes(args, parts)));
    Pool pool(threads);
    linear_heads(pool, kernels, args, parts, scratch.data());
    return out;
  };
  const Floats want = run(scalar_twin(), 1);
  each_target([&](const Kernels& kernels) {
    for (const int threads : {1, 3}) CHECK(same_bits(run(kernels, threads), want), "heads on %s", kernels.isa);
  });
}

}  // namespace

int main() {
  routes();
  const Mixture small(6, 96, 64);
  check_mixture(small, 1, 3, 6);
  check_mixture(small, 13, 3, 6);
  check_mixture(small, 13, 2, 1);  // everything to one expert, twice
  check_mixture(Mixture(3, 32, 4096), 120, 3, 3);  // more pairs than a wave holds
  heads();
  std::puts("moe: ok");
}
