#include "stack.h"

#include <algorithm>
#include <cstring>

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
    product(layer.qkv, x, wide_);
    const StackRope& rope = args_.ropes[layer.rope < 0 ? args_.rope_count - 1 : layer.rope];
    kernels_.attention->rope_store(pool_, {wide_, narrow_, kv, args_.tokens, layer.heads, args_.slots, rope.cos,
                                           rope.sin, rope.half, layer.q_norm, layer.k_norm, layer.head_eps});
    const StackCopies& copies = args_.copies;
    if (copies.count > 0)
      kernels_.attention->move_kv(pool_, kv, copies.from, copies.to, copies.count, memory_.attend);
    kernels_.attention->attend(pool_, attend_args(layer, kv, args_, narrow_, wide_), plan.work(), memory_.attend);
    product(layer.out, wide_, args_.out);
  }

  void feed_forward(const StackLayer& layer, const float* x) {
    product(layer.up, x, wide_);
    if (layer.gated) {
      kernels_.elementwise->act(pool_, wide_, narrow_, args_.tokens, layer.inner, layer.act);
    } else {
      kernels_.elementwise->activate(pool_, wide_, narrow_, args_.tokens * layer.inner, layer.activation);
    }
    product(layer.down, narrow_, args_.out);
  }

  void finish(const After& after) {
    norm_rows(after.norm, args_.out, args_.out);
    if (after.factor != 1) kernels_.elementwise->scale(pool_, args_.out, args_.tokens * args_.hidden, after.factor);
  }

  // The outputs of a weight's parts, side by side.  Parts that read x in the same way are computed together.
  void product(const Parts& parts, const float* x, float* out) {
    LinearJob job;
    job.x = x, job.tokens = args_.tokens, job.stride = rows_of(parts), job.panels = memory_.panels, job.out = out;
    for (size_t i = 0; i < parts.size();) {
      const size_t first = i;
      jobs_.clear();
      do {
        const Matrix& part = parts[i];
        job.weight = part.tiles, job.bias = part.bias, job.n = part.n, job.k = part.k;
        job.kind = part.kind, job.mode = part.mode, job.round_bf16 = part.round_bf16, job.filled = i > first;
        jobs_.push_back(job);
        job.out += part.n;
      } while (++i < parts.size() && read_alike(parts[first], parts[i]));
      cuts_.resize(jobs_.size());
      linear(pool_, *kernels_.gemm, jobs_.data(), static_cast<int64_t>(jobs_.size()), cuts_.data());
    }
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
