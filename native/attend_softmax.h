// The softmax of one query row: a tile's scores become weights, splits become one, and the row's output is written.
// Included by attention.cpp.
//
// Invariant: one tile after the other, one split after the other, each step the same operations for every caller.
#pragma once

#include <cmath>

#include "kernels_attention.h"
#include "quotients.h"
#include "simd.h"

namespace flyweight::FW_ISA {

inline constexpr int kVectors = static_cast<int>(kTile / 16);
alignas(64) inline constexpr float kCount[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Products q.k of one row -> exp(score - new maximum), 0 outside positions [from, to) of the tile; returns the old
// maximum minus the new one.
inline float softmax_row(float* scores, const AttendArgs& a, int64_t from, int64_t to, float* record) {
  const F32x16 low = set1(-INFINITY), scale = set1(a.scale), limit = set1(static_cast<float>(to));
  F32x16 p[kVectors], top = low;
  for (int i = 0; i < kVectors; ++i) p[i] = mul(load(scores + 16 * i), scale);
  if (a.softcap > 0) {
    const F32x16 cap = set1(a.softcap);
    for (int i = 0; i < kVectors; ++i) p[i] = mul(cap, tanh(div(p[i], cap)));
  }
  for (int i = 0; i < kVectors; ++i) {
    const F32x16 position = add(load(kCount), set1(static_cast<float>(16 * i)));
    p[i] = select_gt(limit, position, p[i], low);
    if (from > 0) p[i] = select_gt(position, set1(static_cast<float>(from - 1)), p[i], low);
    top = max(p[i], top);
  }
  const float before = record[0], here = hmax(top), now = here > before ? here : before;
  for (int i = 0; i < kVectors; ++i) store(scores + 16 * i, exp(sub(p[i], set1(now))));
  record[0] = now;
  return before - now;
}

inline void clear(float* record, int64_t floats) {
  record[0] = -INFINITY;
  for (int64_t i = 16; i < floats; i += 16) store(record + i, zero());
}

// into := into and part as one softmax.  The order of calls is the order of splits.
inline void fold(float* into, const float* part, int64_t floats) {
  const float now = part[0] > into[0] ? part[0] : into[0];
  const F32x16 a = exp(set1(into[0] - now)), b = exp(set1(part[0] - now));
  into[0] = now;
  for (int64_t i = 16; i < floats; i += 16) store(into + i, fma(load(into + i), a, mul(load(part + i), b)));
}

// The sink, a score without a value, joins the softmax last; at -infinity it changes no bit: times one, plus zero.
inline void finish(float* out, const float* record, int64_t v_dim, float sink) {
  const float top = record[0], most = sink > top ? sink : top;
  const bool none = sink == -INFINITY && std::abs(top) < INFINITY;
  const F32x16 kept = none ? set1(1.0f) : exp(set1(top - most));
  const F32x16 share = none ? zero() : exp(set1(sink > top ? 0.0f : sink - top));
  const F32x16 total = fma(set1(hsum(load(record + 16))), kept, share);
  const auto weighted = [&](int64_t i) { return mul(load(record + 32 + i), kept); };
  Quotients by(total);
  int64_t i = 0;
  for (; i + 16 <= v_dim; i += 16) store(out + i, by.of(weighted(i)));
  if (i < v_dim) store_tail(out + i, div(weighted(i), total), static_cast<int>(v_dim - i));
  if (by.good()) return;
  for (i = 0; i + 16 <= v_dim; i += 16) store(out + i, div(weighted(i), total));
}

}  // namespace flyweight::FW_ISA
