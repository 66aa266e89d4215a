#include "stack.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "fused.h"

namespace flyweight {
namespace {

int64_t rows_of(const Parts& parts) {
  int64_t rows = 0;
  for (const Matrix& part : parts) rows += part.n;
  return rows;
}

// Layers of equal shapes have equal plans.
struct AttendKey {
  int64_t heads, kv_heads;
  Sight sight;
  int64_t block;
  bool operator==(const AttendKey&) const = default;
};

AttendArgs attend_args(const StackLayer& layer, const KVView& kv, const StackArgs& args, const float* q, float* out) {
  return {q,          out,         kv,             layer.heads, layer.scale, layer.sight, layer.softcap,
          layer.sinks, args.positions, args.tables, args.table_width};
}

// One run: the arrays between the kernels.  `wide` and `narrow` take turns; `normed` holds what a block reads.
class StackRun {
 public:
  StackRun(Pool& pool, const Kernels& kernels, const StackArgs& args, const StackWidths& widths, const StackMemory& memory)
      : pool_(pool), kernels_(kernels), args_(args), memory_(memory), normed_(memory.arrays),
        wide_(normed_ + args.tokens * widths.normed), narrow_(wide_ + args.tokens * widths.wide) {}

  // What the residual is once `args.out` is added to it, which is done later.
  void tap(float* to) {
    const int64_t size = args_.tokens * args_.hidden;
    std::memcpy(to, args_.residual, static_cast<size_t>(size) * sizeof(float));
    kernels_.elementwise->add(pool_, args_.out, to, size);
  }

  void layer(const StackLayer& layer, const KVView& kv, const AttendPlan& plan, const float* pending) {
    const float* x = add_norm(layer.attn_norm, pending);
    attend(layer, kv, plan, x);
    finish(layer.attn_post);
    x = add_norm(layer.mlp_norm, args_.out);
    feed_forward(layer, x);
    finish(layer.mlp_post);
  }

 private:
  // Adds to the residual what is pending, and norms it; where there is no norm, the residual itself is read.
  const float* add_norm(const RowNorm& norm, const float* pending) {
    const ElementwiseKernels& k = *kernels_.elementwise;
    const int64_t rows = args_.tokens, width = args_.hidden;
    if (pending && norm.kind == RowNorm::Kind::rms) {
      k.add_norm(pool_, pending, args_.residual, norm.w, normed_, rows, width, norm.eps);
      return normed_;
    }
    if (pending) k.add(pool_, pending, args_.residual, rows * width);
    if (norm.kind == RowNorm::Kind::none) return args_.residual;
    norm_rows(norm, args_.residual, normed_);
    return normed_;
  }

  void norm_rows(const RowNorm& norm, const float* x, float* out) {
    const ElementwiseKernels& k = *kernels_.elementwise;
    if (norm.kind == RowNorm::Kind::rms) {
      k.norm(pool_, x, norm.w, out, args_.tokens, args_.hidden, norm.eps);
    } else if (norm.kind == RowNorm::Kind::layer) {
      k.layer_norm(pool_, x, norm.w, norm.b, out, args_.tokens, args_.hidden, norm.eps);
    }
  }

  void attend(const StackLayer& layer, const KVView& kv, const AttendPlan& plan, const float* x) {
    const StackRope& rope = args_.ropes[layer.rope < 0 ? args_.rope_count - 1 : layer.rope];
    RopeStoreArgs store{{}, narrow_, kv, args_.tokens, layer.heads, args_.slots, rope.cos,
                        rope.sin, rope.half, layer.q_norm, layer.k_norm, layer.head_eps};
    if (!project_fused(layer.qkv, x, store)) {
      product(layer.qkv, x, wide_);
      store.x = projected_rows(wide_, layer.heads, kv);
      kernels_.attention->rope_store(pool_, store);
    }
    const StackCopies& copies = args_.copies;
    if (copies.count > 0)
      kernels_.attention->move_kv(pool_, kv, copies.from, copies.to, copies.count, memory_.attend);
    kernels_.attention->attend(pool_, attend_args(layer, kv, args_, narrow_, wide_), plan.work(), memory_.attend);
    product(layer.out, wide_, args_.out);
  }

  void feed_forward(const StackLayer& layer, const float* x) {
    if (layer.gated && feed_fused(layer, x)) return;
    product(layer.up, x, wide_);
    if (layer.gated) {
      kernels_.elementwise->act(pool_, wide_, narrow_, args_.tokens, layer.inner, layer.act);
    } else {
      kernels_.elementwise->activate(pool_, wide_, narrow_, args_.tokens * layer.inner, layer.activation);
    }
    product(layer.down, narrow_, args_.out);
  }

  // The same while what is between is in cache, where that can be: its panels take the place of act's output.
  bool feed_fused(const StackLayer& layer, const float* x) {
    WeightRows rows[2];
    if (layer.down.size() != 1 || !find_rows(layer.up, x, {layer.inner, layer.inner}, rows)) return false;
    auto* panels = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(narrow_) + 63) / 64 * 64);
    LinearJob down = job_of(layer.down[0], nullptr, panels);
    const int64_t room = args_.tokens * layer.inner * int64_t{sizeof(float)};
    if (args_.tokens * token_bytes(down.mode, down.k) + 64 > room) return false;
    const GatedProduct fused{rows[0], rows[1], layer.inner, layer.act, down, {wide_, args_.tokens * rows_of(layer.up)}};
    if (!can_fuse(fused, *kernels_.gemm, pool_.threads())) return false;
    multiply_fused(pool_, kernels_, fused);
    down.out = args_.out, down.stride = down.n, down.filled = true;
    linear(pool_, *kernels_.gemm, down);
    return true;
  }

