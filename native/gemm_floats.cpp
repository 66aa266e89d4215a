// The loops over tiles that were opened to float32.
#include "gemm_floats.h"

#include "gemm_stretch.h"

#include <array>

namespace flyweight::FW_ISA {
namespace {

constexpr int kFloatK = kFold;  // of a stretch: kSumTiles tiles of it take 16 KiB and stay in L1

// Tiles side by side: as many as registers hold, as independent chains of fma hide its latency.
template <int Tokens>
constexpr int kSide = Tokens * kRowTiles <= (kTiles > 1 ? 16 : 4) ? kRowTiles : kTiles;

using Floats = float[kFloatK * kLanes];

template <int Tiles, int Tokens>
FW_INLINE void multiply_some(const Floats* tiles, const float* x, int64_t count, float* sums, bool first) {
  F32x16 total[Tiles][Tokens], acc[Tiles][Tokens];
  clear(acc);
  for (int64_t k = 0; k < count; ++k, x += Tokens) {
    F32x16 w[Tiles];
    each<Tiles>([&](auto i) FW_LAMBDA { w[i] = load(tiles[i] + k * kLanes); });
    each<Tokens>([&](auto t) FW_LAMBDA {
      const F32x16 xs = set1(x[t]);
      each<Tiles>([&](auto i) FW_LAMBDA { acc[i][t] = fma(w[i], xs, acc[i][t]); });
    });
  }
  resume(sums, first, total);
  add_to(total, acc);
  leave(sums, total);
}

// `tiles` opened tiles with one panel.
template <int Tokens>
void multiply_panel(const Floats* opened, int64_t tiles, const float* x, int64_t count, float* sums, bool first) {
  int64_t i = 0;
  const auto sums_of = [&](int64_t tile) { return sums + tile * kSumTokens * kLanes; };
  for (; i + kSide<Tokens> <= tiles; i += kSide<Tokens>)
    multiply_some<kSide<Tokens>, Tokens>(opened + i, x, count, sums_of(i), first);
  if constexpr (kSide<Tokens> > 1)
    for (; i < tiles; ++i) multiply_some<1, Tokens>(opened + i, x, count, sums_of(i), first);
}

using Inner = decltype(&multiply_panel<1>);
template <int... T>
constexpr std::array<Inner, kTokens> inners(std::integer_sequence<int, T...>) {
  return {multiply_panel<T + 1>...};
}
constexpr auto kInners = inners(std::make_integer_sequence<int, kTokens>{});

struct FloatPath {
  static constexpr int64_t kK = kFloatK;
  using Tile = Floats;

  static const float* panel(const LinearJob& job, int64_t token, int64_t k, int64_t size) {
    return reinterpret_cast<const float*>(job.panels + token * token_bytes(Mode::f32, job.k)) + k * size;
  }
  static Inner multiply(int64_t size) { return kInners[static_cast<size_t>(size - 1)]; }

  OpenFloats open;
};

}  // namespace

void multiply_floats(const LinearJob& job, Range tiles, Range panels, OpenFloats open) {
  multiply_stretches(job, tiles, panels, FloatPath{open});
}

}  // namespace flyweight::FW_ISA
