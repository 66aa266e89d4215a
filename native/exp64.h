// e^x in double, for weights that are summed and compared across targets.  Included by sample.cpp and moe.cpp.
#pragma once

#include <bit>

#include "simd.h"

namespace flyweight::FW_ISA {

// For x <= 0, within 2 ulp (NaN stays NaN; below -708 it gives e^-708, which is nothing next to a sum that holds e^0).
// Plain multiplications and additions, so that compilers vectorise it and every target gives the same bits: n ln2 is
// exact in ln2's first 33 bits, adding 1.5 * 2^52 rounds to an integer whose low bits then go to the exponent.
FW_INLINE double exp64(double x) {
  constexpr double shift = 6755399441055744.0;
  constexpr double inverse_factorial[14] = {1.0,          1.0,           1.0 / 2,        1.0 / 6,         1.0 / 24,
                                            1.0 / 120,    1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                                            1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
  const double c = x < -708.0 ? -708.0 : x;
  const double t = c * 1.4426950408889634 + shift;
  const double n = t - shift;
  const double r = (c - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;  // |r| <= ln2 / 2
  double p = inverse_factorial[13];  // the next term is below 4e-18
  for (int i = 12; i >= 0; --i) p = p * r + inverse_factorial[i];
  return std::bit_cast<double>(std::bit_cast<int64_t>(p) + (std::bit_cast<int64_t>(t) << 52));
}

}  // namespace flyweight::FW_ISA
