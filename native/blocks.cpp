#include "blocks.h"

#include <cstring>

namespace flyweight {
namespace {

// `count` bytes hold two codes each: all low halves, then all high ones.
void halves(const uint8_t* from, int count, uint8_t* to) {
  for (int i = 0; i < count; ++i) {
    to[i] = from[i] & 15;
    to[count + i] = from[i] >> 4;
  }
}

// Bits `from` .. `from + width` of 32 bytes onto bits 4 and up of 32 codes.
void lift(const uint8_t* bytes, int from, int width, uint8_t* codes) {
  const int mask = (1 << width) - 1;
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (bytes[i] >> from & mask) << 4);
}

// Bit i of 32 bits is the fifth of code i.
void lift_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (bits[i / 8] >> i % 8 & 1) << 4);
}

// A minimum that files add is one we take away: the sign of a float16 changes.
void opposite(const uint8_t* from, uint8_t* to) {
  to[0] = from[0];
  to[1] = from[1] ^ 0x80;
}

// Q4_K's and Q5_K's twelve bytes: 6-bit scales and minima of eight groups.
void six_bits(const uint8_t* from, Parsed& to) {
  for (int i = 0; i < 4; ++i) {
    const int first = from[i], second = from[4 + i], rest = from[8 + i];
    to.scales[i] = static_cast<uint8_t>(first & 63);
    to.mins[i] = static_cast<uint8_t>(second & 63);
    to.scales[4 + i] = static_cast<uint8_t>((rest & 15) | (first >> 6 << 4));
    to.mins[4 + i] = static_cast<uint8_t>(rest >> 4 | (second >> 6 << 4));
  }
}

void parse_k(const uint8_t* block, int head, Parsed& to) {
  std::memcpy(to.super_scales, block, 2);
  std::memcpy(to.super_mins, block + 2, 2);
  six_bits(block + 4, to);
  for (int run = 0; run < 4; ++run) halves(block + head + 32 * run, 32, to.codes + 64 * run);
}

void parse_q6_k(const uint8_t* block, Parsed& to) {
  for (int half = 0; half < 2; ++half) {
    uint8_t* codes = to.codes + 128 * half;
    halves(block + 64 * half, 64, codes);
    for (int run = 0; run < 4; ++run) lift(block + 128 + 32 * half, 2 * run, 2, codes + 32 * run);
  }
  std::memcpy(to.scales, block + 192, 16);
  std::memcpy(to.super_scales, block + 208, 2);
}

// Q4_0 to Q5_1: a scale, a minimum if there are `mins`, the top bits if there are `tops`, the low halves.
void parse_32(const uint8_t* block, bool mins, bool tops, Parsed& to) {
  std::memcpy(to.scales, block, 2);
  if (mins) opposite(block + 2, to.mins);
  const uint8_t* bits = block + (mins ? 4 : 2);
  halves(bits + (tops ? 4 : 0), 16, to.codes);
  if (tops) lift_bits(bits, to.codes);
}

}  // namespace

int64_t block_bytes(Kind kind) {
  switch (base_of(kind)) {
    case Kind::q4_0: return 18;
    case Kind::q4_1: return 20;
    case Kind::q5_0: return 22;
    case Kind::q5_1: return 24;
    case Kind::q8_0: return 34;
    case Kind::q4_k: return 144;
    case Kind::q5_k: return 176;
    case Kind::q6_k: return 210;
    default: return 0;
  }
}

void parse_block(Kind kind, const uint8_t* block, Parsed& to) {
  switch (base_of(kind)) {
    case Kind::q4_0: return parse_32(block, false, false, to);
    case Kind::q4_1: return parse_32(block, true, false, to);
    case Kind::q5_0: return parse_32(block, false, true, to);
    case Kind::q5_1: return parse_32(block, true, true, to);
    case Kind::q8_0:
      std::memcpy(to.scales, block, 2);
      std::memcpy(to.codes, block + 2, 32);
      return;
    case Kind::q4_k: return parse_k(block, 16, to);
    case Kind::q5_k:
      parse_k(block, 48, to);
      for (int group = 0; group < 8; ++group) lift(block + 16, group, 1, to.codes + 32 * group);
      return;
    case Kind::q6_k: return parse_q6_k(block, to);
    default: return;
  }
}

}  // namespace flyweight
