// Norms, activations, sums, factors and row copies: one pass over memory each, shared out over the pool.
//
// The only reductions are the norms' sums: four vectors of 16 lanes, element i always into the same lane of the same
// vector, then a fixed tree.  So the bits depend neither on the number of rows or threads nor on the target.
#include "activations.h"
#include "kernels.h"
#include "simd.h"

namespace flyweight::FW_ISA {
namespace {

// A chunk should take a few microseconds, several hand-offs' worth: 8,192 floats are 32 KiB, 2-4 us from cache.
constexpr int64_t kChunk = 8192;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The lanes of step(x[i], sum) over a row; step(0, sum) must be sum.
template <class F>
FW_INLINE float fold(const float* x, int64_t width, F step) {
  F32x16 s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();  // four chains hide the fma's latency of 4 cycles
  int64_t i = 0;
  for (; i + 64 <= width; i += 64) {
    s0 = step(load(x + i), s0);
    s1 = step(load(x + i + 16), s1);
    s2 = step(load(x + i + 32), s2);
    s3 = step(load(x + i + 48), s3);
  }
  for (; i < width; i += 16)
    s0 = step(i + 16 <= width ? load(x + i) : load_tail(x + i, static_cast<int>(width - i)), s0);
  return hsum(add(add(s0, s1), add(s2, s3)));
}

float sum(const float* x, int64_t width) {
  return fold(x, width, [](F32x16 v, F32x16 s) { return add(v, s); });
}
float sum_of_squares(const float* x, int64_t width) {
  return fold(x, width, [](F32x16 v, F32x16 s) { return fma(v, v, s); });
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

// The centred row waits in `out`: its squares must not be taken of x, where a large mean would drown them.
void layer_norm_row(const float* x, const float* w, const float* b, float* out, int64_t width, float eps) {
  const F32x16 mean = set1(sum(x, width) / static_cast<float>(width));
  for (int64_t i = 0; i < width; i += 16) {
    const int n = width - i < 16 ? static_cast<int>(width - i) : 16;
    store_tail(out + i, sub(load_tail(x + i, n), mean), n);
  }
  const float variance = sum_of_squares(out, width) / static_cast<float>(width);
  const F32x16 factor = set1(1.0f / std::sqrt(variance + eps));
  for (int64_t i = 0; i < width; i += 16) {
    const int n = width - i < 16 ? static_cast<int>(width - i) : 16;
    const F32x16 normed = mul(load_tail(out + i, n), factor), weight = load_tail(w + i, n);
    store_tail(out + i, b ? fma(normed, weight, load_tail(b + i, n)) : mul(normed, weight), n);
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

// Calls f(first, count) on spans of a flat array, `each` elements at a time.
template <class F>
void over_spans(Pool& pool, int64_t size, int64_t each, F f) {
  pool.run(ceil_div(size, each), [&](int64_t chunk, int) {
    const int64_t first = chunk * each, left = size - first;
    f(first, left < each ? left : each);
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

void layer_norm(Pool& pool, const float* x, const float* w, const float* b, float* out, int64_t rows, int64_t width,
                float eps) {
  over_rows(pool, rows, width, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) layer_norm_row(x + r * width, w, b, out + r * width, width, eps);
  });
}

void add(Pool& pool, const float* x, float* residual, int64_t size) {
  over_spans(pool, size, kChunk, [&](int64_t first, int64_t count) { add_row(x + first, residual + first, count); });
}

void take(Pool& pool, const float* x, const int32_t* rows, float* out, int64_t count, int64_t width) {
  over_rows(pool, count, width, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      std::memcpy(out + r * width, x + rows[r] * width, sizeof(float) * static_cast<size_t>(width));
  });
}

// out[i] = f(x[i]); out may be x.
template <class F>
void map_span(const float* x, float* out, int64_t size, F f) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) store(out + i, f(load(x + i)));
  if (i < size) {
    const int n = static_cast<int>(size - i);
    store_tail(out + i, f(load_tail(x + i, n)), n);
  }
}

// out[i] = f(gate[i], up[i]).
template <class F>
void gate_span(const float* gate, const float* up, float* out, int64_t size, F f) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) store(out + i, f(load(gate + i), load(up + i)));
  if (i < size) {
    const int n = static_cast<int>(size - i);
    store_tail(out + i, f(load_tail(gate + i, n), load_tail(up + i, n)), n);
  }
}

using Vector = F32x16;

void act_row(const float* gate, const float* up, float* out, int64_t size, GatedAct kind) {
  switch (kind) {
    case GatedAct::silu: return gate_span(gate, up, out, size, [](Vector g, Vector u) { return mul(silu(g), u); });
    case GatedAct::gelu: return gate_span(gate, up, out, size, [](Vector g, Vector u) { return mul(gelu(g), u); });
    case GatedAct::gelu_tanh:
      return gate_span(gate, up, out, size, [](Vector g, Vector u) { return mul(gelu_tanh(g), u); });
    case GatedAct::swiglu_clamped:
      return gate_span(gate, up, out, size, [](Vector g, Vector u) { return swiglu_clamped(g, u); });
  }
}

void activate_span(const float* x, float* out, int64_t size, PlainAct kind) {
  switch (kind) {
    case PlainAct::silu: return map_span(x, out, size, [](Vector v) { return silu(v); });
    case PlainAct::gelu: return map_span(x, out, size, [](Vector v) { return gelu(v); });
    case PlainAct::gelu_tanh: return map_span(x, out, size, [](Vector v) { return gelu_tanh(v); });
    case PlainAct::relu: return map_span(x, out, size, [](Vector v) { return relu(v); });
  }
}

// Elements are independent, so a row may be cut anywhere.  With its exp an element takes 0.5 ns: shared out in smaller
// pieces, a row of 8,192 is no quicker on two threads than on one.
constexpr int64_t kActChunk = kChunk / 2;

void act(Pool& pool, const float* x, float* out, int64_t rows, int64_t inner, GatedAct kind) {
  const int64_t spans = ceil_div(inner, kActChunk);
  pool.run(rows * spans, [&](int64_t chunk, int) {
    const int64_t row = chunk / spans, first = chunk % spans * kActChunk, left = inner - first;
    const float* gate = x + row * 2 * inner + first;
    act_row(gate, gate + inner, out + row * inner + first, left < kActChunk ? left : kActChunk, kind);
  });
}

void activate(Pool& pool, const float* x, float* out, int64_t size, PlainAct kind) {
  over_spans(pool, size, kActChunk,
             [&](int64_t first, int64_t count) { activate_span(x + first, out + first, count, kind); });
}

void scale(Pool& pool, float* x, int64_t size, float by) {
  const F32x16 factor = set1(by);
  over_spans(pool, size, kChunk, [&](int64_t first, int64_t count) {
    map_span(x + first, x + first, count, [&](F32x16 v) { return mul(v, factor); });
  });
}

void softcap(Pool& pool, float* x, int64_t size, float cap) {
  const F32x16 c = set1(cap);
  over_spans(pool, size, kActChunk, [&](int64_t first, int64_t count) {
    map_span(x + first, x + first, count, [&](F32x16 v) { return mul(c, tanh(div(v, c))); });
  });
}

void gate(Pool& pool, float* x, const float* logits, int64_t rows, int64_t width) {
  over_rows(pool, rows, width, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const F32x16 factor = gated_by(set1(1.0f), set1(logits[r]));
      map_span(x + r * width, x + r * width, width, [&](F32x16 v) { return mul(v, factor); });
    }
  });
}

}  // namespace

extern const ElementwiseKernels elementwise_kernels;
const ElementwiseKernels elementwise_kernels = {norm, add_norm, layer_norm, act,     act_row, activate,
                                                add,  take,     scale,      softcap, gate};

}  // namespace flyweight::FW_ISA
