// Every kernel's entry point: plain pointers, sizes and the pool.  No Python, no ownership, no allocation, no exceptions.
//
// One kernel file is compiled once per target (scalar, avx2, avxvnni, avx512, amx | neon) inside namespace flyweight::FW_ISA and exports
// one constant table of function pointers; `Kernels` gathers a target's tables and dispatch.cpp picks a target at load.
//
// How to add a kernel
//   1. Its table: add a function pointer to the struct of its file below (elementwise, sample) or in kernels_gemm.h /
//      kernels_attention.h / kernels_moe.h; a new file gets a new struct here and a pointer in `Kernels`.
//   2. Its body: write it in native/<file>.cpp once, over simd.h's 16-lane vectors, in namespace flyweight::FW_ISA, and
//      name it in the `extern const ...Kernels` at the file's end, in the struct's order.
//   3. A new file: add it to FW_KERNEL_SOURCES in CMakeLists.txt, declare its table in table.cpp and name it there.
//   4. Its binding: native/bindings/<area>.cpp checks dtype, shape and contiguity (nanobind's typed arrays), allocates
//      the outputs, releases the GIL and calls the table; a new area adds bind_<area> to bindings/module.cpp.
//   5. Its tests: native/tests/test_<file>.cpp compares every target with the scalar twin, tests/ops/ with the reference.
//
// Rules for kernel files
//   - An output row depends only on that row's inputs, bit for bit: fix the order of each sum by position along K.
//   - Pool chunks are cut so that each output element has one owner; what a chunk computes must not depend on the cut.
//   - No std containers or algorithms: their out-of-line copies would be shared between targets and could carry
//     instructions the machine lacks.  Helpers stay in namespace flyweight::FW_ISA (or an unnamed one inside it).
#pragma once

#include <cstdint>

#include "kernels_attention.h"
#include "kernels_calibrate.h"
#include "kernels_encode.h"
#include "kernels_gemm.h"
#include "kernels_moe.h"
#include "pool.h"

namespace flyweight {

enum class GatedAct { silu, gelu, gelu_tanh, swiglu_clamped };
enum class PlainAct { silu, gelu, gelu_tanh, relu };

struct ElementwiseKernels {
  // out = x / sqrt(mean(x^2) + eps) * w, rows of `width`.
  void (*norm)(Pool&, const float* x, const float* w, float* out, int64_t rows, int64_t width, float eps);
  // residual += x, then out = norm(residual).
  void (*add_norm)(Pool&, const float* x, float* residual, const float* w, float* out, int64_t rows, int64_t width,
                   float eps);
  // out = (x - mean) / sqrt(variance + eps) * w + b; b may be null.
  void (*layer_norm)(Pool&, const float* x, const float* w, const float* b, float* out, int64_t rows, int64_t width,
                     float eps);
  // x [rows, 2 inner] (gate, up) -> out [rows, inner] = f(gate) * up.
  void (*act)(Pool&, const float* x, float* out, int64_t rows, int64_t inner, GatedAct kind);
  // The same of one row; out may be gate.
  void (*act_row)(const float* gate, const float* up, float* out, int64_t size, GatedAct kind);
  void (*activate)(Pool&, const float* x, float* out, int64_t size, PlainAct kind);
  void (*add)(Pool&, const float* x, float* residual, int64_t size);
  void (*take)(Pool&, const float* x, const int32_t* rows, float* out, int64_t count, int64_t width);
  // In place: x *= by; x = cap * tanh(x / cap); a row of x times the sigmoid of its logit.
  void (*scale)(Pool&, float* x, int64_t size, float by);
  void (*softcap)(Pool&, float* x, int64_t size, float cap);
  void (*gate)(Pool&, float* x, const float* logits, int64_t rows, int64_t width);
};

// One call of `sample`: the columns of flyweight.wire.SampleBatch, R rows, and where the answers go.  The caller has
// checked that every id is in [0, vocab) and that the *_starts ascend.
struct SampleJob {
  int64_t rows = 0, vocab = 0, longest_history = 0, width = 0;  // width: ids in a row of top_ids, at most 64
  const float *logits = nullptr, *temperature = nullptr, *top_p = nullptr, *min_p = nullptr;
  const int32_t *top_k = nullptr, *choice = nullptr, *position = nullptr;
  const uint64_t* seed = nullptr;
  const float* penalties = nullptr;  // [R, 3] repetition, presence, frequency
  const int32_t *prompt = nullptr, *history = nullptr, *history_starts = nullptr;
  const int32_t *bias_ids = nullptr, *bias_starts = nullptr;
  const float* bias_values = nullptr;
  const int32_t *banned_ids = nullptr, *banned_starts = nullptr;
  const int32_t *allowed_ids = nullptr, *allowed_starts = nullptr;  // at most `vocab` a row; an empty row allows all
  const int32_t *repeat_ids = nullptr, *repeat_starts = nullptr;
  const float* repeat_values = nullptr;
  // [R] a row's mask, one bit an id from the lowest bit of the first word on; null where every id may be drawn
  const uint32_t* const* masks = nullptr;
  const int32_t* given = nullptr;  // [R] the row's token where it is known, -1 where it is to be drawn
  const int32_t* logprobs = nullptr;
  int32_t *tokens = nullptr, *ranks = nullptr, *top_ids = nullptr;
  float *out_logprobs = nullptr, *top_logprobs = nullptr;
  uint8_t* scratch = nullptr;  // 64-byte aligned
};

struct SampleKernels {
  int64_t (*scratch)(const SampleJob&, int threads);  // bytes wanted
  void (*sample)(Pool&, const SampleJob&);
};

// What one target offers.
struct Kernels {
  const char* isa;
  const ElementwiseKernels* elementwise;
  const AttentionKernels* attention;
  const GemmKernels* gemm;
  const MoeKernels* moe;
  const SampleKernels* sample;
  const EncodeKernels* encode;
  const GramKernels* gram;
  const SweepKernels* sweep;
};

// All targets this machine can run, best last.
struct Targets {
  const Kernels* list[6];
  int count;
};
Targets targets();

}  // namespace flyweight
