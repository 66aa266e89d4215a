// rope_store, attend and move_kv of every target this machine runs, against a few lines of double arithmetic; memory is
// sized exactly, so that AddressSanitizer sees a read beyond it.  Exit status 1 names the first case that fails.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "../attend_plan.h"
#include "../kernels.h"

namespace {

using namespace flyweight;
using Floats = std::vector<float>;

struct Shape {
  int64_t kv_heads, share, k_dim, v_dim, block;
  std::vector<int32_t> contexts;
};

struct Step {  // everything of each sequence but its first `computed` tokens
  std::vector<int32_t> starts{0}, positions, slots, tables;
  int64_t width = 0, blocks = 0;
};

Step step(const Shape& s, int32_t skip) {
  Step out;
  for (const int32_t context : s.contexts) out.width = std::max(out.width, (context + s.block - 1) / s.block);
  for (const int32_t context : s.contexts) {
    std::vector<int32_t> table(static_cast<size_t>(out.width));
    for (int64_t i = 0; i * s.block < context; ++i) table[static_cast<size_t>(i)] = static_cast<int32_t>(out.blocks++);
    for (int32_t p = std::max(0, context - skip); p < context; ++p) {
      out.positions.push_back(p);
      out.slots.push_back(static_cast<int32_t>(table[static_cast<size_t>(p / s.block)] * s.block + p % s.block));
    }
    out.starts.push_back(static_cast<int32_t>(out.positions.size()));
    out.tables.insert(out.tables.end(), table.begin(), table.end());
  }
  return out;
}

Floats normal(std::mt19937& random, int64_t n) {
  std::normal_distribution<float> draw;
  Floats out(static_cast<size_t>(n));
  for (float& x : out) x = draw(random);
  return out;
}

double rounded(float x, KVType type) {
  if (type == KVType::f32) return x;
  if (type == KVType::bf16) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    u = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000;
    std::memcpy(&x, &u, 4);
    return x;
  }
  int exponent;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent, -13) - 11);
  return std::nearbyint(x / unit) * unit;
}

struct Run {
  Floats q, out;
};

// Stores all of `all`, then attends the tokens of `now`; rotates by nothing.
Run run(const Kernels& kernels, int threads, const Shape& s, KVType type, const Floats& qkv, const Step& all,
        const Step& now, const Floats& q_now) {
  Pool pool(threads);
  const int64_t heads = s.kv_heads * s.share, size = type == KVType::f32 ? 4 : 2;
  const int64_t slots = all.blocks * s.block * s.kv_heads * size;
  std::vector<uint8_t> k(static_cast<size_t>(slots * s.k_dim + kSpare), 0xFF);  // NaN in every dtype
  std::vector<uint8_t> v(static_cast<size_t>(slots * s.v_dim + kSpare), 0xFF);
  const KVView kv{k.data(), v.data(), type, all.blocks, s.kv_heads, s.block, s.k_dim, s.v_dim};
  const auto tokens = static_cast<int64_t>(all.positions.size());
  const int64_t half = s.k_dim / 2;
  const Floats cos(static_cast<size_t>(tokens * half), 1.0f), sin(static_cast<size_t>(tokens * half), 0.0f);
  Run result;
  result.q.resize(static_cast<size_t>(tokens * heads * s.k_dim));
  kernels.attention->rope_store(pool, {qkv.data(), result.q.data(), kv, tokens, heads, all.slots.data(), cos.data(),
                                       sin.data(), half, nullptr, nullptr, 0.0f});
  result.out.resize(now.positions.size() * static_cast<size_t>(heads * s.v_dim));
  const AttendArgs args{q_now.data(), result.out.data(), kv, heads, 0.3f, now.positions.data(), now.tables.data(),
                        now.width};
  const auto sequences = static_cast<int64_t>(s.contexts.size());
  const AttendPlan plan =
      plan_attend({sequences, now.starts.data(), now.positions.data(), heads, s.kv_heads, threads});
  Floats scratch(static_cast<size_t>(attend_floats(args, plan, threads)));
  kernels.attention->attend(pool, args, plan.work(), scratch.data());
  const std::vector<int32_t> src{all.slots[0]}, dst{all.slots[0]};
  std::vector<uint8_t> held(static_cast<size_t>(s.kv_heads * (s.k_dim + s.v_dim) * size));
  kernels.attention->move_kv(pool, kv, src.data(), dst.data(), 1, held.data());
  return result;
}

