// How products are cut into chunks for the pool.  The kernels (gemm_*.cpp) fix every bit; this file only decides who
// computes what and when, so nothing here can change a result.
#include "kernels.h"

namespace flyweight {
namespace {

// A chunk reads at least enough weights to repay its hand-out (~0.1 us against ~3 us) and at most what leaves the last
// chunk short; small weights are cut finer so that every thread gets several chunks.
constexpr int64_t kMaxChunkBytes = 256 << 10, kMinChunkBytes = 16 << 10, kChunksPerThread = 6;
// Below this many activations the caller rounds them alone: waking the pool costs more.
constexpr int64_t kFillAlone = 16 << 10;

int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Runs of about `share` bytes, as many for every thread, and as equal as whole steps allow: threads end together.
Cut cut_of(const LinearJob& job, const GemmKernels& kernels, int64_t share, int64_t least, int threads) {
  const int64_t bytes = tile_bytes(job.kind, job.k), tiles = tile_count(job.n);
  Cut cut{};
  cut.step = kernels.tiles_at_once(job);
  const int64_t steps = ceil_div(tiles, cut.step);
  cut.runs = clamp(ceil_div(ceil_div(tiles * bytes, share), threads) * threads, 1, steps);
  cut.panels = panel_count(job.tokens, kernels.panel_width(job));
  const int64_t panel_bytes = ceil_div(job.tokens, cut.panels) * token_bytes(job.mode, job.k);
  cut.depth = clamp(kernels.panels_near(job) / panel_bytes, 1, cut.panels);
  const int64_t layers = ceil_div(least, cut.runs);  // so many make enough chunks
  cut.depth = clamp(ceil_div(cut.panels, layers), 1, cut.depth);
  return cut;
}

// The job that owns number `at` of the call: the last whose first is not beyond it.
template <int64_t Cut::*First>
int64_t job_of(const Cut* cuts, int64_t count, int64_t at) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (cuts[middle].*First <= at ? low : high) = middle;
  }
  return low;
}

void multiply_chunk(const GemmKernels& kernels, const LinearJob& job, const Cut& cut, int64_t chunk) {
  const int64_t tiles = tile_count(job.n), steps = ceil_div(tiles, cut.step);
  const auto start = [&](int64_t run) { return clamp(steps * run / cut.runs * cut.step, 0, tiles); };
  const int64_t run = chunk % cut.runs, panel = chunk / cut.runs * cut.depth;
  kernels.multiply(job, {start(run), start(run + 1)}, {panel, panel + cut.depth < cut.panels ? panel + cut.depth : cut.panels});
}

}  // namespace

void linear(Pool& pool, const GemmKernels& kernels, const LinearJob* jobs, int64_t count, Cut* cuts) {
  int64_t bytes = 0, activations = 0, panels = 0, chunks = 0;
  for (int64_t i = 0; i < count; ++i) {
    bytes += tile_count(jobs[i].n) * tile_bytes(jobs[i].kind, jobs[i].k);
    activations += jobs[i].tokens * jobs[i].k;
  }
  const int64_t share = clamp(bytes / (pool.threads() * kChunksPerThread), kMinChunkBytes, kMaxChunkBytes);
  for (int64_t i = 0; i < count; ++i) {
    Cut& cut = cuts[i] = cut_of(jobs[i], kernels, share, ceil_div(pool.threads() * kChunksPerThread, count), pool.threads());
    cut.first_panel = panels, cut.first_chunk = chunks;
    panels += cut.panels, chunks += cut.runs * ceil_div(cut.panels, cut.depth);
  }
  const auto fill = [&](int64_t panel, int) {
    const int64_t i = job_of<&Cut::first_panel>(cuts, count, panel), p = panel - cuts[i].first_panel;
    kernels.fill(jobs[i], {p, p + 1});
  };
  if (activations <= kFillAlone)
    for (int64_t panel = 0; panel < panels; ++panel) fill(panel, 0);
  else
    pool.run(panels, fill);
  pool.run_portions(chunks, [&](int64_t number, int) {
    const int64_t i = job_of<&Cut::first_chunk>(cuts, count, number), chunk = number - cuts[i].first_chunk;
    multiply_chunk(kernels, jobs[i], cuts[i], chunk);
  });
}

}  // namespace flyweight
