// Codes and scales of one block into ggml's bytes: the inverse of flyweight/weights/formats/{blocks,kquants}.py, whose
// docstrings state the layouts.  Codes are one a byte; `half` writes a float16.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace flyweight::FW_ISA {
namespace {

FW_INLINE void put_half(uint8_t* out, uint16_t bits) {
  out[0] = static_cast<uint8_t>(bits & 255), out[1] = static_cast<uint8_t>(bits >> 8);
}

FW_INLINE uint8_t as_byte(int value) { return static_cast<uint8_t>(value & 255); }

// Element i in the low half of byte i, i + `run` in the high half.
FW_INLINE void put_nibbles(uint8_t* out, const uint8_t* codes, int run) {
  for (int i = 0; i < run; ++i) out[i] = as_byte((codes[i] & 15) | (codes[i + run] & 15) << 4);
}

// Bits `from` and up of the codes, `width` a plane: byte i has elements i, i + 32, ... of a run of 32 * 8 / width.
FW_INLINE void put_planes(uint8_t* out, const uint8_t* codes, int count, int from, int width) {
  const int planes = 8 / width, mask = (1 << width) - 1;
  for (int run = 0; run < count; run += 32 * planes, out += 32)
    for (int i = 0; i < 32; ++i) {
      int byte = 0;
      for (int p = 0; p < planes; ++p) byte |= (codes[run + p * 32 + i] >> from & mask) << (p * width);
      out[i] = as_byte(byte);
    }
}

// Bit i is element i's fifth.
FW_INLINE void put_fifths(uint8_t* out, const uint8_t* codes) {
  for (int i = 0; i < 4; ++i) {
    int byte = 0;
    for (int j = 0; j < 8; ++j) byte |= (codes[8 * i + j] >> 4) << j;
    out[i] = as_byte(byte);
  }
}

// Q4_K's and Q5_K's twelve bytes: scales and minima of six bits, for eight groups.
FW_INLINE void put_six_bits(uint8_t* out, const int* scales, const int* mins) {
  for (int g = 0; g < 4; ++g) {
    out[g] = as_byte(scales[g] | (scales[g + 4] >> 4) << 6);
    out[4 + g] = as_byte(mins[g] | (mins[g + 4] >> 4) << 6);
    out[8 + g] = as_byte((scales[g + 4] & 15) | (mins[g + 4] & 15) << 4);
  }
}

// Q3_K's twelve bytes: sixteen scales of six bits, 32 too high.
FW_INLINE void put_signed_scales(uint8_t* out, const int* scales) {
  for (int i = 0; i < 8; ++i) out[i] = as_byte(((scales[i] + 32) & 15) | ((scales[i + 8] + 32) & 15) << 4);
  for (int i = 0; i < 4; ++i) {
    int byte = 0;
    for (int p = 0; p < 4; ++p) byte |= (scales[4 * p + i] + 32) >> 4 << (2 * p);
    out[8 + i] = as_byte(byte);
  }
}

// IQ4_XS: top two bits of eight scales, then the low four, 32 too high.
FW_INLINE void put_split_scales(uint8_t* out, const int* scales) {
  int top = 0;
  for (int g = 0; g < 8; ++g) top |= (scales[g] + 32) >> 4 << (2 * g);
  put_half(out, static_cast<uint16_t>(top));
  for (int i = 0; i < 4; ++i) out[2 + i] = as_byte(((scales[2 * i] + 32) & 15) | ((scales[2 * i + 1] + 32) & 15) << 4);
}

}  // namespace
}  // namespace flyweight::FW_ISA
