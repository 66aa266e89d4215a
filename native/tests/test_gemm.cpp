// Matrix products on every target against the scalar twin, and against themselves under any cut of the work.
#include <cstring>
#include <vector>

#include "check.h"
#include "weights.h"

using namespace flyweight;

namespace {

constexpr Kind kTested[] = {Kind::f32,  Kind::f16,    Kind::bf16,  Kind::q8_0,  Kind::q4_0, Kind::q4_1,
                           Kind::q5_0, Kind::q5_1,   Kind::iq4_nl, Kind::mxfp4, Kind::nvfp4, Kind::q2_k,
                           Kind::q3_k, Kind::q4_k,   Kind::q5_k,  Kind::q6_k,  Kind::iq4_xs, Kind::int8_k,
                           with_form(Kind::u2, {64, Number::f16, Low::zero}),
                           with_form(Kind::u3, {128, Number::f16, Low::float_zero}),
                           with_form(Kind::u4, {128, Number::f16, Low::zero, true, true}),
                           with_form(Kind::u8, {32, Number::f16, Low::min}),
                           with_form(Kind::s4, {64, Number::f16}),
                           with_form(Kind::s8, {.rows = true, .input = true}),
                           with_form(Kind::nf4, {64, Number::f16}),
                           with_form(Kind::fp4, {32, Number::f16, Low::none, false, true}),
                           with_form(Kind::e4m3, {.rows = true}),
                           with_form(Kind::e5m2, {128, Number::f16})};

struct Case {
  Kind kind;
  Mode mode;
  int64_t tokens, n, k;
};

Floats product(const Kernels& kernels, const Case& c, const std::vector<uint8_t>& w, const Floats& x, int threads) {
  Pool pool(threads);
  Floats out(static_cast<size_t>(c.tokens * c.n)), bias(static_cast<size_t>(c.n), 0.25f);
  std::vector<uint8_t> panels(static_cast<size_t>(c.tokens * token_bytes(c.mode, c.k)));
  LinearJob job;
  job.x = x.data(), job.weight = w.data(), job.bias = bias.data(), job.out = out.data(), job.panels = panels.data();
  job.tokens = c.tokens, job.n = c.n, job.k = c.k, job.stride = c.n;
  job.kind = c.kind, job.mode = c.mode;
  linear(pool, *kernels.gemm, job);
  return out;
}

void check_case(std::mt19937& random, const Case& c) {
  const std::vector<uint8_t> w = random_weight(random, c.kind, c.n, c.k);
  const Floats x = normal(random, c.tokens * c.k), twin = product(scalar_twin(), c, w, x, 1);
  each_target([&](const Kernels& kernels) {
    const Floats got = product(kernels, c, w, x, 1);
    const int kind = static_cast<int>(c.kind), mode = static_cast<int>(c.mode);
    // Only vdpbf16ps rounds in its own way; everything else is the same arithmetic in the same order.
    if (c.mode != Mode::bf16) CHECK(same_bits(got, twin), "%s kind %d mode %d", kernels.isa, kind, mode);
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(std::abs(got[i] - twin[i]) <= 1e-3f * static_cast<float>(c.k), "%s kind %d", kernels.isa, kind);
    CHECK(same_bits(product(kernels, c, w, x, 3), got), "%s kind %d: threads change bits", kernels.isa, kind);
    for (int64_t t = 0; t < c.tokens; ++t) {
      const Case one{c.kind, c.mode, 1, c.n, c.k};
      const Floats row(x.begin() + t * c.k, x.begin() + (t + 1) * c.k);
      const Floats want(got.begin() + t * c.n, got.begin() + (t + 1) * c.n);
      CHECK(same_bits(product(kernels, one, w, row, 1), want), "%s kind %d: company changes bits", kernels.isa, kind);
    }
  });
}

// Weights opened to bf16 on AMX: near the exact product, and no row knows another.
void check_opened(std::mt19937& random, Kind kind, int64_t tokens, int64_t n, int64_t k) {
  const std::vector<uint8_t> w = random_weight(random, kind, n, k);
  const Floats x = normal(random, tokens * k), twin = product(scalar_twin(), {kind, Mode::f32, tokens, n, k}, w, x, 1);
  each_target([&](const Kernels& kernels) {
    if (!kernels.gemm->opens_pairs) return;
    const Floats got = product(kernels, {kind, Mode::bf16, tokens, n, k}, w, x, 1);
    double error = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i)
      error += std::pow(got[i] - twin[i], 2), size += std::pow(twin[i] - 0.25f, 2);
    CHECK(error <= 1e-4 * size, "kind %d: error %g", static_cast<int>(kind), std::sqrt(error / size));
    CHECK(same_bits(product(kernels, {kind, Mode::bf16, tokens, n, k}, w, x, 3), got), "kind %d: threads change bits",
          static_cast<int>(kind));
    for (int64_t t = 0; t < tokens; ++t) {
      const Floats row(x.begin() + t * k, x.begin() + (t + 1) * k);
      const Floats want(got.begin() + t * n, got.begin() + (t + 1) * n);
      CHECK(same_bits(product(kernels, {kind, Mode::bf16, 1, n, k}, w, row, 1), want), "kind %d: company changes bits",
            static_cast<int>(kind));
    }
  });
}

}  // namespace

int main() {
  std::mt19937 random(1);
  for (const Kind kind : kTested) {
    const int64_t k = grouped(kind) ? 1280 : 77;  // more than one stretch of opened tiles
    for (const int64_t tokens : {1, 4, 9, 37})
      for (const int64_t n : {1, 16, 61, 157}) {
        check_case(random, {kind, Mode::f32, tokens, n, k});
        if (grouped(kind) && !of_floats(kind)) check_case(random, {kind, Mode::i8, tokens, n, k});
        if (grouped(kind) && !of_floats(kind) && n >= 16) check_opened(random, kind, tokens, n, k);
        if (kind == Kind::bf16 || of_floats(kind)) check_case(random, {kind, Mode::bf16, tokens, n, k});
      }
    if (grouped(kind) && !of_floats(kind)) check_opened(random, kind, 530, 48, 2 * block_of(kind).k);  // two passes of panels
    if (grouped(kind)) continue;
    check_case(random, {kind, Mode::f32, 9, 16, 1037});  // activations rounded in slices, with odd K
    if (kind == Kind::bf16)
      // Several depths of many tokens, filled up or in place.
      for (const auto& [tokens, many_k] : {std::pair{9, 1037}, {100, 1300}, {100, 2080}})
        check_case(random, {kind, Mode::bf16, tokens, 157, many_k});
  }
  return 0;
}
