// How products are cut into chunks for the pool.  The kernels (gemm_*.cpp) fix every bit; this file only decides who
// computes what and when, so nothing here can change a result.
#include <atomic>
#include <thread>

#include "kernels.h"

namespace flyweight {
namespace {

// A chunk reads at least enough weights to repay its hand-out (~0.1 us against ~3 us) and at most what leaves the last
// chunk short; small weights are cut finer so that every thread gets several chunks.
constexpr int64_t kMaxChunkBytes = 256 << 10, kMinChunkBytes = 16 << 10, kChunksPerThread = 6;
// Activations of a slice: about a microsecond of rounding.
constexpr int64_t kSliceSize = 4096;
// Then whoever waits for another worker's slice lets other threads run.
constexpr int kSpins = 10000;

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
  const int64_t panel_tokens = ceil_div(job.tokens, cut.panels);
  cut.slices = clamp(ceil_div(panel_tokens * job.k, kSliceSize), 1, ceil_div(job.k, kGroup));
  const int64_t panel_bytes = panel_tokens * token_bytes(job.mode, job.k);
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

// The activations of a call, rounded by its workers before they multiply: in slices of K, so that no two write to one line.
class Filling {
 public:
  Filling(const GemmKernels& kernels, const LinearJob* jobs, const Cut* cuts, int64_t count, int64_t slices)
      : kernels_(kernels), jobs_(jobs), cuts_(cuts), count_(count), slices_(slices) {}

  // Fills slices that nobody has taken and waits for the others': after it all panels can be read.
  void finish() {
    if (done_.load(std::memory_order_acquire) == slices_) return;
    for (int64_t slice; (slice = next_.fetch_add(1, std::memory_order_relaxed)) < slices_;) {
      fill(slice);
      done_.fetch_add(1, std::memory_order_release);
    }
    for (int spin = 0; done_.load(std::memory_order_acquire) < slices_; ++spin)
      if (spin > kSpins) std::this_thread::yield();
  }

 private:
  void fill(int64_t number) {
    const int64_t i = job_of<&Cut::first_slice>(cuts_, count_, number), slice = number - cuts_[i].first_slice;
    const int64_t panel = slice / cuts_[i].slices, part = slice % cuts_[i].slices;
    const int64_t k = jobs_[i].k, groups = ceil_div(k, kGroup);
    const auto start = [&](int64_t at) { return clamp(groups * at / cuts_[i].slices * kGroup, 0, k); };
    kernels_.fill(jobs_[i], {panel, panel + 1}, {start(part), start(part + 1)});
  }

  const GemmKernels& kernels_;
  const LinearJob* jobs_;
  const Cut* cuts_;
  int64_t count_, slices_;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> done_{0};
};

}  // namespace

void linear(Pool& pool, const GemmKernels& kernels, const LinearJob* jobs, int64_t count, Cut* cuts) {
  int64_t bytes = 0, slices = 0, chunks = 0;
  for (int64_t i = 0; i < count; ++i) bytes += tile_count(jobs[i].n) * tile_bytes(jobs[i].kind, jobs[i].k);
  const int64_t share = clamp(bytes / (pool.threads() * kChunksPerThread), kMinChunkBytes, kMaxChunkBytes);
  for (int64_t i = 0; i < count; ++i) {
    Cut& cut = cuts[i] = cut_of(jobs[i], kernels, share, ceil_div(pool.threads() * kChunksPerThread, count), pool.threads());
    cut.first_slice = slices, cut.first_chunk = chunks;
    if (jobs[i].filled) cut.slices = 0;
    slices += cut.panels * cut.slices, chunks += cut.runs * ceil_div(cut.panels, cut.depth);
  }
  Filling filling(kernels, jobs, cuts, count, slices);
  pool.run_portions(chunks, [&](int64_t number, int) {
    filling.finish();
    const int64_t i = job_of<&Cut::first_chunk>(cuts, count, number), chunk = number - cuts[i].first_chunk;
    multiply_chunk(kernels, jobs[i], cuts[i], chunk);
  });
}

}  // namespace flyweight
