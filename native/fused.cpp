#include "fused.h"

#include <algorithm>

namespace flyweight {
namespace {

constexpr int64_t kTiles = 8, kWidth = kTiles * kLanes;  // of gate and of up at a time: what kernels open at once
constexpr int64_t kLeastTokens = 48, kLeastInChunk = 128;
constexpr int64_t kMostFloats = 128 << 10;  // of a room, which stays in L2
constexpr int64_t kChunksPerThread = 6;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t panels_of(const LinearJob& job, const GemmKernels& kernels) {
  return panel_count(job.tokens, kernels.panel_width(job));
}

// How many panels fit a worker's room, at `stride` floats a token.
int64_t panels_in_room(const LinearJob& job, const GemmKernels& kernels, const Rooms& rooms, int64_t stride, int threads) {
  const int64_t tokens = ceil_div(job.tokens, panels_of(job, kernels));
  return std::min(kMostFloats, rooms.size / threads) / (stride * tokens);
}

// How a product is cut: `parts` of its rows by runs of panels.
class Chunks {
 public:
  Chunks(const GemmKernels& kernels, const LinearJob& job, const Rooms& rooms, int64_t stride, int64_t parts, int threads)
      : kernels_(kernels), job_(job), rooms_(rooms), stride_(stride), parts_(parts), panels_(panels_of(job, kernels)) {
    const int64_t tokens = ceil_div(job.tokens, panels_), wanted = threads * kChunksPerThread;
    const int64_t near = kernels.panels_near(job) / (tokens * token_bytes(job.mode, job.k));
    depth_ = std::max<int64_t>(1, std::min({panels_in_room(job, kernels, rooms, stride, threads), near,
                                            ceil_div(panels_, ceil_div(wanted, parts))}));
    tokens_ = depth_ * tokens;
    slices_ = std::min(ceil_div(wanted, panels_), ceil_div(job.k, kGroup));
  }

  // Whether chunks are long enough to open weights for each.
  bool pay() const { return tokens_ >= std::min(kLeastInChunk, job_.tokens / 2); }

  // Fills the panels, then calls f(part, panels, room) for all.
  template <class F>
  void run(Pool& pool, F f) const {
    const int64_t groups = ceil_div(job_.k, kGroup);
    const auto slice = [&](int64_t i) { return std::min(groups * i / slices_ * kGroup, job_.k); };
    pool.run(panels_ * slices_, [&](int64_t i, int) {
      const int64_t panel = i / slices_, part = i % slices_;
      kernels_.fill(job_, {panel, panel + 1}, {slice(part), slice(part + 1)});
    });
    pool.run_portions(parts_ * ceil_div(panels_, depth_), [&](int64_t chunk, int worker) {
      const int64_t first = chunk / parts_ * depth_;
      f(chunk % parts_, Range{first, std::min(first + depth_, panels_)}, rooms_.floats + worker * tokens_ * stride_);
    });
  }

  int64_t start(int64_t panel) const { return panel_start(job_.tokens, panels_, panel); }
  // Where token 0 would be in a room that begins with the first token of some panels.
  float* origin(float* room, Range panels) const { return room - start(panels.begin) * stride_; }

  // Rows [row, row + rows) of a weight for some panels, at `column` of each token.
  void multiply(const WeightRows& weight, int64_t row, int64_t rows, Range panels, float* room, int64_t column) const {
    const Range tiles{weight.tile + row / kLanes, weight.tile + tile_count(row + rows)};
    LinearJob job = weight.job;
    job.panels = job_.panels;
    job.stride = stride_, job.out = origin(room, panels) + column - tiles.begin * kLanes;
    kernels_.multiply(job, tiles, panels);
  }

 private:
  const GemmKernels& kernels_;
  const LinearJob& job_;
  const Rooms& rooms_;
  int64_t stride_, parts_, panels_, depth_ = 1, tokens_ = 0, slices_ = 1;
};

Chunks chunks_of(const GatedProduct& product, const GemmKernels& kernels, int threads) {
  return {kernels, product.gate.job, product.rooms, 2 * kWidth, ceil_div(product.inner, kWidth), threads};
}

// Floats of a token's q, K and V of one KV head.
int64_t head_stride(const RopeStoreArgs& store) {
  return (store.heads / store.kv.heads + 1) * store.kv.k_dim + store.kv.v_dim;
}

Chunks chunks_of(const HeadsProduct& product, const GemmKernels& kernels, int threads) {
  return {kernels, product.q.job, product.rooms, head_stride(product.store), product.store.kv.heads, threads};
}

}  // namespace

bool can_fuse(const GatedProduct& product, const GemmKernels& kernels, int threads) {
  const LinearJob &gate = product.gate.job, &down = product.down;
  if (gate.tokens < kLeastTokens || form_of(down.kind).order) return false;
  if (kernels.panel_width(gate) != kernels.panel_width(down)) return false;
  if (panels_in_room(gate, kernels, product.rooms, 2 * kWidth, threads) == 0) return false;
  return chunks_of(product, kernels, threads).pay();
}

void multiply_fused(Pool& pool, const Kernels& kernels, const GatedProduct& product) {
  const Chunks chunks = chunks_of(product, *kernels.gemm, pool.threads());
  chunks.run(pool, [&](int64_t part, Range panels, float* room) {
    const int64_t k = part * kWidth, rows = std::min(kWidth, product.inner - k);
    chunks.multiply(product.gate, k, rows, panels, room, 0);
    chunks.multiply(product.up, k, rows, panels, room, kWidth);
    const int64_t tokens = chunks.start(panels.end) - chunks.start(panels.begin);
    for (float* row = room; row < room + tokens * 2 * kWidth; row += 2 * kWidth)
      kernels.elementwise->act_row(row, row + kWidth, row, rows, product.act);
    LinearJob down = product.down;
    down.x = chunks.origin(room, panels) - k, down.x_stride = 2 * kWidth;
    kernels.gemm->fill(down, panels, {k, k + rows});
  });
}

bool can_fuse(const HeadsProduct& product, const GemmKernels& kernels, int threads) {
  const RopeStoreArgs& store = product.store;
  const KVView& kv = store.kv;
  if (product.q.job.tokens < kLeastTokens || store.q_norm.whole || store.k_norm.whole) return false;
  if (kv.v_in_k || kv.k_dim % kLanes || kv.v_dim % kLanes || store.heads % kv.heads) return false;
  if (panels_in_room(product.q.job, kernels, product.rooms, head_stride(store), threads) == 0) return false;
  return chunks_of(product, kernels, threads).pay();
}

void multiply_fused(Pool& pool, const Kernels& kernels, const HeadsProduct& product) {
  const RopeStoreArgs& given = product.store;
  const int64_t stride = head_stride(given), k_dim = given.kv.k_dim, v_dim = given.kv.v_dim, queries = stride - k_dim - v_dim;
  const Chunks chunks = chunks_of(product, *kernels.gemm, pool.threads());
  chunks.run(pool, [&](int64_t head, Range panels, float* room) {
    chunks.multiply(product.q, head * queries, queries, panels, room, 0);
    chunks.multiply(product.k, head * k_dim, k_dim, panels, room, queries);
    chunks.multiply(product.v, head * v_dim, v_dim, panels, room, queries + k_dim);
    const float* x = chunks.origin(room, panels);
    RopeStoreArgs store = given;
    store.x = {x - head * queries, x + queries - head * k_dim, x + queries + k_dim - head * v_dim, stride};
    kernels.attention->rope_store_share(store, {chunks.start(panels.begin), chunks.start(panels.end), head, head + 1});
  });
}

}  // namespace flyweight
