// cos and sin of rope angles for the tokens of a step.  Compiled once: the C library's double-precision functions, good
// at any size of angle, are the same for every target.
#pragma once

#include <cstdint>

#include "pool.h"

namespace flyweight {

// [tokens, half] each: the angle is float(position) * frequency, one float32 product; its cosine and sine are rounded to
// float32, then multiplied by `scale`.
void rotation(Pool& pool, const int32_t* positions, int64_t tokens, const float* frequencies, int64_t half, float scale,
              float* cos, float* sin);

}  // namespace flyweight
