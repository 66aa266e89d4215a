// The loops over tiles that were opened to float32.
#include "gemm_floats.h"

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

// A few tiles with all panels of a chunk.
class FloatChunk {
 public:
  FloatChunk(const LinearJob& job, OpenFloats with)
      : job_(job), open_(with), bytes_(tile_bytes(job.kind, job.k)), panels_(panel_count(job.tokens, kTokens)) {}

  void run(Range tiles, Range panels) {
    for (int64_t k = 0; k < job_.k; k += kFloatK) {
      const int64_t count = k + kFloatK < job_.k ? kFloatK : job_.k - k;
      const bool last = k + count == job_.k;
      for (int64_t i = tiles.begin; i < tiles.end; ++i) {
        prefetch(last ? job_.weight + (tiles.end - tiles.begin + i) * bytes_ : place(i, k + count), place(i, count) - place(i, 0));
        open_(job_.weight + i * bytes_, k, count, opened_[i - tiles.begin]);
      }
      for (int64_t p = panels.begin; p < panels.end; ++p) multiply(tiles, p, k, count);
    }
  }

 private:
  const uint8_t* place(int64_t tile, int64_t k) const { return job_.weight + tile * bytes_ + k * bytes_ / job_.k; }

  void multiply(Range tiles, int64_t p, int64_t k, int64_t count) {
    const int64_t token = panel_start(job_.tokens, panels_, p), size = panel_start(job_.tokens, panels_, p + 1) - token;
    if (k > 0) sums_.take(job_, tiles, token, size);
    const float* x = reinterpret_cast<const float*>(job_.panels + token * token_bytes(Mode::f32, job_.k)) + k * size;
    kInners[static_cast<size_t>(size - 1)](opened_, tiles.end - tiles.begin, x, count, sums_.of(0), k == 0);
    sums_.give(job_, tiles, token, size, k + count == job_.k);
  }

  const LinearJob& job_;
  OpenFloats open_;
  int64_t bytes_, panels_;
  alignas(64) Floats opened_[kSumTiles];
  Sums sums_;
};

}  // namespace

void multiply_floats(const LinearJob& job, Run tiles, Range panels, OpenFloats open) {
  FloatChunk chunk(job, open);
  for (int64_t i = tiles.begin; i < tiles.end; i += kSumTiles)
    chunk.run({i, i + kSumTiles < tiles.end ? i + kSumTiles : tiles.end}, panels);
}

}  // namespace flyweight::FW_ISA
