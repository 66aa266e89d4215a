// e^x in float, for weights that are drawn by.  Included by sample.cpp only.
#pragma once

#include <bit>

#include "simd.h"

namespace flyweight::FW_ISA {

// For x <= 0, within 3 ulp (of NaN anything; below -87 e^-87, which is nothing next to a sum that holds e^0).
// Plain multiplications and additions, each rounded, so that compilers vectorise it and every target, and NumPy
// (ops/reference_sample.py), gives the same bits: n ln2 is exact in ln2's first 10 bits, adding 1.5 * 2^23 rounds to an
// integer whose low bits then go to the exponent.
FW_INLINE float exp32(float x) {
  constexpr float shift = 12582912.0f;
  constexpr float inverse_factorial[8] = {1.0f,         1.0f,          1.0f / 2.0f,   1.0f / 6.0f,
                                          1.0f / 24.0f, 1.0f / 120.0f, 1.0f / 720.0f, 1.0f / 5040.0f};
  const float c = x < -87.0f ? -87.0f : x;
  const float t = c * 1.44269504f + shift;
  const float n = t - shift;
  const float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;  // |r| <= ln2 / 2
  float p = inverse_factorial[7];  // the next term is below 6e-9
  for (int i = 6; i >= 0; --i) p = p * r + inverse_factorial[i];
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(t) << 23));
}

// A candidate's weight relative to the best one's, `top`: e^((x - top) / temperature), with `sharpness` for 1 / temperature.
FW_INLINE float weight(float x, float top, float sharpness) { return exp32((x - top) * sharpness); }

}  // namespace flyweight::FW_ISA
