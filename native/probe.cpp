// What the machine can do at most, measured with the instructions the kernels use: the yardstick of bench/.
#include "kernels.h"
#include "simd.h"
#if defined(FW_ISA_AMX)
#include "amx.h"
#endif

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

// Twelve independent operations a round, of which as many at a time as registers hold.
#if defined(FW_ISA_AVX2)
constexpr int kChains = 6;
#else
constexpr int kChains = 12;
#endif

// f(sum, operand) for every chain.  Where a product is several instructions the operands are loaded anew each time, or all
// but the last would be done once.
template <class V, class F>
FW_INLINE void rounds_of(V (&sum)[kChains], int64_t rounds, F f) {
  alignas(64) uint8_t operands[64 * kChains];
  std::memset(operands, 0x3D, sizeof operands);
  const uint8_t* from = operands;
  for (int64_t r = 0; r < rounds * (12 / kChains); ++r) {
#if defined(FW_PAIR_SUMS)
    asm volatile("" : "+r"(from));
    each<kChains>([&](auto i) FW_LAMBDA { sum[i] = f(sum[i], bload(from + 64 * i)); });
#else
    const B8x64 operand = bload(from);
    each<kChains>([&](auto i) FW_LAMBDA { sum[i] = f(sum[i], operand); });
#endif
  }
}

#if defined(FW_ISA_AMX)
// A product of two registers is 64 / 3 rounds: 32,768 operations on int8, 16,384 on bf16.
template <class F>
FW_INLINE void registers_of(int64_t rounds, F f) {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) shapes.set(i, kTileRows, 64);
  shapes.load();
  each<8>([&](auto i) FW_LAMBDA { tile_zero<i>(); });
  for (int64_t r = 0; r < rounds * 3 / 64; r += 4) f();
  TileShapes::release();
}

int32_t probe_dot(int64_t rounds) {
  registers_of(rounds, []() FW_LAMBDA {
    tile_dot_i8<0, 4, 6>();
    tile_dot_i8<1, 5, 6>();
    tile_dot_i8<2, 4, 7>();
    tile_dot_i8<3, 5, 7>();
  });
  return 0;
}

float probe_bf16(int64_t rounds) {
  registers_of(rounds, []() FW_LAMBDA {
    tile_dot_bf16<0, 4, 6>();
    tile_dot_bf16<1, 5, 6>();
    tile_dot_bf16<2, 4, 7>();
    tile_dot_bf16<3, 5, 7>();
  });
  return 0;
}
#else
int32_t probe_dot(int64_t rounds) {
  I32x16 sum[kChains];
  const B8x64 a = bset1(3);
  for (int i = 0; i < kChains; ++i) sum[i] = iset1(i);
  rounds_of(sum, rounds, [&](I32x16 x, B8x64 b) FW_LAMBDA { return dot_u7i8(x, a, b); });
  for (int i = 1; i < kChains; ++i) sum[0] = add(sum[0], sum[i]);
  return hsum(sum[0]);
}

float probe_bf16(int64_t rounds) {
  F32x16 sum[kChains];
  const B8x64 a = bset1(0x3E);  // 0.19
  for (int i = 0; i < kChains; ++i) sum[i] = set1(static_cast<float>(i));
  rounds_of(sum, rounds, [&](F32x16 x, B8x64 b) FW_LAMBDA { return dot_bf16(x, a, b); });
  for (int i = 1; i < kChains; ++i) sum[0] = add(sum[0], sum[i]);
  return hsum(sum[0]);
}
#endif

float probe_fma(int64_t rounds) {
  F32x16 sum[kChains];
  const F32x16 a = set1(0.5f), b = set1(0.25f);
  for (int i = 0; i < kChains; ++i) sum[i] = set1(static_cast<float>(i));
  rounds_of(sum, rounds, [&](F32x16 x, B8x64) FW_LAMBDA { return fma(x, a, b); });
  for (int i = 1; i < kChains; ++i) sum[0] = add(sum[0], sum[i]);
  return hsum(sum[0]);
}

}  // namespace flyweight::FW_ISA