  // Queries, keys and values in the same way.
  bool project_fused(const Parts& qkv, const float* x, const RopeStoreArgs& store) {
    const KVView& kv = store.kv;
    WeightRows rows[3];
    if (!find_rows(qkv, x, {store.heads * kv.k_dim, kv.heads * kv.k_dim, kv.heads * kv.v_dim}, rows)) return false;
    const HeadsProduct fused{rows[0], rows[1], rows[2], store, {wide_, args_.tokens * rows_of(qkv)}};
    if (!can_fuse(fused, *kernels_.gemm, pool_.threads())) return false;
    multiply_fused(pool_, kernels_, fused);
    return true;
  }

  // Where the rows of `sizes`, one after the other, begin: in one weight, or each in a weight of its own.  False where they
  // do not begin with tiles, or read x in different ways.
  bool find_rows(const Parts& parts, const float* x, std::initializer_list<int64_t> sizes, WeightRows* found) const {
    const bool one = parts.size() == 1;
    if (!one && parts.size() != sizes.size()) return false;
    int64_t row = 0;
    size_t i = 0;
    for (const int64_t size : sizes) {
      const Matrix& part = parts[one ? 0 : i];
      if (one ? row % kLanes != 0 : part.n != size || !read_alike(parts[0], part)) return false;
      found[i++] = {job_of(part, x, memory_.panels), row / kLanes};
      row += one ? size : 0;
    }
    return !one || row == parts[0].n;
  }

  void finish(const After& after) {
    norm_rows(after.norm, args_.out, args_.out);
    if (after.factor != 1) kernels_.elementwise->scale(pool_, args_.out, args_.tokens * args_.hidden, after.factor);
  }

  // The outputs of a weight's parts, side by side.  Parts that read x in the same way are computed together.
  void product(const Parts& parts, const float* x, float* out) {
    const int64_t stride = rows_of(parts);
    for (size_t i = 0; i < parts.size();) {
      const size_t first = i;
      jobs_.clear();
      do {
        LinearJob job = job_of(parts[i], x, memory_.panels);
        job.out = out, job.stride = stride, job.filled = i > first;
        jobs_.push_back(job);
        out += parts[i].n;
      } while (++i < parts.size() && read_alike(parts[first], parts[i]));
      cuts_.resize(jobs_.size());
      linear(pool_, *kernels_.gemm, jobs_.data(), static_cast<int64_t>(jobs_.size()), cuts_.data());
    }
  }

  LinearJob job_of(const Matrix& part, const float* x, uint8_t* panels) const {
    LinearJob job;
    job.x = x, job.tokens = args_.tokens, job.panels = panels;
    job.weight = part.tiles, job.bias = part.bias, job.n = part.n, job.k = part.k;
    job.kind = part.kind, job.mode = part.mode, job.round_bf16 = part.round_bf16;
    return job;
  }

  // Whether two weights read a row from the same panels.
  static bool read_alike(const Matrix& a, const Matrix& b) {
    const Form form = form_of(a.kind);
    return a.kind == b.kind && a.mode == b.mode && a.round_bf16 == b.round_bf16 && a.k == b.k && !form.order && !form.input;
  }

  Pool& pool_;
  const Kernels& kernels_;
  const StackArgs& args_;
  const StackMemory& memory_;
  float *normed_, *wide_, *narrow_;
  std::vector<LinearJob> jobs_;
  std::vector<Cut> cuts_;
};

}  // namespace

StackPlan plan_stack(const StackLayers& layers, const StackArgs& args, int threads) {
  StackPlan plan;
  std::vector<AttendKey> keys;
  for (size_t i = 0; i < layers.size(); ++i) {
    const StackLayer& layer = layers[i];
    const KVView& kv = args.kv[i];
    const AttendKey key{layer.heads, kv.heads, layer.sight, kv.block};
    const auto at = static_cast<size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
    if (at == keys.size()) {
      keys.push_back(key);
      const AttendPlace place{args.sequences, args.starts, args.positions, args.tables, args.table_width, kv.block};
      plan.attends.push_back(plan_attend({place, layer.heads, kv.heads, layer.sight, threads}));
    }
    plan.attend_of.push_back(at);
    for (const Parts* parts : {&layer.qkv, &layer.out, &layer.up, &layer.down})
      for (const Matrix& part : *parts)
        plan.panel_bytes = std::max(plan.panel_bytes, args.tokens * token_bytes(part.mode, part.k));
    const AttendArgs shape = attend_args(layer, kv, args, nullptr, nullptr);
    const int64_t copied = (args.copies.count * kv.heads * kv.slot_bytes() + 3) / 4;
    plan.attend_floats = std::max({plan.attend_floats, attend_floats(shape, plan.attends[at], threads), copied});
  }
  return plan;
}

StackWidths widths_of(const StackLayers& layers, int64_t hidden) {
  StackWidths widths{hidden, 0, 0};
  for (const StackLayer& layer : layers) {
    widths.wide = std::max({widths.wide, rows_of(layer.qkv), layer.heads * layer.kv.v_dim, rows_of(layer.up)});
    widths.narrow = std::max({widths.narrow, layer.heads * layer.kv.k_dim, layer.inner});
  }
  return widths;
}

void run_stack(Pool& pool, const Kernels& kernels, const StackLayers& layers, const StackArgs& args,
               const StackPlan& plan, const StackMemory& memory) {
  StackRun run(pool, kernels, args, widths_of(layers, args.hidden), memory);
  for (size_t i = 0; i < layers.size(); ++i) {
    run.layer(layers[i], args.kv[i], plan.attends[plan.attend_of[i]], i == 0 ? args.pending : args.out);
    if (args.taps && args.taps[i]) run.tap(args.taps[i]);
  }
}

}  // namespace flyweight
