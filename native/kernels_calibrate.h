// Entry points of gram.cpp and sweep.cpp: what calibration learns of a matrix's inputs, and GPTQ's sweep over its columns.
#pragma once

#include <cstdint>

#include "pool.h"

namespace flyweight {

// h [k, k] += x^T x for x [rows, k]; h is symmetric and stays so.
struct GramJob {
  float* h = nullptr;
  const float* x = nullptr;
  int64_t rows = 0, k = 0;
  float* scratch = nullptr;  // 64-byte aligned
};

struct GramKernels {
  int64_t (*scratch)(const GramJob&, int threads);  // floats wanted
  void (*accumulate)(Pool&, const GramJob&);
};

// Weights [rows, k] as codes of `bits` bits in groups of `group` columns, which divides k.  `factor` [k, k] is the upper
// Cholesky factor of the inverse Hessian; null: each weight is rounded by itself.  `shrink` searches each group's range.
struct SweepJob {
  const float *w = nullptr, *factor = nullptr;
  int64_t rows = 0, k = 0, group = 0;
  int bits = 4;
  bool symmetric = true, shrink = false;
  uint8_t* codes = nullptr;              // [rows, k]
  float* scales = nullptr;               // [rows, k / group], numbers that float16 has
  uint8_t* zeros = nullptr;              // [rows, k / group]
  float* scratch = nullptr;              // 64-byte aligned
};

struct SweepKernels {
  int64_t (*scratch)(const SweepJob&, int threads);  // floats wanted
  void (*sweep)(Pool&, const SweepJob&);
};

}  // namespace flyweight
