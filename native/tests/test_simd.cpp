// Every primitive on every target this machine runs gives the scalar twin's bits; exp and tanh are near the true values.
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

#include "check.h"
#include "simd_probe.h"

namespace flyweight {

#define FW_TARGET(isa) \
  namespace isa { \
  extern const Probe probe; \
  }
FW_TARGET(scalar)
#if defined(__x86_64__)
FW_TARGET(avx2)
FW_TARGET(avx512)
#elif defined(__aarch64__)
FW_TARGET(neon)
#endif

namespace {

const Probe& probe_of(const Kernels& kernels) {
#if defined(__x86_64__)
  return std::string_view(kernels.isa) == "avx2" ? avx2::probe : avx512::probe;
#elif defined(__aarch64__)
  (void)kernels;
  return neon::probe;
#else
  return scalar::probe;
#endif
}

float some_float(std::mt19937& random) {
  static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-42f, 65520.0f, 5.9e-8f, 89.0f, -104.0f,
                                  0.5f, 1.5f,  2.5f,     3.4e38f,   1.0f};
  const auto kind = random() % 4;
  if (kind == 0) return special[random() % std::size(special)];
  const float scale = kind == 1 ? 1.0f : kind == 2 ? 40.0f : 1e4f;
  return std::normal_distribution<float>(0.0f, scale)(random);
}

ProbeInput some_input(std::mt19937& random) {
  ProbeInput in;
  for (float* row : {in.a, in.b, in.c})
    for (int i = 0; i < 16; ++i) row[i] = some_float(random);
  for (int i = 0; i < 16; ++i) in.c[i] = std::isfinite(in.c[i]) ? in.c[i] : 1.0f;
  for (int32_t* row : {in.i, in.j})
    for (int i = 0; i < 16; ++i) row[i] = static_cast<int32_t>(random());
  for (uint16_t& h : in.half) h = static_cast<uint16_t>(random());
  const bool extreme = random() % 4 == 0;  // where saturating instructions would saturate
  for (uint8_t& u : in.u) u = extreme ? 255 : static_cast<uint8_t>(random());
  for (uint8_t& v : in.v) v = extreme ? static_cast<uint8_t>(127 + random() % 2) : static_cast<uint8_t>(random());
  in.tail = static_cast<int>(random() % 17);
  return in;
}

void twins() {
  std::mt19937 random(1);
  static ProbeOutput want, got;
  for (int round = 0; round < 500; ++round) {
    const ProbeInput in = some_input(random);
    scalar::probe.run(in, want);
    each_target([&](const Kernels& kernels) {
      probe_of(kernels).run(in, got);
      CHECK(got.used == want.used, "%d and %d words", got.used, want.used);
      for (int w = 0; w < got.used; ++w)
        CHECK(got.word[w] == want.word[w], "%s, round %d, word %d: %08x, scalar %08x", kernels.isa, round, w, got.word[w],
              want.word[w]);
      for (int i = 0; i < 16; ++i) {
        const float slack = 4e-7f * (std::fabs(in.c[i]) + 8.0f);
        CHECK(std::fabs(got.bf16[i] - want.bf16[i]) <= slack, "%s: dot_bf16 %g, scalar %g", kernels.isa,
              static_cast<double>(got.bf16[i]), static_cast<double>(want.bf16[i]));
      }
    });
  }
}

using Function = void (*)(const float* x, float* y);

// Distance of f(x) from the truth, in units in the last place of the truth.
double ulps(Function f, float x, double truth) {
  float in[16], out[16];
  for (float& v : in) v = x;
  f(in, out);
  const float near = static_cast<float>(std::fabs(truth));
  const double ulp = static_cast<double>(std::nextafter(near, INFINITY)) - static_cast<double>(near);
  return std::fabs(static_cast<double>(out[0]) - truth) / ulp;
}

void exp_is_near() {
  double worst = 0;
  for (float x = -87.3f; x < 88.7f; x += 0.0011f)
    worst = std::fmax(worst, ulps(scalar::probe.exp, x, std::exp(static_cast<double>(x))));
  std::printf("simd: exp within %.2f ulp\n", worst);
  CHECK(worst <= 1.0, "%.2f ulp", worst);
  const float in[16] = {-88, -1000, -INFINITY, 89, INFINITY, NAN, 0.0f, -0.0f};
  float out[16];
  scalar::probe.exp(in, out);
  CHECK(out[0] == 0 && out[1] == 0 && out[2] == 0, "below");
  CHECK(std::isinf(out[3]) && std::isinf(out[4]), "above");
  CHECK(std::isnan(out[5]) && out[6] == 1 && out[7] == 1, "NaN and zero");
}

void tanh_is_near() {
  double worst = 0;
  const auto look = [&](float x) {
    worst = std::fmax(worst, ulps(scalar::probe.tanh, x, std::tanh(static_cast<double>(x))));
  };
  for (float x = -11.0f; x < 11.0f; x += 0.00031f) look(x);
  for (float x = 1.2e-38f; x < 1.0f; x *= 1.01f) look(x);
  std::printf("simd: tanh within %.2f ulp\n", worst);
  CHECK(worst <= 3.0, "%.2f ulp", worst);
  const float in[16] = {0.0f, -0.0f, INFINITY, -INFINITY, 3e38f, -3e38f, NAN, 1e-40f};
  float out[16];
  scalar::probe.tanh(in, out);
  CHECK(out[0] == 0 && !std::signbit(out[0]) && out[1] == 0 && std::signbit(out[1]), "zeros keep their sign");
  CHECK(out[2] == 1 && out[3] == -1 && out[4] == 1 && out[5] == -1, "ends");
  CHECK(std::isnan(out[6]) && out[7] == 1e-40f, "NaN and a subnormal number");
}

// A number of either sign with an exponent in [low, high), its mantissa now and then all ones or nearly none.
float spread(std::mt19937& random, int low, int high) {
  uint32_t mantissa = random() & 0x7FFFFF;
  if (random() % 4 == 0) mantissa |= 0x7FFFF8;
  if (random() % 4 == 0) mantissa &= 7;
  const float size = std::ldexp(1.0f + std::ldexp(static_cast<float>(mantissa), -23),
                                low + static_cast<int>(random() % static_cast<uint32_t>(high - low)));
  return random() % 2 == 0 ? size : -size;
}

// Where they say so, quotients by way of a reciprocal are those of a division, and they say so of what is usual.
void quotients_are_exact() {
  std::mt19937 random(2);
  const float unusual[] = {0.0f, -0.0f, INFINITY, NAN, 1e-40f, 1e-30f, 1e30f};
  each_target([&](const Kernels& kernels) {
    for (int round = 0; round < 20000; ++round) {
      float x[16], y[16], divided[16];
      for (float& number : x) number = spread(random, -59, 59);
      const bool usual = round % 8 != 0;
      if (!usual) x[round / 8 % 16] = unusual[random() % std::size(unusual)];
      const float divisor = std::fabs(spread(random, -9, 29));
      const bool good = probe_of(kernels).quotients(x, divisor, y, divided);
      CHECK(good == usual, "%s, round %d", kernels.isa, round);
      CHECK(!good || std::memcmp(y, divided, sizeof y) == 0, "%s, round %d, by %a", kernels.isa, round,
            static_cast<double>(divisor));
    }
    float x[16], y[16], divided[16];
    for (float& number : x) number = 1.0f;
    for (const float divisor : {0.0f, -2.0f, 1e-6f, 1e12f, INFINITY, NAN})
      CHECK(!probe_of(kernels).quotients(x, divisor, y, divided), "%s, by %g", kernels.isa, static_cast<double>(divisor));
  });
}

}  // namespace
}  // namespace flyweight

int main() {
  flyweight::twins();
  flyweight::exp_is_near();
  flyweight::tanh_is_near();
  flyweight::quotients_are_exact();
  std::puts("simd: ok");
}
