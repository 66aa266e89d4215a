// What the machine can do at most, measured with the instructions the kernels use: the yardstick of bench/linear.py.
#include "kernels.h"
#include "simd.h"

namespace flyweight::FW_ISA {

// Reads every byte of [data, data + size), size a multiple of 512; the result only keeps the loads alive.
int32_t probe_read(const uint8_t* data, int64_t size) {
  B8x64 seen[8];
  for (int i = 0; i < 8; ++i) seen[i] = bset1(0);
  for (int64_t at = 0; at < size; at += 512)
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) seen[i] = bxor(seen[i], bload(data + at + 64 * i));
  for (int i = 1; i < 8; ++i) seen[0] = bxor(seen[0], seen[i]);
  return hsum(dot_u7i8(izero(), bset1(1), seen[0]));
}

// `rounds` x 12 independent int8 dots of 16 lanes x 4: 1536 operations a round, no memory.
int32_t probe_dot(int64_t rounds) {
  I32x16 sum[12];
  const B8x64 a = bset1(3), b = bset1(5);
  for (int i = 0; i < 12; ++i) sum[i] = iset1(i);
  for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sum[i] = dot_u7i8(sum[i], a, b);
  for (int i = 1; i < 12; ++i) sum[0] = add(sum[0], sum[i]);
  return hsum(sum[0]);
}

// `rounds` x 12 independent fused multiply-adds of 16 lanes: 384 operations a round, no memory.
float probe_fma(int64_t rounds) {
  F32x16 sum[12];
  const F32x16 a = set1(0.5f), b = set1(0.25f);
  for (int i = 0; i < 12; ++i) sum[i] = set1(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sum[i] = fma(sum[i], a, b);
  for (int i = 1; i < 12; ++i) sum[0] = add(sum[0], sum[i]);
  return hsum(sum[0]);
}

}  // namespace flyweight::FW_ISA
