// Each elementwise kernel on every target and several thread counts gives the scalar twin's bits; buffers are exact, so
// that AddressSanitizer sees a read or write beyond a row.
#include "check.h"

namespace {

using namespace flyweight;

struct Results {
  Floats norm, add_norm, residual, layer_norm, bare_layer_norm, act[4], activated[4], sum, taken, scaled, capped, shut;
};

Results run(const Kernels& kernels, int threads, int64_t rows, int64_t width) {
  std::mt19937 random(7);
  const int64_t size = rows * width;
  const Floats x = normal(random, size, 3), w = normal(random, width), gated = normal(random, 2 * size, 5);
  const auto blank = [&] { return Floats(static_cast<size_t>(size), -1.0f); };
  Results r{};
  for (Floats* out : {&r.norm, &r.add_norm, &r.layer_norm, &r.bare_layer_norm, &r.taken}) *out = blank();
  for (int kind = 0; kind < 4; ++kind) r.act[kind] = r.activated[kind] = blank();
  for (Floats* out : {&r.residual, &r.sum, &r.scaled, &r.capped, &r.shut}) *out = normal(random, size, 4);
  std::vector<int32_t> picked(static_cast<size_t>(rows));
  for (int32_t& row : picked) row = static_cast<int32_t>(random() % static_cast<uint32_t>(rows));
  Pool pool(threads);
  const ElementwiseKernels& k = *kernels.elementwise;
  k.norm(pool, x.data(), w.data(), r.norm.data(), rows, width, 1e-5f);
  k.add_norm(pool, x.data(), r.residual.data(), w.data(), r.add_norm.data(), rows, width, 1e-5f);
  k.layer_norm(pool, x.data(), w.data(), gated.data(), r.layer_norm.data(), rows, width, 1e-5f);
  k.layer_norm(pool, x.data(), w.data(), nullptr, r.bare_layer_norm.data(), rows, width, 1e-5f);
  for (int kind = 0; kind < 4; ++kind) {
    k.act(pool, gated.data(), r.act[kind].data(), rows, width, static_cast<GatedAct>(kind));
    k.activate(pool, gated.data(), r.activated[kind].data(), size, static_cast<PlainAct>(kind));
  }
  k.scale(pool, r.scaled.data(), size, 0.3f);
  k.softcap(pool, r.capped.data(), size, 3.0f);
  k.gate(pool, r.shut.data(), gated.data(), rows, width);
  k.add(pool, x.data(), r.sum.data(), size);
  k.take(pool, x.data(), picked.data(), r.taken.data(), rows, width);
  return r;
}

void compare(const Results& got, const Results& want, const char* isa, int threads, int64_t width) {
  const auto same = [&](const Floats& a, const Floats& b, const char* what) {
    CHECK(same_bits(a, b), "%s on %s, %d threads, width %d", what, isa, threads, static_cast<int>(width));
  };
  same(got.norm, want.norm, "norm");
  same(got.add_norm, want.add_norm, "add_norm");
  same(got.residual, want.residual, "add_norm's residual");
  same(got.layer_norm, want.layer_norm, "layer_norm");
  same(got.bare_layer_norm, want.bare_layer_norm, "layer_norm without bias");
  for (int kind = 0; kind < 4; ++kind) {
    same(got.act[kind], want.act[kind], "act");
    same(got.activated[kind], want.activated[kind], "activate");
  }
  same(got.scaled, want.scaled, "scale");
  same(got.capped, want.capped, "softcap");
  same(got.shut, want.shut, "gate");
  same(got.sum, want.sum, "add");
  same(got.taken, want.taken, "take");
}

}  // namespace

int main() {
  for (const int64_t width : {1, 15, 16, 17, 63, 64, 65, 130, 1025, 5000}) {
    const int64_t rows = width > 1000 ? 9 : 37;
    const Results want = run(scalar_twin(), 1, rows, width);
    compare(run(scalar_twin(), 3, rows, width), want, "scalar", 3, width);
    each_target([&](const Kernels& kernels) {
      for (const int threads : {1, 4}) compare(run(kernels, threads, rows, width), want, kernels.isa, threads, width);
    });
  }
  std::puts("elementwise: ok");
}
