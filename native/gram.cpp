// h += x^T x in float32: rows are packed in panels of 16 columns, and each task adds one square of 128 x 128 outputs of the
// upper triangle and writes its mirror image.
//
// An output is summed over kDepth rows in a register, over kChunk rows in a square of the worker's own, then added to h:
// its bits depend on its two columns and on how the caller cuts rows into calls, not on the target or the threads.
#include "float_tile.h"
#include "kernels.h"

namespace flyweight::FW_ISA {
namespace {

constexpr int64_t kPanel = 16, kSquare = 128, kPanels = kSquare / kPanel;  // columns, columns, panels of a square
constexpr int64_t kDepth = 256, kChunk = 2048;                             // rows

int64_t count_squares(int64_t k) { return (k + kSquare - 1) / kSquare; }
int64_t count_chunk(int64_t rows) { return rows < kChunk ? rows : kChunk; }

// Panels are whole squares, zero beyond column k; then a square for each worker.
int64_t count_scratch(const GramJob& job, int threads) {
  return count_squares(job.k) * kSquare * count_chunk(job.rows) + threads * kSquare * kSquare;
}

// Columns of one square, rows [first, first + count), to panels [kPanels, count, 16].
void pack_square(const GramJob& job, int64_t square, int64_t first, int64_t count, float* panels) {
  for (int64_t t = 0; t < count; ++t) {
    const float* row = job.x + (first + t) * job.k;
    for (int64_t p = 0; p < kPanels; ++p) {
      const int64_t column = square * kSquare + p * kPanel, left = job.k - column;
      float* to = panels + (p * count + t) * kPanel;
      if (left >= kPanel) {
        store(to, load(row + column));
      } else {
        store(to, left > 0 ? load_tail(row + column, static_cast<int>(left)) : zero());
      }
    }
  }
}

// sums [128, 128] = a^T b for two squares of panels; on the diagonal panels below it are left out.
void multiply_squares(const float* a, const float* b, int64_t count, bool diagonal, float* sums) {
  for (int64_t t = 0; t < count; t += kDepth) {
    const int64_t depth = count - t < kDepth ? count - t : kDepth;
    for (int64_t right = 0; right < kPanels; right += kTileVectors) {
      const int64_t lefts = diagonal ? right + kTileVectors : kPanels;
      for (int64_t i = 0; i < lefts * kPanel; i += kTileOuts) {
        const float* from = a + (i / kPanel * count + t) * kPanel + i % kPanel;
        const FloatTile tile =
            multiply_tile(from, kPanel, b + (right * count + t) * kPanel, kPanel, count * kPanel, depth);
        each<kTileOuts>([&](auto m) FW_LAMBDA {
          each<kTileVectors>([&](auto v) FW_LAMBDA {
            float* to = sums + (i + m) * kSquare + (right + v) * kPanel;
            store(to, t == 0 ? tile.sum[m][v] : add(load(to), tile.sum[m][v]));
          });
        });
      }
    }
  }
}

// Adds a square of sums at (top, left) to h and to its mirror image; of the diagonal's square the upper half.
void add_square(const GramJob& job, int64_t top, int64_t left, float* sums) {
  const int64_t k = job.k, rows = k - top < kSquare ? k - top : kSquare, columns = k - left < kSquare ? k - left : kSquare;
  for (int64_t i = 0; i < rows; ++i) {
    float* to = job.h + (top + i) * k + left;
    for (int64_t j = top == left ? i : 0; j < columns; ++j) to[j] = sums[i * kSquare + j] += to[j];
  }
  for (int64_t j = 0; j < columns; ++j) {
    float* to = job.h + (left + j) * k + top;
    const int64_t last = top == left ? j : rows;
    for (int64_t i = 0; i < last; ++i) to[i] = sums[i * kSquare + j];
  }
}

void accumulate_chunk(Pool& pool, const GramJob& job, int64_t first, int64_t count) {
  const int64_t squares = count_squares(job.k), size = kSquare * count;
  float* panels = job.scratch;
  float* sums = job.scratch + squares * kSquare * count_chunk(job.rows);
  pool.run(squares, [&](int64_t i, int) { pack_square(job, i, first, count, panels + i * size); });
  pool.run(squares * squares, [&](int64_t task, int worker) {
    const int64_t i = task / squares, j = task % squares;
    if (i > j) return;
    float* own = sums + worker * kSquare * kSquare;
    multiply_squares(panels + i * size, panels + j * size, count, i == j, own);
    add_square(job, i * kSquare, j * kSquare, own);
  });
}

void accumulate(Pool& pool, const GramJob& job) {
  for (int64_t first = 0; first < job.rows; first += kChunk)
    accumulate_chunk(pool, job, first, count_chunk(job.rows - first));
}

}  // namespace

extern const GramKernels gram_kernels;
const GramKernels gram_kernels = {count_scratch, accumulate};

}  // namespace flyweight::FW_ISA
