// The softmax of up to 16 query rows over a tile, with weights in bf16: maxima first, of all rows, then the weights.
// Included by attend_pairs.h.
//
// Invariant: a row's weights depend on its scores and on those before them only.  A maximum is the same in any order and
// never NaN, so that 16 of them may be found together; what a row does not see weighs nothing.
#pragma once

#include "attend_softmax.h"

namespace flyweight::FW_ISA {

// 2^x within 8e-5 of itself, for weights that are rounded to 8 bits; x <= 126, and below -124 it is 2^-124.  So scores may
// be up to 4e8, where a float's rounding is 32.
FW_INLINE F32x16 exp2_near(F32x16 x) {
  const F32x16 magic = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to whole numbers
  const F32x16 c = max(set1(-124.0f), x);  // NaN passes: it is the second operand
  const F32x16 whole = add(c, magic), f = sub(c, sub(whole, magic));
  F32x16 p = set1(0.0551716536f);
  p = fma(p, f, set1(0.242611140f));
  p = fma(p, f, set1(0.693260968f));
  p = fma(p, f, set1(0.999928057f));
  return as_f32(add(as_i32(p), shl<23>(as_i32(whole))));
}

// Lane i: the largest lane of v[i].  None is NaN.
FW_INLINE void hmax16(const F32x16* v, float* out) {
#if defined(FW_ISA_AVX512)
  __m512 eight[8], four[4];
  for (int i = 0; i < 8; ++i)  // halves of the lanes of v[i] and of v[i + 8], side by side
    eight[i] = _mm512_max_ps(_mm512_shuffle_f32x4(v[i].v, v[i + 8].v, 0x44),
                             _mm512_shuffle_f32x4(v[i].v, v[i + 8].v, 0xEE));
  for (int i = 0; i < 4; ++i)  // quarters: rows i, i + 8, i + 4, i + 12
    four[i] = _mm512_max_ps(_mm512_shuffle_f32x4(eight[i], eight[i + 4], 0x88),
                            _mm512_shuffle_f32x4(eight[i], eight[i + 4], 0xDD));
  const __m512 even = _mm512_max_ps(_mm512_unpacklo_ps(four[0], four[2]), _mm512_unpackhi_ps(four[0], four[2]));
  const __m512 odd = _mm512_max_ps(_mm512_unpacklo_ps(four[1], four[3]), _mm512_unpackhi_ps(four[1], four[3]));
  const __m512 all = _mm512_max_ps(_mm512_unpacklo_ps(even, odd), _mm512_unpackhi_ps(even, odd));
  _mm512_storeu_ps(out, _mm512_shuffle_f32x4(all, all, 0xD8));
#else
  for (int i = 0; i < 16; ++i) out[i] = hmax(v[i]);
#endif
}

// The positions of a tile that a row sees: [from, to).
struct Seen {
  int64_t from, to;

  bool all() const { return from == 0 && to == kTile; }
};

// p := what a row does not see becomes `other`.
template <int N>
FW_INLINE void hide(F32x16* p, Seen seen, F32x16 other) {
  const F32x16 least = set1(static_cast<float>(seen.from) - 0.5f), most = set1(static_cast<float>(seen.to) - 0.5f);
  each<N>([&](auto i) FW_LAMBDA {
    const F32x16 position = add(load(kCount), set1(static_cast<float>(16 * i)));
    p[i] = select_gt(position, least, select_gt(most, position, p[i], other), other);
  });
}

inline constexpr float kLeastWeight = 1e-30f;  // where the row's maximum, as it is kept, has 1

// The scales of a tile's positions where K and V are codes, K's times that of all scores; else none.  They are loaded once
// for many rows.
struct Unscaled {
  static constexpr bool kScaled = false;
  FW_INLINE Unscaled of_k() const { return {}; }
  FW_INLINE Unscaled of_v() const { return {}; }
};
struct HeldScales {
  static constexpr bool kScaled = true;
  F32x16 by[kVectors];
};
struct TileScales {
  static constexpr bool kScaled = true;
  alignas(64) float k[kTile];
  alignas(64) float v[kTile];

