// bf16 weights x bf16 activations, accumulated in float32.
//
// Error against float64 of the same operands, per output: K * 2^-24 * sum |w x|, plus subnormals flushed on AVX-512 and
// AMX.  The order of a sum, K upward, is the target's own: vectors take two K at a time through dot_bf16 (simd.h); AMX
// sums even and odd K of 32 by themselves, then adds both.
#include "gemm_sums.h"
#include "gemm_tile.h"
#if defined(FW_ISA_AMX)
#include "amx.h"
#include "gemm_pairs.h"
#endif

namespace flyweight::FW_ISA {

#if defined(FW_ISA_AMX)
namespace {

constexpr int64_t kStepBytes = 1024;  // 32 K of 16 rows: a register

// A few tokens: tiles in pairs x a panel or two; accumulators are registers 0 to 3, [panel][tile].
class Block {
 public:
  explicit Block(const LinearJob& job)
      : job_(job), bytes_(tile_bytes(Kind::bf16, job.k)), token_(token_bytes(Mode::bf16, job.k)),
        steps_((job.k + kGroup - 1) / kGroup), panels_(panel_count(job.tokens, kTileRows)) {}
  ~Block() { TileShapes::release(); }

  // At most kSumTiles tiles and two panels.
  void run(Range tiles, Range panels) {
    for (int i = 0; i < 2; ++i) {
      const int64_t p = panels.begin + i < panels.end ? panels.begin + i : panels.begin;
      const int64_t token = panel_start(job_.tokens, panels_, p);
      size_[i] = panel_start(job_.tokens, panels_, p + 1) - token;
      x_[i] = job_.panels + token * token_;
    }
    shape();
    const bool two = panels.end - panels.begin == 2;
    const int64_t token = panel_start(job_.tokens, panels_, panels.begin), size = size_[0] + (two ? size_[1] : 0);
    for (int64_t i = tiles.begin; i < tiles.end; i += 2) {
      float* sums = sums_.of(i - tiles.begin);
      if (i + 1 < tiles.end)
        two ? sum<2, 2>(i, sums) : sum<2, 1>(i, sums);
      else
        two ? sum<1, 2>(i, sums) : sum<1, 1>(i, sums);
    }
    sums_.give(job_, tiles, token, size, true);
  }

 private:
  void shape() {
    if (size_[0] == shaped_[0] && size_[1] == shaped_[1]) return;
    shaped_[0] = size_[0], shaped_[1] = size_[1];
    TileShapes shapes;
    for (int i = 0; i < 2; ++i) {
      shapes.set(2 * i, size_[i], 64);
      shapes.set(2 * i + 1, size_[i], 64);
      shapes.set(4 + i, size_[i], 64);
      shapes.set(6 + i, kTileRows, 64);
    }
    shapes.load();
  }

  // `step` of a tile; the last is filled up with zeros.
  const uint8_t* weights(int64_t tile, int64_t step, uint8_t* room) const {
    const uint8_t* at = job_.weight + tile * bytes_ + step * kStepBytes;
    const int64_t left = bytes_ - step * kStepBytes;
    if (left >= kStepBytes) return at;
    std::memset(room, 0, kStepBytes);
    std::memcpy(room, at, static_cast<size_t>(left));
    return room;
  }

  // Calls f with constants (register, tile, panel) for each accumulator there is.
  template <int Tiles, int Panels, class F>
  FW_INLINE static void each_sum(F f) {
    each<Panels>([&](auto p) FW_LAMBDA {
      each<Tiles>([&](auto i) FW_LAMBDA { f(std::integral_constant<int, 2 * p + i>{}, i, p); });
    });
  }

