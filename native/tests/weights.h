// Packed weights of random codes, for tests.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "../kernels.h"

namespace flyweight {

// The float fields and exponents of a grouped block.
template <class Tame>
void tame_scales(uint8_t* block, const Structure& s, const Tame& tame, size_t at) {
  const auto part = [&](int from, int to) { return static_cast<size_t>(to - from) / 2; };
  if (s.super_bytes == 2) tame(at, part(0, s.scales()));
  if (s.super_bytes == 4)
    for (int i = 0; i < s.scales(); i += 4) block[i + 3] = static_cast<uint8_t>((block[i + 3] & 0x80) | 0x3C);
  if (s.number == Number::f16)
    tame(at + static_cast<size_t>(s.scales()), part(s.scales(), s.low == Low::zero ? s.minima() : s.codes()));
  if (s.number == Number::exponent)
    for (int i = s.scales(); i < s.codes(); ++i) block[i] = static_cast<uint8_t>(112 + block[i] % 16);
}

// What is behind the tiles: small row scales, columns in reverse, and a scale of activations.
inline void write_extras(Kind kind, int64_t n, int64_t k, uint8_t* behind) {
  const Extras extras = extras_of(kind, n, k);
  const Form form = form_of(kind);
  if (form.rows)
    for (int64_t i = 0; i < tile_count(n) * kLanes; ++i) {
      const float scale = 0.01f + 0.001f * static_cast<float>(i % 7);
      std::memcpy(behind + 4 * i, &scale, 4);
    }
  if (form.order)
    for (int64_t i = 0; i < k; ++i) {
      const auto column = static_cast<int32_t>(k - 1 - i);
      std::memcpy(behind + extras.order + 4 * i, &column, 4);
    }
  const float input = 0.05f;
  if (form.input) std::memcpy(behind + extras.input, &input, 4);
}

// A packed weight of random codes; every float field is a small number, so that sums stay finite.
inline std::vector<uint8_t> random_weight(std::mt19937& random, Kind kind, int64_t n, int64_t k) {
  std::vector<uint8_t> w(static_cast<size_t>(weight_bytes(kind, n, k)));
  for (uint8_t& b : w) b = static_cast<uint8_t>(random());
  const auto tame = [&](size_t at, size_t count) {  // f16 in +-[2^-8, 2^-7)
    for (size_t i = at; i < at + 2 * count; i += 2) w[i + 1] = static_cast<uint8_t>((w[i + 1] & 0x83) | 0x1C);
  };
  const Block block = block_of(kind);
  const auto tiles = static_cast<size_t>(tile_count(n) * tile_bytes(kind, k));
  write_extras(kind, n, k, w.data() + tiles);
  if (base_of(kind) == Kind::e5m2)  // no infinities
    for (size_t i = 0; i < tiles; ++i) w[i] = static_cast<uint8_t>(w[i] & 0xBF);
  for (size_t at = 0; at < tiles; at += static_cast<size_t>(block.bytes)) {
    if (kind == Kind::f32)
      for (size_t i = at; i < at + 64; i += 4) w[i + 3] = static_cast<uint8_t>((w[i + 3] & 0x80) | 0x3E);
    else if (kind == Kind::bf16)
      for (size_t i = at; i < at + 64; i += 2) w[i + 1] = static_cast<uint8_t>((w[i + 1] & 0x80) | 0x3E);
    else if (kind == Kind::f16)
      tame(at, 16);
    else
      tame_scales(w.data() + at, structure_of(kind), tame, at);
  }
  return w;
}

}  // namespace flyweight
