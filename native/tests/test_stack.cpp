// A stack of layers in memory of exactly the planned sizes (the sanitizers watch its ends): the same bits on every
// target, with any number of threads, in one call or several.  That they are the finer ops' is tests/model/test_stack.py's.
#include <cmath>
#include <vector>

#include "../stack.h"
#include "check.h"

using namespace flyweight;

namespace {

constexpr int64_t kHidden = 32, kInner = 48, kHeads = 4, kKVHeads = 2, kHead = 16, kBlocks = 5;
constexpr int32_t kBlock = 16;

// Weights of one layer, all float32, with what owns them.
struct Owned {
  std::vector<Floats> memory;
  StackLayer layer;

  float* floats(std::mt19937& random, int64_t count, float scale) {
    memory.push_back(normal(random, count, scale));
    return memory.back().data();
  }
  Parts parts(std::mt19937& random, std::vector<int64_t> rows, int64_t k) {
    Parts out;
    for (const int64_t n : rows) {
      const int64_t tiles = tile_count(n) * tile_bytes(Kind::f32, k) / 4;
      const auto* weight = reinterpret_cast<const uint8_t*>(floats(random, tiles, 0.2f));
      out.push_back({weight, floats(random, n, 0.1f), n, k, Kind::f32, Mode::f32, false});
    }
    return out;
  }
  RowNorm norm(std::mt19937& random, RowNorm::Kind kind) {
    if (kind == RowNorm::Kind::none) return {};
    const float* w = floats(random, kHidden, 1);
    return {kind, w, kind == RowNorm::Kind::layer ? floats(random, kHidden, 1) : nullptr, 1e-5f};
  }
};

// Every form a recipe may have, in turn.
Owned layer_of(std::mt19937& random, int i) {
  using enum RowNorm::Kind;
  Owned o;
  o.memory.reserve(64);  // what points into it stays where it is
  StackLayer& l = o.layer;
  l.kv.heads = kKVHeads, l.kv.k_dim = l.kv.v_dim = kHead;
  l.heads = kHeads, l.inner = kInner, l.scale = 0.25f, l.gated = i % 2 == 0;
  l.attn_norm = o.norm(random, i == 1 ? layer : i == 2 ? none : rms);
  l.mlp_norm = o.norm(random, i == 1 ? layer : i == 2 ? none : rms);
  l.attn_post = {o.norm(random, i == 2 ? rms : none), i == 3 ? 0.5f : 1.0f};
  l.mlp_post = {o.norm(random, i == 2 ? rms : none), i == 3 ? 0.5f : 1.0f};
  const int64_t q = kHeads * kHead, kv = kKVHeads * kHead;
  l.qkv = i == 0 ? o.parts(random, {q, kv, kv}, kHidden) : o.parts(random, {q + 2 * kv}, kHidden);
  l.out = o.parts(random, {kHidden}, q);
  l.up = o.parts(random, {l.gated ? 2 * kInner : kInner}, kHidden);
  l.down = o.parts(random, {kHidden}, kInner);
  if (i == 0) l.q_norm = {o.floats(random, kHead, 1), false}, l.k_norm = {o.floats(random, kHead, 1), false};
  if (i == 1) l.sight.window = 7, l.softcap = 5;
  if (i == 3) l.sinks = o.floats(random, kHeads, 1);
  l.head_eps = 1e-6f, l.rope = i == 1 ? -1 : 0;
  return o;
}

// Two sequences: a chunk of 9 tokens after 12, and one token after 30.
struct Step {
  std::vector<int32_t> slots, positions, starts{0, 9, 10}, tables{1, 3, 0, 4}, from, to;
  Floats cos, sin, none = Floats(10), residual, pending;

  explicit Step(std::mt19937& random) {
    for (int32_t t = 0; t < 10; ++t) {
      const int32_t at = t < 9 ? 12 + t : 30, row = t < 9 ? 0 : 2;
      positions.push_back(at);
      slots.push_back(tables[static_cast<size_t>(row + at / kBlock)] * kBlock + at % kBlock);
      for (int i = 1; i <= 4; ++i) {
        const auto angle = static_cast<float>(at * i);
        cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
      }
    }
    residual = normal(random, 10 * kHidden), pending = normal(random, 10 * kHidden);
  }

  int64_t tokens() const { return static_cast<int64_t>(slots.size()); }

  // The chunk's sixth token once more, as a branch with a block of its own, where the fifth is copied to.
  Step with_branch() const {
    Step s = *this;
    s.positions.push_back(17), s.slots.push_back(2 * kBlock + 1), s.starts.push_back(11);
    s.tables.insert(s.tables.end(), {1, 2});
    s.from = {3 * kBlock}, s.to = {2 * kBlock}, s.none.push_back(0);
    for (Floats* angles : {&s.cos, &s.sin}) repeat(*angles, 5, 4);
    for (Floats* rows : {&s.residual, &s.pending}) repeat(*rows, 5, kHidden);
    return s;
  }

