// Super-blocks of 256 for encode_blocks.cpp: whole-number scales (and minima) of groups below float16 ones.
//
// The scales that fit each group alone are themselves fitted, by the same search, with the weight of their group.  Then,
// turn by turn: every group takes the best of the neighbouring whole numbers by its true error, and the float16 scales
// are solved anew for the codes that came out.  The best turn is kept, by the error of the super-block.
#pragma once

#include "encode_search.h"

namespace flyweight::FW_ISA {
namespace {

constexpr int kSuper = 256;
constexpr int kTurns = 3;
constexpr Reach kScaleReach{-0.6f, 0.2f, 7, 1};  // of the scales' own fit

// What a search leaves: float16 scales, whole numbers by group, each a value a lane.
struct Super {
  F32x16 scale = zero(), least = zero();       // of the super-block
  F32x16 scales[16], mins[16], error = set1(INFINITY);
};

// Keeps `turn` in the lanes where it is better.
FW_INLINE void keep_better(const Super& turn, int groups, bool with_minima, Super& best) {
  const F32x16 now = turn.error, before = best.error;
  for (int g = 0; g < groups; ++g) {
    best.scales[g] = select_gt(before, now, turn.scales[g], best.scales[g]);
    if (with_minima) best.mins[g] = select_gt(before, now, turn.mins[g], best.mins[g]);
  }
  best.scale = select_gt(before, now, turn.scale, best.scale);
  best.least = select_gt(before, now, turn.least, best.least);
  best.error = select_gt(before, now, now, before);
}

// One group under one whole-number scale.
struct Signed {
  F32x16 number = zero(), error = set1(INFINITY), along = zero(), norm = zero();
};

template <class Grid>
FW_INLINE void try_number(const float* x, const float* w, int n, const Grid& grid, F32x16 number, F32x16 scale,
                          Signed& best) {
  const F32x16 d = mul(scale, number), inverse = invert(d), minus = negate(d);
  Signed now;
  now.error = zero();
  for (int k = 0; k < n; ++k) {
    const F32x16 q = grid.nearest(mul(at(x, k), inverse)), wq = mul(at(w, k), q), off = fma(minus, q, at(x, k));
    now.error = fma(mul(at(w, k), off), off, now.error);
    now.along = fma(wq, at(x, k), now.along), now.norm = fma(wq, q, now.norm);
  }
  best.number = select_gt(best.error, now.error, number, best.number);
  best.along = select_gt(best.error, now.error, now.along, best.along);
  best.norm = select_gt(best.error, now.error, now.norm, best.norm);
  best.error = select_gt(best.error, now.error, now.error, best.error);
}

// Q3_K, Q6_K, IQ4_XS: groups of `n`, codes of `grid`, scales in `numbers`.
template <class Grid>
FW_INLINE Super fit_signed(const float* x, const float* w, int n, const Grid& grid, const Whole& numbers, Reach reach) {
  const int groups = kSuper / n;
  alignas(64) float wanted[16 * kLanes], weights[16 * kLanes];
  for (int g = 0; g < groups; ++g) {
    const Scaled fit = fit_scale(x + g * n * kLanes, w + g * n * kLanes, n, grid, reach);
    store(wanted + g * kLanes, fit.scale), store(weights + g * kLanes, fit.norm);
  }
  Super best;
  for (int g = 0; g < groups; ++g) best.scales[g] = zero();
  F32x16 scale = fit_scale(wanted, weights, groups, numbers, kScaleReach).scale;
  for (int turn = 0; turn < kTurns; ++turn) {
    Super now;
    now.scale = round_half(scale), now.error = zero();
    F32x16 along = zero(), norm = zero();
    const F32x16 inverse = invert(now.scale);
    for (int g = 0; g < groups; ++g) {
      const F32x16 middle = rint(mul(at(wanted, g), inverse));
      Signed group;
      for (float step = -1.0f; step <= 1.0f; step += 1.0f)
        try_number(x + g * n * kLanes, w + g * n * kLanes, n, grid, numbers.nearest(add(middle, set1(step))), now.scale,
                   group);
      now.scales[g] = group.number, now.error = add(now.error, group.error);
      along = fma(group.number, group.along, along);
      norm = fma(mul(group.number, group.number), group.norm, norm);
      store(wanted + g * kLanes, mul(group.along, invert(group.norm)));
    }
    keep_better(now, groups, false, best);
    scale = mul(along, invert(norm));
  }
  return best;
}

// One group under one whole-number scale and minimum.
struct Lined {
  F32x16 number = zero(), minimum = zero(), error = set1(INFINITY);
  Sums sums;
};

FW_INLINE Sums sum_codes(const float* x, const float* w, int n, const Whole& grid, F32x16 d, F32x16 m, F32x16& error) {
  const F32x16 inverse = invert(d), minus = negate(d);
  Sums s;
  error = zero();
  for (int k = 0; k < n; ++k) {
    const F32x16 raised = add(at(x, k), m), q = grid.nearest(mul(raised, inverse)), wq = mul(at(w, k), q);
    const F32x16 off = fma(minus, q, raised);
    error = fma(mul(at(w, k), off), off, error);
    s.q = add(s.q, wq), s.qq = fma(wq, q, s.qq), s.xq = fma(wq, at(x, k), s.xq);
  }
  return s;
}

FW_INLINE void keep_line(const Lined& now, Lined& best) {
  const F32x16 before = best.error;
  best.number = select_gt(before, now.error, now.number, best.number);
  best.minimum = select_gt(before, now.error, now.minimum, best.minimum);
  best.sums.q = select_gt(before, now.error, now.sums.q, best.sums.q);
  best.sums.qq = select_gt(before, now.error, now.sums.qq, best.sums.qq);
  best.sums.xq = select_gt(before, now.error, now.sums.xq, best.sums.xq);
  best.error = select_gt(before, now.error, now.error, before);
}

// Tries a scale with the minimum there is, then with the one that fits the codes this gives.
FW_INLINE void try_pair(const float* x, const float* w, int n, const Whole& grid, const Whole& numbers, const Super& now,
                        F32x16 number, F32x16 minimum, const Mass& mass, Lined& best) {
  const F32x16 d = mul(now.scale, number);
  Lined line;
  line.number = number, line.minimum = minimum;
  line.sums = sum_codes(x, w, n, grid, d, mul(now.least, minimum), line.error);
  keep_line(line, best);
  const F32x16 m = mul(sub(mul(d, line.sums.q), mass.wx), invert(mass.w));
  line.minimum = numbers.nearest(rint(mul(m, invert(now.least))));
  line.sums = sum_codes(x, w, n, grid, d, mul(now.least, line.minimum), line.error);
  keep_line(line, best);
}

// The float16 scale and minimum that fit a super-block's codes: two unknowns.
struct Normal {
  F32x16 a = zero(), b = zero(), c = zero(), u = zero(), v = zero();
  FW_INLINE void count(const Lined& g, const Mass& mass) {
    a = fma(mul(g.number, g.number), g.sums.qq, a);
    b = fma(mul(g.number, g.minimum), g.sums.q, b);
    c = fma(mul(g.minimum, g.minimum), mass.w, c);
    u = fma(g.number, g.sums.xq, u);
    v = fma(g.minimum, mass.wx, v);
  }
  FW_INLINE void solve(F32x16& scale, F32x16& least) const {
    const F32x16 det = sub(mul(a, c), mul(b, b)), over = invert(det);
    const F32x16 s = mul(over, sub(mul(u, c), mul(b, v))), m = mul(over, sub(mul(b, u), mul(a, v)));
    const F32x16 enough = mul(set1(1e-5f), mul(a, c)), good = select_gt(det, enough, min(s, m), set1(-1.0f));
    const F32x16 alone = mul(u, invert(a));  // no minima, or not to be distinguished from the scales
    const F32x16 plain = select_gt(c, zero(), scale, alone);
    scale = select_gt(good, zero(), s, plain), least = select_gt(good, zero(), m, least);
  }
};

// Q2_K, Q4_K, Q5_K: groups of `n`, codes from 0 to `high`, scales and minima from 0 to `top`.
FW_INLINE Super fit_lines(const float* x, const float* w, int n, float high, float top, Reach reach) {
  const int groups = kSuper / n;
  const Whole grid{0.0f, high}, numbers{0.0f, top};
  alignas(64) float wanted[16 * kLanes], weights[16 * kLanes], lows[16 * kLanes], masses[16 * kLanes];
  Mass mass[16];
  for (int g = 0; g < groups; ++g) {
    const Line line = fit_line<true>(x + g * n * kLanes, w + g * n * kLanes, n, high, reach, mass[g]);
    store(wanted + g * kLanes, line.scale), store(weights + g * kLanes, line.norm);
    store(lows + g * kLanes, negate(line.base)), store(masses + g * kLanes, mass[g].w);
  }
  Super best;
  for (int g = 0; g < groups; ++g) best.scales[g] = best.mins[g] = zero();
  F32x16 scale = fit_scale(wanted, weights, groups, numbers, kScaleReach).scale;
  F32x16 least = fit_scale(lows, masses, groups, numbers, kScaleReach).scale;
  for (int turn = 0; turn < kTurns; ++turn) {
    Super now;
    now.scale = round_half(scale), now.least = round_half(least), now.error = zero();
    const F32x16 inverse = invert(now.scale), under = invert(now.least);
    Normal normal;
    for (int g = 0; g < groups; ++g) {
      const F32x16 middle = rint(mul(at(wanted, g), inverse)), low = numbers.nearest(mul(at(lows, g), under));
      Lined group;
      for (float step = -1.0f; step <= 1.0f; step += 1.0f)
        try_pair(x + g * n * kLanes, w + g * n * kLanes, n, grid, numbers, now,
                 numbers.nearest(add(middle, set1(step))), low, mass[g], group);
      now.scales[g] = group.number, now.mins[g] = group.minimum, now.error = add(now.error, group.error);
      normal.count(group, mass[g]);
      store(wanted + g * kLanes, mul(now.scale, group.number)), store(lows + g * kLanes, mul(now.least, group.minimum));
    }
    keep_better(now, groups, true, best);
    scale = now.scale, least = now.least;
    normal.solve(scale, least);
  }
  return best;
}

}  // namespace
}  // namespace flyweight::FW_ISA