// One query row against positions 0..seen-1 of its sequence, whose first token has `rows` as its qkv row.
double row_error(const Shape& s, KVType type, const float* rows, int64_t head, int64_t seen, const float* q,
                 const float* out) {
  const int64_t heads = s.kv_heads * s.share, width = (heads + s.kv_heads) * s.k_dim + s.kv_heads * s.v_dim;
  const float* k = rows + heads * s.k_dim + head / s.share * s.k_dim;
  const float* v = rows + (heads + s.kv_heads) * s.k_dim + head / s.share * s.v_dim;
  std::vector<double> p(static_cast<size_t>(seen));
  double top = -std::numeric_limits<double>::infinity(), total = 0, worst = 0;
  for (int64_t j = 0; j < seen; ++j) {
    double dot = 0;
    for (int64_t d = 0; d < s.k_dim; ++d) dot += static_cast<double>(q[d]) * rounded(k[j * width + d], type);
    p[static_cast<size_t>(j)] = dot * static_cast<double>(0.3f);
    top = std::max(top, p[static_cast<size_t>(j)]);
  }
  for (double& x : p) total += x = std::exp(x - top);
  for (int64_t d = 0; d < s.v_dim; ++d) {
    double sum = 0;
    for (int64_t j = 0; j < seen; ++j) sum += p[static_cast<size_t>(j)] * rounded(v[j * width + d], type);
    const double error = std::abs(static_cast<double>(out[d]) - sum / total);
    if (!(error <= worst)) worst = error;  // NaN counts
  }
  return worst;
}

double worst_error(const Shape& s, KVType type, const Floats& qkv, const Step& now, const Floats& q,
                   const Floats& out) {
  const int64_t heads = s.kv_heads * s.share, width = (heads + s.kv_heads) * s.k_dim + s.kv_heads * s.v_dim;
  double worst = 0;
  const float* rows = qkv.data();
  for (size_t seq = 0; seq < s.contexts.size(); rows += s.contexts[seq++] * width) {
    for (int64_t t = now.starts[seq]; t < now.starts[seq + 1]; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t row = t * heads + h, seen = now.positions[static_cast<size_t>(t)] + 1;
        const double error = row_error(s, type, rows, h, seen, q.data() + row * s.k_dim, out.data() + row * s.v_dim);
        if (!(error <= worst)) worst = error;
      }
    }
  }
  return worst;
}

bool check(const Shape& s, KVType type) {
  std::mt19937 random(1);
  const int64_t heads = s.kv_heads * s.share;
  const Step all = step(s, std::numeric_limits<int32_t>::max()), now = step(s, 20);
  const int64_t width = (heads + s.kv_heads) * s.k_dim + s.kv_heads * s.v_dim;
  const Floats qkv = normal(random, static_cast<int64_t>(all.positions.size()) * width);
  const Floats q = normal(random, static_cast<int64_t>(now.positions.size()) * heads * s.k_dim);
  Floats first;
  const Targets found = targets();
  for (int i = 0; i < found.count; ++i) {
    for (const int threads : {1, 3}) {
      const Run got = run(*found.list[i], threads, s, type, qkv, all, now, q);
      if (first.empty()) first = got.out;
      const double error = worst_error(s, type, qkv, now, q, got.out);
      const bool same = std::memcmp(first.data(), got.out.data(), first.size() * sizeof(float)) == 0;
      if (same && error <= 2e-5) continue;
      std::printf("FAIL %s, %d threads, type %d, block %d, k %d, v %d, share %d: error %g, %s\n", found.list[i]->isa,
                  threads, static_cast<int>(type), static_cast<int>(s.block), static_cast<int>(s.k_dim),
                  static_cast<int>(s.v_dim), static_cast<int>(s.share), error, same ? "same bits" : "other bits");
      return false;
    }
  }
  return true;
}

}  // namespace

int main() {
  const Shape shapes[] = {
      {1, 1, 8, 8, 16, {1, 17, 64}},     {2, 2, 16, 40, 1, {70, 3}},     {1, 8, 48, 48, 32, {513, 1, 30}},
      {3, 3, 2, 6, 24, {100}},           {2, 2, 128, 128, 64, {1100}},   {1, 70, 32, 32, 16, {65, 40}},
      {1, 2, 80, 80, 16, {512, 511, 2}}, {1, 1, 256, 256, 256, {300, 1}},
  };
  for (const Shape& shape : shapes)
    for (const KVType type : {KVType::f16, KVType::bf16, KVType::f32})
      if (!check(shape, type)) return 1;
  std::puts("attention: ok");
  return 0;
}
