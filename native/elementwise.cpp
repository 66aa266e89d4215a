// Norms, gated activations, sums and row copies: one pass over memory each, shared out over the pool.
//
// The only reduction is the norms' sum of squares: four vectors of 16 lanes, element i always into the same lane of the
// same vector, then a fixed tree.  So the bits depend neither on the number of rows or threads nor on the target.
#include "kernels.h"
#include "simd.h"

namespace flyweight::FW_ISA {
namespace {

// A chunk should take a few microseconds, several hand-offs' worth: 8,192 floats are 32 KiB, 2-4 us from cache.
constexpr int64_t kChunk = 8192;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

float sum_of_squares(const float* x, int64_t width) {
  F32x16 s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();  // four chains hide the fma's latency of 4 cycles
  int64_t i = 0;
  for (; i + 64 <= width; i += 64) {
    const F32x16 a = load(x + i), b = load(x + i + 16), c = load(x + i + 32), d = load(x + i + 48);
    s0 = fma(a, a, s0);
    s1 = fma(b, b, s1);
    s2 = fma(c, c, s2);
    s3 = fma(d, d, s3);
  }
  for (; i < width; i += 16) {
    const F32x16 a = i + 16 <= width ? load(x + i) : load_tail(x + i, static_cast<int>(width - i));
    s0 = fma(a, a, s0);
  }
  return hsum(add(add(s0, s1), add(s2, s3)));
}

void norm_row(const float* x, const float* w, float* out, int64_t width, float eps) {
  const float mean = sum_of_squares(x, width) / static_cast<float>(width);
  const F32x16 factor = set1(1.0f / std::sqrt(mean + eps));
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) store(out + i, mul(mul(load(x + i), factor), load(w + i)));
  if (i < width) {
    const int n = static_cast<int>(width - i);
    store_tail(out + i, mul(mul(load_tail(x + i, n), factor), load_tail(w + i, n)), n);
  }
}

void add_row(const float* x, float* residual, int64_t size) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) store(residual + i, add(load(residual + i), load(x + i)));
  if (i < size) {
    const int n = static_cast<int>(size - i);
    store_tail(residual + i, add(load_tail(residual + i, n), load_tail(x + i, n)), n);
  }
}

// Calls f(first, last) on ranges of rows worth about kChunk elements each.
template <class F>
void over_rows(Pool& pool, int64_t rows, int64_t width, F f) {
  const int64_t each = kChunk / (width + 1) + 1;
  pool.run(ceil_div(rows, each), [&](int64_t chunk, int) {
    const int64_t first = chunk * each, last = first + each < rows ? first + each : rows;
    f(first, last);
  });
}

void norm(Pool& pool, const float* x, const float* w, float* out, int64_t rows, int64_t width, float eps) {
  over_rows(pool, rows, width, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) norm_row(x + r * width, w, out + r * width, width, eps);
  });
}

void add_norm(Pool& pool, const float* x, float* residual, const float* w, float* out, int64_t rows, int64_t width,
              float eps) {
  over_rows(pool, rows, width, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      add_row(x + r * width, residual + r * width, width);
      norm_row(residual + r * width, w, out + r * width, width, eps);
    }
  });
}

void add(Pool& pool, const float* x, float* residual, int64_t size) {
  pool.run(ceil_div(size, kChunk), [&](int64_t chunk, int) {
    const int64_t first = chunk * kChunk, left = size - first;
    add_row(x + first, residual + first, left < kChunk ? left : kChunk);
  });
}

void take(Pool& pool, const float* x, const int32_t* rows, float* out, int64_t count, int64_t width) {
  over_rows(pool, count, width, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      std::memcpy(out + r * width, x + rows[r] * width, sizeof(float) * static_cast<size_t>(width));
  });
}

// x * sigmoid(y) = x / (1 + e^-y); for very negative y the divisor is infinite and the result a zero, as it should be.
FW_INLINE F32x16 gated_by(F32x16 x, F32x16 y) { return div(x, add(set1(1.0f), exp(sub(zero(), y)))); }

FW_INLINE F32x16 silu(F32x16 x) { return gated_by(x, x); }

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
FW_INLINE F32x16 gelu_tanh(F32x16 x) {
  const F32x16 cubic = fma(mul(x, x), set1(0.044715f), set1(1.0f));
  return gated_by(x, mul(mul(set1(2.0f * 0.797884561f), x), cubic));
}

// 0.5 x erfc(-x / sqrt 2).  For z >= 0, erfc(z) = t e^(P(t) - z^2) with t = 1 / (1 + z/2) and a degree-9 fit P, within
// 1.2e-7 of the value (Numerical Recipes, 6.2); erfc(-z) = 2 - erfc(z).
FW_INLINE F32x16 gelu(F32x16 x) {
  constexpr float fit[10] = {-1.26551223f, 1.00002368f, 0.37409196f,  0.09678418f, -0.18628806f,
                             0.27886807f,  -1.13520398f, 1.48851587f, -0.82215223f, 0.17087277f};
  const F32x16 z = mul(abs(x), set1(0.707106781f));
  const F32x16 t = div(set1(1.0f), fma(z, set1(0.5f), set1(1.0f)));
  F32x16 p = set1(fit[9]);
  for (int i = 8; i >= 0; --i) p = fma(p, t, set1(fit[i]));
  const F32x16 tail = mul(t, exp(sub(p, mul(z, z))));  // erfc(|x| / sqrt 2)
  return mul(mul(set1(0.5f), x), select_gt(x, zero(), sub(set1(2.0f), tail), tail));
}

template <class F>
void gate_span(const float* gate, const float* up, float* out, int64_t size, F f) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) store(out + i, mul(f(load(gate + i)), load(up + i)));
  if (i < size) {
    const int n = static_cast<int>(size - i);
    store_tail(out + i, mul(f(load_tail(gate + i, n)), load_tail(up + i, n)), n);
  }
}

void act_span(const float* gate, const float* up, float* out, int64_t size, Act kind) {
  switch (kind) {
    case Act::silu: return gate_span(gate, up, out, size, [](F32x16 v) { return silu(v); });
    case Act::gelu: return gate_span(gate, up, out, size, [](F32x16 v) { return gelu(v); });
    case Act::gelu_tanh: return gate_span(gate, up, out, size, [](F32x16 v) { return gelu_tanh(v); });
  }
}

// Elements are independent, so a row may be cut anywhere.  An exp makes an element some 8 times dearer than a copy.
constexpr int64_t kActChunk = kChunk / 8;

void act(Pool& pool, const float* x, float* out, int64_t rows, int64_t inner, Act kind) {
  const int64_t spans = ceil_div(inner, kActChunk);
  pool.run(rows * spans, [&](int64_t chunk, int) {
    const int64_t row = chunk / spans, first = chunk % spans * kActChunk, left = inner - first;
    const float* gate = x + row * 2 * inner + first;
    act_span(gate, gate + inner, out + row * inner + first, left < kActChunk ? left : kActChunk, kind);
  });
}

}  // namespace

extern const ElementwiseKernels elementwise_kernels;
const ElementwiseKernels elementwise_kernels = {norm, add_norm, act, add, take};

}  // namespace flyweight::FW_ISA
