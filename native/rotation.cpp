#include "rotation.h"

#include <cmath>

namespace flyweight {
namespace {

constexpr int64_t kEach = 256;  // angles of a chunk: some 10 us

}  // namespace

void rotation(Pool& pool, const int32_t* positions, int64_t tokens, const float* frequencies, int64_t half, float scale,
              float* cos, float* sin) {
  const int64_t each = kEach / (half + 1) + 1;
  pool.run((tokens + each - 1) / each, [&](int64_t chunk, int) {
    for (int64_t t = chunk * each; t < tokens && t < (chunk + 1) * each; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<float>(positions[t]) * frequencies[i];
        cos[t * half + i] = static_cast<float>(std::cos(angle)) * scale;
        sin[t * half + i] = static_cast<float>(std::sin(angle)) * scale;
      }
    }
  });
}

}  // namespace flyweight
