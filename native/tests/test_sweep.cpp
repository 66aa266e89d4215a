// Sums of x^T x and GPTQ's sweep: every target and thread count gives the scalar twin's bits, rows do not depend on their
// neighbours, and buffers are exact, so that AddressSanitizer sees a read or write beyond one.
#include "check.h"

namespace {

using namespace flyweight;

Floats accumulate(const Kernels& kernels, int threads, const Floats& x, int64_t k) {
  GramJob job;
  job.x = x.data(), job.k = k, job.rows = static_cast<int64_t>(x.size()) / k;
  Floats h(static_cast<size_t>(k * k), 1.0f);
  Floats scratch(static_cast<size_t>(kernels.gram->scratch(job, threads)));
  job.h = h.data(), job.scratch = scratch.data();
  Pool pool(threads);
  kernels.gram->accumulate(pool, job);
  return h;
}

void check_gram(int64_t rows, int64_t k) {
  std::mt19937 random(5);
  const Floats x = normal(random, rows * k), want = accumulate(scalar_twin(), 1, x, k);
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = 0; j < k; ++j) {
      double sum = 1;
      for (int64_t t = 0; t < rows; ++t)
        sum += static_cast<double>(x[static_cast<size_t>(t * k + i)]) * x[static_cast<size_t>(t * k + j)];
      const double lost = sum - want[static_cast<size_t>(i * k + j)];
      CHECK(lost < 1e-3 && lost > -1e-3, "gram [%d, %d]", static_cast<int>(i), static_cast<int>(j));
    }
  each_target([&](const Kernels& target) {
    for (int threads : {1, 3}) CHECK(same_bits(accumulate(target, threads, x, k), want), "gram on %s", target.isa);
  });
}

struct Swept {
  std::vector<uint8_t> codes, zeros;
  Floats scales;

  bool same(const Swept& other) const {
    return same_bits(codes, other.codes) && same_bits(zeros, other.zeros) && same_bits(scales, other.scales);
  }
};

Swept sweep(const Kernels& kernels, int threads, SweepJob job, const Floats& w, const Floats& factor) {
  job.w = w.data(), job.factor = factor.empty() ? nullptr : factor.data();
  job.rows = static_cast<int64_t>(w.size()) / job.k;
  const size_t groups = static_cast<size_t>(job.rows * (job.k / job.group));
  Swept out{std::vector<uint8_t>(w.size()), std::vector<uint8_t>(groups), Floats(groups)};
  Floats scratch(static_cast<size_t>(kernels.sweep->scratch(job, threads)));
  job.codes = out.codes.data(), job.zeros = out.zeros.data(), job.scales = out.scales.data();
  job.scratch = scratch.data();
  Pool pool(threads);
  kernels.sweep->sweep(pool, job);
  return out;
}

void check_sweep(int64_t rows, int64_t k, int64_t group, bool corrected) {
  std::mt19937 random(7);
  const Floats w = normal(random, rows * k, 0.05f);
  Floats factor = corrected ? normal(random, k * k, 0.1f) : Floats{};
  for (int64_t i = 0; corrected && i < k; ++i) factor[static_cast<size_t>(i * k + i)] = 1.5f;
  for (const bool symmetric : {true, false}) {
    SweepJob job;
    job.k = k, job.group = group, job.symmetric = symmetric, job.shrink = symmetric;
    const Swept want = sweep(scalar_twin(), 1, job, w, factor);
    each_target([&](const Kernels& target) {
      for (int threads : {1, 3}) CHECK(sweep(target, threads, job, w, factor).same(want), "sweep on %s", target.isa);
    });
    const Floats last(w.end() - k, w.end());
    const Swept alone = sweep(scalar_twin(), 1, job, last, factor);
    CHECK(std::memcmp(alone.codes.data(), &want.codes[w.size() - last.size()], last.size()) == 0, "the last row alone");
  }
}

}  // namespace

int main() {
  check_gram(3, 1), check_gram(70, 33), check_gram(300, 130);
  for (const bool corrected : {false, true})
    check_sweep(3, 8, 8, corrected), check_sweep(66, 150, 75, corrected), check_sweep(5, 264, 264, corrected);
  std::puts("sweep: ok");
}
