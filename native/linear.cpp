// How a product is cut into chunks for the pool.  The kernels (gemm_*.cpp) fix every bit; this file only decides who
// computes what and when, so nothing here can change a result.
#include "kernels.h"

namespace flyweight {
namespace {

// A chunk reads at least enough weights to repay its hand-out (~0.1 us against ~3 us) and at most what leaves the last
// chunk short; small weights are cut finer so that every thread gets several chunks.
constexpr int64_t kMaxChunkBytes = 128 << 10, kMinChunkBytes = 16 << 10, kChunksPerThread = 6;
// Activations that stay in L2 while runs of tiles pass over them.
constexpr int64_t kPanelBytes = 384 << 10;
// Below this many activations the caller rounds them alone: waking the pool costs more.
constexpr int64_t kFillAlone = 16 << 10;

int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

void linear(Pool& pool, const GemmKernels& kernels, const LinearJob& job) {
  const int64_t panels = panel_count(job.tokens, kernels.panel_width());
  if (job.tokens * job.k <= kFillAlone)
    kernels.fill(job, {0, panels});
  else
    pool.run(panels, [&](int64_t p, int) { kernels.fill(job, {p, p + 1}); });

  const int64_t tiles = tile_count(job.n), bytes = tile_bytes(job.kind, job.k), step = kernels.tiles_at_once(job);
  const int64_t share = tiles * bytes / (pool.threads() * kChunksPerThread);
  const int64_t run = ceil_div(clamp(share, kMinChunkBytes, kMaxChunkBytes) / bytes + 1, step) * step;
  const int64_t panel_bytes = ceil_div(job.tokens, panels) * token_bytes(job.mode, job.k);
  const int64_t depth = clamp(kPanelBytes / panel_bytes, 1, panels);  // panels of one chunk
  const int64_t runs = ceil_div(tiles, run), layers = ceil_div(panels, depth);
  pool.run(runs * layers, [&](int64_t chunk, int) {
    const int64_t tile = chunk % runs * run, panel = chunk / runs * depth;
    const Range across{tile, tile + run < tiles ? tile + run : tiles};
    kernels.multiply(job, across, {panel, panel + depth < panels ? panel + depth : panels});
  });
}

}  // namespace flyweight