  static void repeat(Floats& rows, int64_t row, int64_t width) {
    const Floats one(rows.begin() + row * width, rows.begin() + (row + 1) * width);
    rows.insert(rows.end(), one.begin(), one.end());
  }
};

struct Result {
  Floats out, residual, kv;
  std::vector<Floats> taps;  // the residual after each layer
};

// The layers from `first` on, `count` a call, all tapped but where `tapped` is false.
Result run(const Kernels& kernels, int threads, const StackLayers& layers, const Step& step, size_t count,
           bool tapped = true) {
  const int64_t row = kKVHeads * kHead * kBlock * kBlocks, spare = kSpare / 4;
  const int64_t tokens = step.tokens();
  Result result{Floats(static_cast<size_t>(tokens * kHidden)), step.residual, {}, {}};
  std::vector<float*> taps;
  result.taps.assign(tapped ? layers.size() : 0, result.out);
  for (Floats& tap : result.taps) taps.push_back(tap.data());
  std::mt19937 random(11);
  std::vector<Floats> memory;
  std::vector<KVView> views;
  for (size_t i = 0; i < 2 * layers.size(); ++i) memory.push_back(normal(random, row + spare));
  for (size_t i = 0; i < layers.size(); ++i)
    views.push_back({memory[2 * i].data(), memory[2 * i + 1].data(), KVType::f32, kBlocks, kKVHeads, kBlock, kHead,
                     kHead, false});
  const StackRope ropes[] = {{step.cos.data(), step.sin.data(), 4}, {step.none.data(), step.none.data(), 0}};
  Pool pool(threads);
  Floats pending = step.pending;
  for (size_t first = 0; first < layers.size(); first += count) {
    const auto from = layers.begin() + static_cast<int64_t>(first);
    const StackLayers part(from, from + static_cast<int64_t>(count));
    const StackArgs args{tokens, kHidden, pending.data(), result.residual.data(), result.out.data(), views.data() + first,
                         ropes, 2, step.slots.data(), step.positions.data(),
                         static_cast<int64_t>(step.starts.size()) - 1, 2, step.starts.data(), step.tables.data(),
                         {step.from.data(), step.to.data(), static_cast<int64_t>(step.from.size())},
                         tapped ? taps.data() + first : nullptr};
    const StackPlan plan = plan_stack(part, args, threads);
    Floats arrays(static_cast<size_t>(tokens * widths_of(part, kHidden).all()));
    Floats attend(static_cast<size_t>(plan.attend_floats));
    std::vector<uint8_t> panels(static_cast<size_t>(plan.panel_bytes));
    run_stack(pool, kernels, part, args, plan, {arrays.data(), panels.data(), attend.data()});
    pending = result.out;
  }
  for (const Floats& m : memory) result.kv.insert(result.kv.end(), m.begin(), m.end());
  return result;
}

// Whether the branch has the bits of the chunk's sixth token, and the others those without a branch.
bool same_branch(const Result& got, const Result& plain) {
  const auto rows = [](const Floats& x, int64_t first, int64_t last) {
    return Floats(x.begin() + first * kHidden, x.begin() + last * kHidden);
  };
  return same_bits(rows(got.out, 10, 11), rows(plain.out, 5, 6)) && same_bits(rows(got.out, 0, 10), plain.out) &&
         same_bits(rows(got.residual, 10, 11), rows(plain.residual, 5, 6));
}

bool same(const Result& a, const Result& b) {
  return same_bits(a.out, b.out) && same_bits(a.residual, b.residual) && same_bits(a.kv, b.kv);
}

bool same_taps(const Result& a, const Result& b) {
  return std::equal(a.taps.begin(), a.taps.end(), b.taps.begin(), b.taps.end(), same_bits<float>);
}

Floats sum(const Floats& a, const Floats& b) {
  Floats c = a;
  for (size_t i = 0; i < c.size(); ++i) c[i] += b[i];
  return c;
}

}  // namespace

int main() {
  std::mt19937 random(7);
  std::vector<Owned> owned;
  StackLayers layers;
  for (int i = 0; i < 4; ++i) owned.push_back(layer_of(random, i));
  for (const Owned& o : owned) layers.push_back(o.layer);
  const Step step(random);
  const Result want = run(scalar_twin(), 1, layers, step, 4);
  for (const float x : want.out) CHECK(std::isfinite(x), "a result that is not finite");
  CHECK(!same_bits(want.residual, step.residual), "the residual is added to");
  CHECK(same(run(scalar_twin(), 3, layers, step, 4), want), "three threads");
  const Result stepped = run(scalar_twin(), 1, layers, step, 1);
  CHECK(same(stepped, want) && same_taps(stepped, want), "layer by layer");
  CHECK(same(run(scalar_twin(), 1, layers, step, 4, false), want), "without taps");
  CHECK(same_bits(want.taps.back(), sum(want.residual, want.out)), "what the last tap has");
  CHECK(same(run(scalar_twin(), 1, layers, step, 2), want), "two at a time");
  each_target([&](const Kernels& kernels) {
    CHECK(same(run(kernels, 1, layers, step, 4), want), "on %s", kernels.isa);
    const Result pairs = run(kernels, 3, layers, step, 2);
    CHECK(same(pairs, want) && same_taps(pairs, want), "on %s, three threads", kernels.isa);
    CHECK(same_branch(run(kernels, 2, layers, step.with_branch(), 4), want), "on %s, a branch", kernels.isa);
  });
  std::puts("stack: ok");
}
