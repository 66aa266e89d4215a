// Scales and minima of groups by weighted least squares, for encode_blocks.cpp: sixteen groups at a time, one a lane.
//
// A search tries inverse scales around the one that maps the group's extreme to the last code, rounds to codes, and
// solves for the scale (and minimum) that fits those codes best; then it rounds again with what it found.  Each lane
// depends on its own group only, and sums run along k: the bits are the same on every target, however work is cut.
#pragma once

#include "simd.h"

namespace flyweight::FW_ISA {
namespace {

constexpr int kLanes = 16;
constexpr float kTiny = 1e-30f;  // what is smaller counts as zero

FW_INLINE F32x16 at(const float* tile, int k) { return load(tile + k * kLanes); }
FW_INLINE F32x16 invert(F32x16 v) { return select_gt(abs(v), set1(kTiny), div(set1(1.0f), v), zero()); }
FW_INLINE F32x16 negate(F32x16 v) { return sub(zero(), v); }

FW_INLINE F32x16 round_half(F32x16 v) {
  uint16_t bits[kLanes];
  store_f16(bits, v);
  return load_f16(bits);
}

// Codes that are whole numbers from `low` to `high`.
struct Whole {
  float low, high;
  FW_INLINE F32x16 nearest(F32x16 v) const { return min(set1(high), max(set1(low), rint(v))); }
  FW_INLINE I32x16 code(F32x16 v) const { return to_i32(sub(nearest(v), set1(low))); }
};

// Codes that represent the values of IQ4_NL's table.
struct NonLinear {
  static constexpr float kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  float low = -127, high = 113;
  static constexpr float edge(int i) { return 0.5f * (kValues[i] + kValues[i + 1]); }
  FW_INLINE F32x16 nearest(F32x16 v) const {
    F32x16 out = set1(kValues[0]);
    each<15>([&](auto i) FW_LAMBDA { out = select_gt(v, set1(edge(i)), set1(kValues[i + 1]), out); });
    return out;
  }
  FW_INLINE I32x16 code(F32x16 v) const {
    F32x16 out = zero();
    each<15>([&](auto i) FW_LAMBDA { out = select_gt(v, set1(edge(i)), set1(static_cast<float>(i + 1)), out); });
    return to_i32(out);
  }
};

// How far from the plain inverse scale a search looks, in codes, and how often it rounds again.
struct Reach {
  float from, step;
  int count, again;
};

// x is near scale * code; `norm` is the sum of w code^2, `gain` what the fit takes off the squared error.
struct Scaled {
  F32x16 scale = zero(), norm = zero(), gain = zero();
};

template <class Grid>
FW_INLINE void try_scale(const float* x, const float* w, int n, const Grid& grid, F32x16 inverse, Scaled& best) {
  F32x16 along = zero(), norm = zero();
  for (int k = 0; k < n; ++k) {
    const F32x16 q = grid.nearest(mul(at(x, k), inverse)), wq = mul(at(w, k), q);
    along = fma(wq, at(x, k), along), norm = fma(wq, q, norm);
  }
  const F32x16 scale = mul(along, invert(norm)), gain = mul(along, scale);
  best.scale = select_gt(gain, best.gain, scale, best.scale);
  best.norm = select_gt(gain, best.gain, norm, best.norm);
  best.gain = max(gain, best.gain);
}

// The scale of n values; of either sign where codes reach below zero.
template <class Grid>
FW_INLINE Scaled fit_scale(const float* x, const float* w, int n, const Grid& grid, Reach reach) {
  F32x16 peak = zero(), size = zero();
  for (int k = 0; k < n; ++k) {
    const F32x16 a = abs(at(x, k));
    peak = select_gt(a, size, at(x, k), peak), size = max(a, size);
  }
  const F32x16 over = invert(peak);
  Scaled best;
  for (int i = 0; i < reach.count; ++i) {
    const float offset = reach.from + reach.step * static_cast<float>(i);
    try_scale(x, w, n, grid, mul(set1(grid.high + offset), over), best);
    if (grid.low < 0.0f) try_scale(x, w, n, grid, mul(set1(grid.low - offset), over), best);
  }
  for (int i = 0; i < reach.again; ++i) try_scale(x, w, n, grid, invert(best.scale), best);
  return best;
}

// x is near scale * code + base.
struct Line {
  F32x16 scale = zero(), base = zero(), norm = zero(), gain = set1(-1.0f);
};

// Sums that every line through the same values needs.
struct Mass {
  F32x16 w = zero(), wx = zero();
};

struct Sums {
  F32x16 q = zero(), qq = zero(), xq = zero();  // all times w
};

// The line of least squares for given codes; with `Below`, the best one whose base is not above zero.
template <bool Below>
FW_INLINE Line solve_line(const Mass& mass, const Sums& s) {
  Line line;
  const F32x16 det = sub(mul(mass.w, s.qq), mul(s.q, s.q));
  const F32x16 enough = mul(set1(1e-6f), mul(mass.w, s.qq));  // less where all codes are the same
  const F32x16 over = select_gt(det, enough, div(set1(1.0f), det), zero());
  line.scale = mul(over, sub(mul(mass.w, s.xq), mul(mass.wx, s.q)));
  line.base = mul(over, sub(mul(s.qq, mass.wx), mul(s.q, s.xq)));
  if constexpr (Below) {
    const F32x16 alone = mul(s.xq, invert(s.qq));
    line.scale = select_gt(line.base, zero(), alone, select_gt(det, enough, line.scale, alone));
    line.base = min(line.base, zero());
  }
  line.norm = s.qq;
  line.gain = add(mul(line.scale, s.xq), mul(line.base, mass.wx));
  line.gain = select_gt(line.scale, zero(), line.gain, set1(-1.0f));
  return line;
}

template <bool Below>
FW_INLINE void try_line(const float* x, const float* w, int n, float high, F32x16 base, F32x16 inverse, const Mass& mass,
                        Line& best) {
  const Whole grid{0.0f, high};
  Sums s;
  for (int k = 0; k < n; ++k) {
    const F32x16 q = grid.nearest(mul(sub(at(x, k), base), inverse)), wq = mul(at(w, k), q);
    s.q = add(s.q, wq), s.qq = fma(wq, q, s.qq), s.xq = fma(wq, at(x, k), s.xq);
  }
  const Line line = solve_line<Below>(mass, s);
  best.scale = select_gt(line.gain, best.gain, line.scale, best.scale);
  best.base = select_gt(line.gain, best.gain, line.base, best.base);
  best.norm = select_gt(line.gain, best.gain, line.norm, best.norm);
  best.gain = max(line.gain, best.gain);
}

// Scale, not below zero, and base of n values with codes from 0 to `high`.
template <bool Below>
FW_INLINE Line fit_line(const float* x, const float* w, int n, float high, Reach reach, Mass& mass) {
  F32x16 least = at(x, 0), most = at(x, 0);
  mass = {};
  for (int k = 0; k < n; ++k) {
    least = min(at(x, k), least), most = max(at(x, k), most);
    mass.w = add(mass.w, at(w, k)), mass.wx = fma(at(w, k), at(x, k), mass.wx);
  }
  if constexpr (Below) least = min(least, zero());
  const F32x16 over = invert(sub(most, least));
  Line best;
  for (int i = 0; i < reach.count; ++i) {
    const float levels = high + reach.from + reach.step * static_cast<float>(i);
    try_line<Below>(x, w, n, high, least, mul(set1(levels), over), mass, best);
  }
  for (int i = 0; i < reach.again; ++i)
    try_line<Below>(x, w, n, high, best.base, invert(best.scale), mass, best);
  // Equal values: no scale, and the base is their mean.
  const F32x16 mean = mul(mass.wx, invert(mass.w)), flat = Below ? min(mean, zero()) : mean;
  best.base = select_gt(best.gain, set1(-0.5f), best.base, flat);
  return best;
}

}  // namespace
}  // namespace flyweight::FW_ISA
