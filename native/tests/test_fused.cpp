// A gated MLP in one pass on every target: the bits of its products, activation and rounding one after another.
#include <vector>

#include "../fused.h"
#include "check.h"
#include "weights.h"

using namespace flyweight;

namespace {

struct Case {
  Kind up, down;
  Mode mode;
  int64_t tokens, inner, k;
  bool one;  // gate and up are one weight
};

constexpr int64_t kOut = 40;

using Bytes = std::vector<uint8_t>;

struct Weights {
  Bytes gate, up, down;
  Floats bias;
};

LinearJob job_of(const Case& c, Kind kind, const Bytes& w, int64_t n, int64_t k, Bytes& panels) {
  LinearJob job;
  job.weight = w.data(), job.panels = panels.data(), job.tokens = c.tokens, job.n = n, job.k = k, job.stride = n;
  job.kind = kind, job.mode = c.mode;
  return job;
}

Bytes panels_of(const Case& c, int64_t k) { return Bytes(static_cast<size_t>(c.tokens * token_bytes(c.mode, k))); }

// Products and activation as ops of their own.
Floats apart(const Kernels& kernels, const Case& c, const Weights& w, const Floats& x) {
  Pool pool(1);
  const int64_t rows = c.one ? 2 * c.inner : c.inner;
  Floats halves(static_cast<size_t>(c.tokens * 2 * c.inner)), mixed(static_cast<size_t>(c.tokens * c.inner));
  Floats out(static_cast<size_t>(c.tokens * kOut));
  Bytes panels = panels_of(c, c.k), inner = panels_of(c, c.inner);
  for (int half = 0; half < (c.one ? 1 : 2); ++half) {
    LinearJob job = job_of(c, c.up, half ? w.up : w.gate, rows, c.k, panels);
    job.x = x.data(), job.stride = 2 * c.inner, job.out = halves.data() + half * c.inner, job.bias = w.bias.data();
    linear(pool, *kernels.gemm, job);
  }
  kernels.elementwise->act(pool, halves.data(), mixed.data(), c.tokens, c.inner, GatedAct::silu);
  LinearJob down = job_of(c, c.down, w.down, kOut, c.inner, inner);
  down.x = mixed.data(), down.out = out.data();
  linear(pool, *kernels.gemm, down);
  return out;
}

// False where the kernels do not take it.  Room is just enough for `part` of a worker's tokens.
bool in_one_pass(const Kernels& kernels, const Case& c, const Weights& w, const Floats& x, int threads, int64_t part,
                 Floats& out) {
  Pool pool(threads);
  const int64_t rows = c.one ? 2 * c.inner : c.inner;
  Bytes panels = panels_of(c, c.k), inner = panels_of(c, c.inner);
  Floats room(static_cast<size_t>(threads * ((c.tokens + part - 1) / part) * 256));
  LinearJob gate = job_of(c, c.up, w.gate, rows, c.k, panels), up = job_of(c, c.up, c.one ? w.gate : w.up, rows, c.k, panels);
  gate.x = x.data(), gate.bias = up.bias = w.bias.data();
  LinearJob down = job_of(c, c.down, w.down, kOut, c.inner, inner);
  const GatedProduct product{{gate}, {up, c.one ? c.inner / kLanes : 0}, c.inner, GatedAct::silu, down,
                             {room.data(), static_cast<int64_t>(room.size())}};
  if (!can_fuse(product, *kernels.gemm, threads)) return false;
  multiply_fused(pool, kernels, product);
  out.assign(static_cast<size_t>(c.tokens * kOut), 0);
  down.out = out.data(), down.filled = true;
  linear(pool, *kernels.gemm, down);
  return true;
}

// Returns on how many targets it was taken.
int check_case(std::mt19937& random, const Case& c) {
  const int64_t rows = c.one ? 2 * c.inner : c.inner;
  const Weights w{random_weight(random, c.up, rows, c.k), random_weight(random, c.up, rows, c.k),
                  random_weight(random, c.down, kOut, c.inner), normal(random, rows)};
  const Floats x = normal(random, c.tokens * c.k);
  int taken = 0;
  each_target([&](const Kernels& kernels) {
    if (c.mode == Mode::bf16 && grouped(c.up) && !kernels.gemm->opens_pairs) return;
    const Floats want = apart(kernels, c, w, x);
    Floats got;
    for (const int64_t part : {1, 3})
      for (const int threads : {1, 3})
        if (in_one_pass(kernels, c, w, x, threads, part, got)) {
          CHECK(same_bits(got, want), "%s kind %d mode %d tokens %d", kernels.isa, static_cast<int>(c.up),
                static_cast<int>(c.mode), static_cast<int>(c.tokens));
          ++taken;
        }
  });
  return taken;
}

struct HeadsCase {
  Kind kind;
  Mode mode;
  int64_t tokens, heads, kv_heads, k_dim, v_dim;
  KVType type;
  bool one;  // q, K and V are one weight
};

constexpr int64_t kHidden = 96, kBlock = 16;

struct Stored {
  Floats q;
  Bytes k, v;
  bool operator==(const Stored& o) const { return same_bits(q, o.q) && k == o.k && v == o.v; }
};

// Weights and inputs of a case; tokens go to slots from 3 on.
struct Heads {
  Heads(std::mt19937& random, const HeadsCase& given) : c(given) {
    const int64_t sizes[] = {c.heads * c.k_dim, c.kv_heads * c.k_dim, c.kv_heads * c.v_dim};
    for (const int64_t size : sizes) all += size;
    for (int i = 0; i < 3; ++i) {
      rows[i] = c.one ? all : sizes[i], tile[i] = c.one && i > 0 ? tile[i - 1] + sizes[i - 1] / kLanes : 0;
      weight[i] = c.one && i > 0 ? weight[0] : random_weight(random, c.kind, rows[i], kHidden);
    }
    x = normal(random, c.tokens * kHidden), norm = normal(random, c.k_dim);
    for (int32_t t = 0; t < c.tokens; ++t) slots.push_back(3 + t);
    cos = normal(random, c.tokens * c.k_dim / 2), sin = normal(random, c.tokens * c.k_dim / 2);
  }