  FW_INLINE static HeldScales hold(const float* p) { return {{load(p), load(p + 16), load(p + 32), load(p + 48)}}; }
  FW_INLINE HeldScales of_k() const { return hold(k); }
  FW_INLINE HeldScales of_v() const { return hold(v); }
};

// Lane i: the largest of the scores i, i + 16, ... of the first 16 N.  Capped scores, and those of codes, are written
// back, scaled.
template <int N, bool Part, class Scales>
FW_INLINE F32x16 top_of(float* scores, const AttendArgs& a, Seen seen, const Scales& scales) {
  const F32x16 low = set1(-INFINITY);
  F32x16 p[N], top = low;
  each<N>([&](auto i) FW_LAMBDA {
    if constexpr (Scales::kScaled) {
      p[i] = mul(load(scores + 16 * i), scales.by[i]);
      store(scores + 16 * i, p[i]);
    } else {
      p[i] = load(scores + 16 * i);
    }
  });
  if (a.softcap > 0) {
    const F32x16 cap = set1(a.softcap), scale = set1(Scales::kScaled ? 1.0f : a.scale);
    each<N>([&](auto i) FW_LAMBDA { store(scores + 16 * i, p[i] = mul(cap, tanh(div(mul(p[i], scale), cap)))); });
  }
  if constexpr (Part) hide<N>(p, seen, low);
  each<N>([&](auto i) FW_LAMBDA { top = max(p[i], top); });
  return top;
}

// Scores -> weights 2^(score * scale - top), 64 in position order; returns what they sum up to, in pairs.  Of codes, the
// weights take V's scales before they are rounded, and the sum is of the weights without them, not rounded.
template <int N, bool Part, class Scales>
FW_INLINE F32x16 weigh(const float* scores, float* to, float scale, float top, Seen seen, const Scales& scales) {
  F32x16 p[kVectors] = {zero(), zero(), zero(), zero()}, sum = zero();
  each<N>([&](auto i) FW_LAMBDA { p[i] = exp2_near(fma(load(scores + 16 * i), set1(scale), set1(-top))); });
  if constexpr (Part) hide<N>(p, seen, zero());
  if constexpr (Scales::kScaled) {
    each<N>([&](auto i) FW_LAMBDA {
      sum = add(sum, p[i]);
      // What is hidden weighs nothing whatever its scale; nor do tiny weights, so that no product is subnormal and slow.
      p[i] = select_gt(p[i], set1(kLeastWeight), mul(p[i], scales.by[i]), zero());
    });
    each<kVectors / 2>([&](auto i) FW_LAMBDA { bstore(to + 16 * i, pack_bf16(p[2 * i], p[2 * i + 1])); });
    return sum;
  }
  const B8x64 ones = as_bytes(iset1(0x3F803F80));
  each<kVectors / 2>([&](auto i) FW_LAMBDA {
    const B8x64 weights = pack_bf16(p[2 * i], p[2 * i + 1]);
    bstore(to + 16 * i, weights);
    sum = dot_bf16(sum, weights, ones);
  });
  return sum;
}

// f<N, Part>() for the vectors that hold what a row sees.
template <class F>
FW_INLINE auto with_seen(Seen seen, F&& f) {
  using std::integral_constant;
  if (seen.all()) return f(integral_constant<int, 4>{}, std::false_type{});
  if (seen.to > 48) return f(integral_constant<int, 4>{}, std::true_type{});
  if (seen.to > 32) return f(integral_constant<int, 3>{}, std::true_type{});
  if (seen.to > 16) return f(integral_constant<int, 2>{}, std::true_type{});
  return f(integral_constant<int, 1>{}, std::true_type{});
}

}  // namespace flyweight::FW_ISA
