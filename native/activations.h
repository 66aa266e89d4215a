// Activation functions on logical vectors; every target gives the same bits.  Included by elementwise.cpp only.
#pragma once

#include "simd.h"

namespace flyweight::FW_ISA {

// x * sigmoid(y) = x / (1 + e^-y); for very negative y the divisor is infinite and the result a zero, as it should be.
FW_INLINE F32x16 gated_by(F32x16 x, F32x16 y) { return div(x, add(set1(1.0f), exp(sub(zero(), y)))); }

FW_INLINE F32x16 silu(F32x16 x) { return gated_by(x, x); }

FW_INLINE F32x16 relu(F32x16 x) { return max(zero(), x); }  // NaN is the second operand, and stays

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

// gpt-oss: the gate at most 7, up within [-7, 7], then gate sigmoid(1.702 gate) (up + 1).
FW_INLINE F32x16 swiglu_clamped(F32x16 gate, F32x16 up) {
  const F32x16 most = set1(7.0f), g = min(most, gate), u = min(most, max(set1(-7.0f), up));
  return mul(gated_by(g, mul(set1(1.702f), g)), add(u, set1(1.0f)));
}

}  // namespace flyweight::FW_ISA