  template <int Tiles, int Panels>
  void sum(int64_t tile, float* sums) {
    const auto place = [&](int i, int p) { return sums + (i * kSumTokens + p * size_[0]) * kLanes; };
    each_sum<Tiles, Panels>([](auto r, auto, auto) FW_LAMBDA { tile_zero<r>(); });
    alignas(64) uint8_t room[2][kStepBytes];
    const bool few = job_.tokens <= kRowTokens;
    for (int64_t s = 0; s < steps_; ++s) {
      const uint8_t* first = weights(tile, s, room[0]);
      if (few)
        prefetch_stream(kAhead, first, kStepBytes);
      else if (Panels == 1)  // one panel: memory sets the pace
        for (int i = 0; i < Tiles; ++i) prefetch(first + (Tiles + i) * bytes_, kStepBytes);
      tile_load<4>(x_[0] + s * size_[0] * 64, 64);
      tile_load<6>(first, 64);
      tile_dot_bf16<0, 4, 6>();
      if constexpr (Tiles == 2) tile_load<7>(weights(tile + 1, s, room[1]), 64);
      if constexpr (Panels == 2) tile_load<5>(x_[1] + s * size_[1] * 64, 64);
      if constexpr (Tiles == 2) tile_dot_bf16<1, 4, 7>();
      if constexpr (Panels == 2) tile_dot_bf16<2, 5, 6>();
      if constexpr (Tiles == 2 && Panels == 2) tile_dot_bf16<3, 5, 7>();
    }
    each_sum<Tiles, Panels>([&](auto r, auto i, auto p) FW_LAMBDA { tile_store<r>(place(i, p), 64); });
  }

  const LinearJob& job_;
  int64_t bytes_, token_, steps_, panels_;
  int64_t size_[2] = {}, shaped_[2] = {};
  const uint8_t* x_[2] = {};
  Sums sums_;
};

// Many tokens read weights in place, or copied where the last 32 K are to be filled up with zeros.
void copy_groups(Kind, const uint8_t* tile, int64_t bytes, int64_t group, int64_t groups, uint8_t* to) {
  const int64_t begin = group * kOpenedBytes, size = groups * kOpenedBytes;
  const int64_t there = begin + size < bytes ? size : bytes - begin;
  std::memcpy(to, tile + begin, static_cast<size_t>(there));
  if (there < size) std::memset(to + there, 0, static_cast<size_t>(size - there));
}
constexpr OpenPairs kInPlace{nullptr, nullptr, nullptr}, kCopied{copy_groups, nullptr, nullptr};

}  // namespace

void multiply_pairs(const LinearJob& job, Range tiles, Range panels) {
  if (panels.end - panels.begin > 2) return multiply_opened_pairs(job, tiles, panels, job.k % kGroup ? kCopied : kInPlace);
  Block block(job);
  const int64_t step = job.tokens <= kRowTokens ? 1 : kSumTiles;
  for (int64_t i = tiles.begin; i < tiles.end; i += step) block.run({i, i + step < tiles.end ? i + step : tiles.end}, panels);
}

#else
namespace {

struct Pairs {
  template <int Tiles, int Tokens>
  static void run(const LinearJob& job, const Spot& at) {
    constexpr int pairs = kGroup / 2;
    const int64_t bytes = tile_bytes(Kind::bf16, job.k), count = (job.k + 1) / 2;
    F32x16 acc[Tiles][Tokens];
    clear(acc);
    const uint8_t* x = at.panel;
    for (int64_t begin = 0; begin < count; begin += pairs, x += 64 * Tokens) {
      if (at.ahead) prefetch_stream(at.ahead, at.tile + 64 * Tiles * begin, 64 * Tiles * pairs);
      const int64_t end = begin + pairs < count ? pairs : count - begin;
      for (int64_t pair = 0; pair < end; ++pair) {
        B8x64 w[Tiles];
        each<Tiles>([&](auto i) FW_LAMBDA { w[i] = bload(at.tile + bytes * i + 64 * (begin + pair)); });
        each<Tokens>([&](auto t) FW_LAMBDA {
          const B8x64 xs = set4(x + 64 * t + 4 * pair);
          each<Tiles>([&](auto i) FW_LAMBDA { acc[i][t] = dot_bf16(acc[i][t], w[i], xs); });
        });
      }
    }
    finish<Tiles, Tokens>(job, at, acc);
  }
};

}  // namespace

void multiply_pairs(const LinearJob& job, Range tiles, Range panels) {
  walk(job, job.tokens <= kRowTokens ? kInners<Pairs, 1> : kInners<Pairs, kTiles>, tiles, panels);
}
#endif

}  // namespace flyweight::FW_ISA
