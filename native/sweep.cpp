// GPTQ's sweep (Frantar et al., 2023): columns are rounded one after the other, and each one's error is made good by the
// columns after it.  One lane is one row, 64 rows a task, so a row's codes depend neither on its neighbours nor on the
// threads, and every target gives the same bits.
//
// Columns go in blocks of 128: inside a block errors reach the next columns at once, later blocks get a whole block's in
// one product.  A group's grid is found when the sweep reaches its first column.  Knows no Hessian and no files; the caller
// has checked that the weights are finite.
#include "float_tile.h"
#include "kernels.h"

namespace flyweight::FW_ISA {
namespace {

constexpr int64_t kRows = 64, kVectors = kRows / 16;  // of a task
constexpr int64_t kBlock = 128, kStrip = 8;           // columns
constexpr int kShrinks = 13;                          // shares of a group's range: 1 down to 0.6
constexpr float kSmallest = 5.9604644775390625e-8f, kLargest = 65504.0f;  // of float16

int64_t count_strips(int64_t columns) { return (columns + kStrip - 1) / kStrip; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Where the strips of block `b` begin among all: those of a block are [strips from its first column on, 128, 8].
int64_t find_block(int64_t k, int64_t b) {
  return kBlock * kStrip * (b * count_strips(k) - kBlock / kStrip * (b * (b - 1) / 2));
}
int64_t count_blocks(int64_t k) { return (k + kBlock - 1) / kBlock; }

struct Layout {
  int64_t factor, weights, own;  // floats: the packed factor, a task's weights, all of a task's

  explicit Layout(const SweepJob& job) {
    factor = job.factor == nullptr ? 0 : find_block(job.k, count_blocks(job.k));
    weights = (job.factor == nullptr ? job.group : count_strips(job.k) * kStrip) * kRows;
    own = weights + kBlock * kRows + kBlock * kRows / 4 + job.k / job.group * kRows * 2;
  }
};

int64_t count_scratch(const SweepJob& job, int threads) {
  const Layout layout(job);
  return layout.factor + threads * layout.own;
}

// Rows of one block of the factor, as strips.
void pack_block(const SweepJob& job, int64_t b, float* strips) {
  const int64_t first = b * kBlock, depth = smaller(job.k - first, kBlock);
  for (int64_t s = 0; s < count_strips(job.k - first); ++s) {
    const int64_t column = first + s * kStrip, width = smaller(job.k - column, kStrip);
    for (int64_t i = 0; i < kBlock; ++i)
      for (int64_t c = 0; c < kStrip; ++c)
        strips[(s * kBlock + i) * kStrip + c] = i < depth && c < width ? job.factor[(first + i) * job.k + column + c] : 0.0f;
  }
}

struct Grid {
  F32x16 scale, zero;
};

class Rounder {
 public:
  explicit Rounder(const SweepJob& job)
      : symmetric_(job.symmetric), shrink_(job.shrink), most_(set1(static_cast<float>((1 << job.bits) - 1))),
        middle_(set1(static_cast<float>(1 << (job.bits - 1)))) {}

  // The grid of cells [count, 64] of sixteen rows.
  Grid find(const float* cells, int64_t count) const {
    F32x16 low = load(cells), high = low;
    for (int64_t i = 1; i < count; ++i) {
      const F32x16 x = load(cells + i * kRows);
      low = min(low, x), high = max(high, x);
    }
    Grid best = span(low, high);
    if (!shrink_) return best;
    F32x16 least = measure(cells, count, best);
    for (int step = 1; step < kShrinks; ++step) {
      const F32x16 share = set1(1.0f - 0.4f * static_cast<float>(step) / static_cast<float>(kShrinks - 1));
      const Grid grid = span(mul(low, share), mul(high, share));
      const F32x16 error = measure(cells, count, grid);
      best.scale = select_gt(least, error, grid.scale, best.scale);
      best.zero = select_gt(least, error, grid.zero, best.zero);
      least = min(error, least);
    }
    return best;
  }

  FW_INLINE F32x16 code(F32x16 x, const Grid& grid) const { return clip(add(rint(div(x, grid.scale)), grid.zero)); }

 private:
  bool symmetric_, shrink_;
  F32x16 most_, middle_;

  FW_INLINE F32x16 clip(F32x16 code) const { return min(max(code, zero()), most_); }

  Grid span(F32x16 low, F32x16 high) const {
    if (symmetric_) return {round_scale(div(max(abs(low), abs(high)), sub(middle_, set1(0.5f)))), middle_};
    low = min(low, zero()), high = max(high, zero());
    const F32x16 scale = round_scale(div(sub(high, low), most_));
    return {scale, min(max(rint(div(sub(zero(), low), scale)), set1(1.0f)), most_)};
  }

  static F32x16 round_scale(F32x16 scale) {  // float16's nearest, never 0
    uint16_t half[16];
    store_f16(half, min(max(scale, set1(kSmallest)), set1(kLargest)));
    return max(load_f16(half), set1(kSmallest));
  }

  F32x16 measure(const float* cells, int64_t count, const Grid& grid) const {
    const F32x16 inverse = div(set1(1.0f), grid.scale);
    F32x16 sum = zero();
    for (int64_t i = 0; i < count; ++i) {
      const F32x16 x = load(cells + i * kRows), q = clip(add(rint(mul(x, inverse)), grid.zero));
      const F32x16 lost = sub(x, mul(grid.scale, sub(q, grid.zero)));
      sum = fma(lost, lost, sum);
    }
    return sum;
  }
};

// Sixty-four rows on their way.  Columns are numbered from the first that `weights_` holds.
class Task {
 public:
  Task(const SweepJob& job, int64_t first, float* own)
      : job_(job), rounder_(job), first_(first), rows_(smaller(job.rows - first, kRows)), weights_(own),
        errors_(own + Layout(job).weights), codes_(reinterpret_cast<uint8_t*>(errors_ + kBlock * kRows)),
        scales_(errors_ + kBlock * kRows + kBlock * kRows / 4), zeros_(scales_ + job.k / job.group * kRows) {}

  void round_all() {
    for (int64_t g = 0; g < job_.k / job_.group; ++g) {
      load_columns(g * job_.group, job_.group, job_.group);
      find_grid(g, weights_);
      for (int64_t done = 0; done < job_.group; done += kBlock) {
        const int64_t count = smaller(job_.group - done, kBlock);
        for (int64_t c = 0; c < count; ++c)
          for (int64_t v = 0; v < kVectors; ++v) {
            const F32x16 x = load(weights_ + (done + c) * kRows + 16 * v);
            store_codes(c, v, rounder_.code(x, grid_of(g, v)));
          }
        put_codes(g * job_.group + done, count);
      }
    }
    put_grids();
  }

  void sweep_all(const float* factor) {
    load_columns(0, job_.k, count_strips(job_.k) * kStrip);
    for (int64_t b = 0; b < count_blocks(job_.k); ++b) sweep_block(b * kBlock, factor + find_block(job_.k, b));
    put_grids();
  }

 private:
  const SweepJob& job_;
  const Rounder rounder_;
  const int64_t first_, rows_;
  float *const weights_, *const errors_;  // [columns, 64], [128, 64]
  uint8_t* const codes_;                  // [128, 64], less 128
  float *const scales_, *const zeros_;    // [groups, 64]

  void load_columns(int64_t first, int64_t count, int64_t padded) {
    for (int64_t c = 0; c < padded; c += 16)
      for (int64_t r = 0; r < kRows; ++r) {
        const float* from = job_.w + (first_ + r) * job_.k + first;
        const int64_t last = smaller(c + 16, padded);
        for (int64_t i = c; i < last; ++i) weights_[i * kRows + r] = r < rows_ && i < count ? from[i] : 0.0f;
      }
  }

  Grid grid_of(int64_t group, int64_t v) const {
    const int64_t at = group * kRows + 16 * v;
    return {load(scales_ + at), load(zeros_ + at)};
  }

  void find_grid(int64_t group, const float* cells) {
    for (int64_t v = 0; v < kVectors; ++v) {
      const Grid grid = rounder_.find(cells + 16 * v, job_.group);
      store(scales_ + group * kRows + 16 * v, grid.scale);
      store(zeros_ + group * kRows + 16 * v, grid.zero);
    }
  }

  void sweep_block(int64_t first, const float* strips) {
    const int64_t count = smaller(job_.k - first, kBlock), all = count_strips(job_.k - first);
    const int64_t within = count_strips(count);
    for (int64_t from = 0; from < count;) {  // a run of columns ends with its strip, and before the next group
      const int64_t group = (first + from) / job_.group;
      if ((first + from) % job_.group == 0) find_grid(group, weights_ + (first + from) * kRows);
      const int64_t s = from / kStrip;
      const int64_t last = smaller(smaller((s + 1) * kStrip, count), (group + 1) * job_.group - first);
      sweep_run(first, from, last, group, strips + s * kBlock * kStrip);
      for (int64_t later = s + 1; later < within; ++later)
        correct(first + later * kStrip, strips + (later * kBlock + from) * kStrip, from, last - from);
      from = last;
    }
    put_codes(first, count);
    for (int64_t later = within; later < all; ++later)
      correct(first + later * kStrip, strips + later * kBlock * kStrip, 0, count);
  }

  // Columns [from, last) of a block, and what their errors change in the rest of their strip.
  void sweep_run(int64_t first, int64_t from, int64_t last, int64_t group, const float* strip) {
    const int64_t start = from / kStrip * kStrip;
    for (int64_t v = 0; v < kVectors; ++v) {
      const Grid grid = grid_of(group, v);
      for (int64_t c = from; c < last; ++c) {
        const float* factors = strip + c * kStrip;
        const F32x16 x = load(weights_ + (first + c) * kRows + 16 * v), code = rounder_.code(x, grid);
        store_codes(c, v, code);
        const F32x16 kept = mul(grid.scale, sub(code, grid.zero));
        const F32x16 error = div(sub(x, kept), set1(factors[c - start]));
        store(errors_ + c * kRows + 16 * v, error);
        for (int64_t later = c + 1; later < start + kStrip; ++later) {
          float* to = weights_ + (first + later) * kRows + 16 * v;
          store(to, fma(error, set1(-factors[later - start]), load(to)));
        }
      }
    }
  }

  // Takes the product of `depth` columns' errors, from column `from` of the block on, with a strip off its weights.
  void correct(int64_t column, const float* strip, int64_t from, int64_t depth) {
    for (int64_t v = 0; v < kVectors; v += kTileVectors)
      for (int64_t c = 0; c < kStrip; c += kTileOuts) {
        const FloatTile tile =
            multiply_tile(strip + c, kStrip, errors_ + from * kRows + 16 * v, kRows, 16, depth);
        each<kTileOuts>([&](auto m) FW_LAMBDA {
          each<kTileVectors>([&](auto n) FW_LAMBDA {
            float* to = weights_ + (column + c + m) * kRows + 16 * (v + n);
            store(to, sub(load(to), tile.sum[m][n]));
          });
        });
      }
  }

  void store_codes(int64_t column, int64_t v, F32x16 code) {
    store_i8(reinterpret_cast<int8_t*>(codes_ + column * kRows + 16 * v), sub(to_i32(code), iset1(128)));
  }

  void put_codes(int64_t column, int64_t count) {
    for (int64_t r = 0; r < rows_; ++r) {
      uint8_t* to = job_.codes + (first_ + r) * job_.k + column;
      for (int64_t c = 0; c < count; ++c) to[c] = static_cast<uint8_t>(codes_[c * kRows + r] ^ 128);
    }
  }

  void put_grids() {
    const int64_t groups = job_.k / job_.group;
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t g = 0; g < groups; ++g) {
        job_.scales[(first_ + r) * groups + g] = scales_[g * kRows + r];
        job_.zeros[(first_ + r) * groups + g] = static_cast<uint8_t>(zeros_[g * kRows + r]);
      }
  }
};

void sweep(Pool& pool, const SweepJob& job) {
  const Layout layout(job);
  if (job.factor != nullptr)
    pool.run(count_blocks(job.k), [&](int64_t b, int) { pack_block(job, b, job.scratch + find_block(job.k, b)); });
  pool.run((job.rows + kRows - 1) / kRows, [&](int64_t i, int worker) {
    Task task(job, i * kRows, job.scratch + layout.factor + worker * layout.own);
    if (job.factor == nullptr) {
      task.round_all();
    } else {
      task.sweep_all(job.scratch);
    }
  });
}

}  // namespace

extern const SweepKernels sweep_kernels;
const SweepKernels sweep_kernels = {count_scratch, sweep};

}  // namespace flyweight::FW_ISA
