// Many quotients by one divisor, for a third of the time that divisions of 16 lanes take.  Included by attend_softmax.h.
//
// Invariant: the bits of `div`, or `good` is false.  The reciprocal is divided once, and two corrections of a product by it
// round as division does (Markstein, 1990) where nothing comes near the ends of the range.
#pragma once

#include "simd.h"

namespace flyweight::FW_ISA {

class Quotients {
 public:
  explicit Quotients(F32x16 divisor)
      : divisor_(divisor), reciprocal_(div(set1(1.0f), divisor)),
        good_(mask_gt(set1(0x1p+30f), divisor) & mask_gt(divisor, set1(0x1p-10f))) {}

  F32x16 of(F32x16 x) {
    good_ &= mask_gt(set1(0x1p+60f), abs(x)) & mask_gt(abs(x), set1(0x1p-60f));
    const F32x16 minus = sub(zero(), x), near = mul(x, reciprocal_);
    return corrected(minus, corrected(minus, near));
  }

  // Whether all quotients so far are those of `div`; zeros, say, are not known to be.
  bool good() const { return good_ == 0xFFFF; }

 private:
  F32x16 corrected(F32x16 minus, F32x16 near) const {
    return fma(fma(near, divisor_, minus), sub(zero(), reciprocal_), near);
  }

  F32x16 divisor_, reciprocal_;
  uint32_t good_;
};

}  // namespace flyweight::FW_ISA
