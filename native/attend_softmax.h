// The softmax of one query row: a tile's scores become weights, splits become one, and the row's output is written.
// Included by attention.cpp.
//
// Invariant: one tile after the other, one split after the other, each step the same operations whoever asks.
#pragma once

#include <cmath>

#include "kernels_attention.h"
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

// e^x within 3e-6 of itself, for weights that are rounded to 8 bits; x <= 0, and below -86 it is e^-86.
FW_INLINE F32x16 exp_near(F32x16 x) {
  const F32x16 log2e = set1(1.44269504f), magic = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to whole numbers
  const F32x16 c = max(set1(-86.0f), x), whole = fma(c, log2e, magic);  // NaN passes: it is the second operand
  const F32x16 f = fma(c, log2e, sub(magic, whole));
  F32x16 p = set1(0.009570101276f);
  p = fma(p, f, set1(0.05591785908f));
  p = fma(p, f, set1(0.2402474433f));
  p = fma(p, f, set1(0.6931217909f));
  p = fma(p, f, set1(0.9999992847f));
  return as_f32(add(as_i32(p), shl<23>(as_i32(whole))));
}

// As softmax_row, but the weights are bf16, in place of the scores: 64 of them in position order.
inline float softmax_pairs(float* scores, const AttendArgs& a, int64_t from, int64_t to, float* record) {
  const F32x16 low = set1(-INFINITY), scale = set1(a.scale);
  F32x16 p[kVectors], position[kVectors];
  for (int i = 0; i < kVectors; ++i) p[i] = mul(load(scores + 16 * i), scale);
  if (a.softcap > 0) {
    const F32x16 cap = set1(a.softcap);
    for (int i = 0; i < kVectors; ++i) p[i] = mul(cap, tanh(div(p[i], cap)));
  }
  const bool part = from > 0 || to < kTile;
  const F32x16 least = set1(static_cast<float>(from) - 0.5f), most = set1(static_cast<float>(to) - 0.5f);
  const auto mask = [&](F32x16 other) {
    for (int i = 0; i < kVectors; ++i) {
      position[i] = add(load(kCount), set1(static_cast<float>(16 * i)));
      p[i] = select_gt(position[i], least, select_gt(most, position[i], p[i], other), other);
    }
  };
  if (part) mask(low);
  F32x16 top = low;
  for (int i = 0; i < kVectors; ++i) top = max(p[i], top);
  const float before = record[0], here = hmax(top), now = here > before ? here : before;
  for (int i = 0; i < kVectors; ++i) p[i] = exp_near(sub(p[i], set1(now)));
  if (part) mask(zero());
  for (int i = 0; i < kVectors; i += 2) bstore(scores + 8 * i, pack_bf16(p[i], p[i + 1]));
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

// The sink, a score without a value, joins the softmax last; at -infinity it changes no bit.
inline void finish(float* out, const float* record, int64_t v_dim, float sink) {
  const float top = record[0], most = sink > top ? sink : top;
  const F32x16 kept = exp(set1(top - most)), share = exp(set1(sink > top ? 0.0f : sink - top));
  const F32x16 total = fma(set1(hsum(load(record + 16))), kept, share);
  for (int64_t i = 0; i < v_dim; i += 16) {
    const int n = static_cast<int>(v_dim - i < 16 ? v_dim - i : 16);
    store_tail(out + i, div(mul(load(record + 32 + i), kept), total), n);
  }
}

}  // namespace flyweight::FW_ISA
