// Every primitive of simd.h applied to the same inputs; simd_probe.cpp is compiled per target.
#pragma once

#include <cstdint>

namespace flyweight {

struct ProbeInput {
  float a[16], b[16], c[16];
  int32_t i[16], j[16];
  uint16_t half[16];
  uint8_t u[64], v[64];
  int tail;  // 0..16
};

constexpr int kProbeWords = 2048;
struct ProbeOutput {
  uint32_t word[kProbeWords];  // exact results, in a fixed order
  int used;
  float bf16[16];  // dot_bf16: equal between targets up to rounding only
};

struct Probe {
  void (*run)(const ProbeInput&, ProbeOutput&);
  void (*exp)(const float* x, float* y);  // 16 each
  void (*tanh)(const float* x, float* y);
  // Quotients of 16 by one number, and those of `div`; returns whether the first are said to be the second.
  bool (*quotients)(const float* x, float divisor, float* y, float* divided);
};

}  // namespace flyweight