  KVView view(Stored& to) const {
    const int64_t blocks = (c.tokens + 3 + kBlock - 1) / kBlock;
    const bool paired = c.type == KVType::bf16;
    KVView kv{nullptr, nullptr, c.type, blocks, c.kv_heads, kBlock, c.k_dim, c.v_dim, false, paired};
    to.k.assign(static_cast<size_t>(blocks * kv.k_bytes() + kSpare), 0);
    to.v.assign(static_cast<size_t>(blocks * kv.v_bytes() + kSpare), 0);
    to.q.assign(static_cast<size_t>(c.tokens * c.heads * c.k_dim), 0);
    kv.k = to.k.data(), kv.v = to.v.data();
    return kv;
  }

  RopeStoreArgs store(const KVView& kv, Stored& to) const {
    return {{}, to.q.data(), kv, c.tokens, c.heads, slots.data(), cos.data(), sin.data(), c.k_dim / 2, {norm.data(), false},
            {norm.data(), false}, 1e-6f};
  }

  LinearJob job(int i, Bytes& panels) const {
    LinearJob job;
    job.x = x.data(), job.weight = weight[i].data(), job.panels = panels.data(), job.tokens = c.tokens, job.n = rows[i];
    job.k = kHidden, job.kind = c.kind, job.mode = c.mode;
    return job;
  }

  const HeadsCase& c;
  int64_t all = 0, rows[3] = {}, tile[3] = {};
  Bytes weight[3];
  Floats x, norm, cos, sin;
  std::vector<int32_t> slots;
};

Stored heads_apart(const Kernels& kernels, const Heads& in) {
  Pool pool(1);
  Stored to;
  const KVView kv = in.view(to);
  Bytes panels(static_cast<size_t>(in.c.tokens * token_bytes(in.c.mode, kHidden)));
  Floats qkv(static_cast<size_t>(in.c.tokens * in.all));
  int64_t column = 0;
  for (int i = 0; i < (in.c.one ? 1 : 3); column += in.rows[i++]) {
    LinearJob job = in.job(i, panels);
    job.out = qkv.data() + column, job.stride = in.all;
    linear(pool, *kernels.gemm, job);
  }
  RopeStoreArgs store = in.store(kv, to);
  store.x = projected_rows(qkv.data(), in.c.heads, kv);
  kernels.attention->rope_store(pool, store);
  return to;
}

bool heads_fused(const Kernels& kernels, const Heads& in, int threads, Stored& to) {
  Pool pool(threads);
  const KVView kv = in.view(to);
  Bytes panels(static_cast<size_t>(in.c.tokens * token_bytes(in.c.mode, kHidden)));
  Floats room(static_cast<size_t>(in.c.tokens * in.all));
  const HeadsProduct product{{in.job(0, panels), in.tile[0]}, {in.job(1, panels), in.tile[1]}, {in.job(2, panels), in.tile[2]},
                             in.store(kv, to), {room.data(), static_cast<int64_t>(room.size())}};
  if (!can_fuse(product, *kernels.gemm, threads)) return false;
  multiply_fused(pool, kernels, product);
  return true;
}

// Returns how often it was taken.
int check_heads(std::mt19937& random, const HeadsCase& c) {
  const Heads in(random, c);
  int taken = 0;
  each_target([&](const Kernels& kernels) {
    if (c.mode == Mode::bf16 && grouped(c.kind) && !kernels.gemm->opens_pairs) return;
    const Stored want = heads_apart(kernels, in);
    for (const int threads : {1, 3}) {
      Stored got;
      if (!heads_fused(kernels, in, threads, got)) continue;
      CHECK(got == want, "%s kind %d mode %d type %d", kernels.isa, static_cast<int>(c.kind), static_cast<int>(c.mode),
            static_cast<int>(c.type));
      ++taken;
    }
  });
  return taken;
}

}  // namespace

int main() {
  std::mt19937 random(5);
  int taken = 0;
  for (const int64_t tokens : {48, 150})
    for (const Kind kind : {Kind::q4_0, Kind::q4_k, Kind::q8_0})
      for (const Mode mode : {Mode::i8, Mode::bf16}) {
        taken += check_case(random, {kind, Kind::q6_k, mode, tokens, 512, 256, false});
        taken += check_case(random, {kind, kind, mode, tokens, 256, 256, true});
      }
  for (const Mode mode : {Mode::f32, Mode::bf16})
    taken += check_case(random, {Kind::bf16, Kind::bf16, mode, 70, 200, 72, false});
  CHECK(taken > 0, "no target takes any of these");
  taken = 0;
  for (const KVType type : {KVType::bf16, KVType::f16, KVType::int8, KVType::int4, KVType::e4m3})
    for (const bool one : {false, true}) {
      taken += check_heads(random, {Kind::q8_0, Mode::i8, 71, 4, 4, 64, 64, type, one});
      taken += check_heads(random, {Kind::bf16, Mode::bf16, 130, 8, 4, 96, 32, type, one});
      taken += check_heads(random, {Kind::f32, Mode::f32, 49, 6, 2, 32, 48, type, one});
    }
  CHECK(taken > 0, "no target takes any of these heads");
  Case few{Kind::q4_0, Kind::q4_0, Mode::i8, 47, 256, 256, false};
  CHECK(check_case(random, few) == 0, "few tokens are not worth it");
  std::puts("fused: ok");
}
