// Canonical rows into the tile layout of kernels_gemm.h.  Only moves bytes: no value is rounded, every target reads the
// result.  A tile is written by one chunk of a call; rows of a tile may come from several calls, in any order, because
// each row owns its lanes.  Lanes never written must already be zero.
#include <cstring>

#include "kernels.h"

namespace flyweight {
namespace {

// Where one row comes from and goes to: `codes` etc. point at the row, `tile` at its tile, `lane` its place there.
struct Row {
  const uint8_t* codes;
  const void* scales;
  const uint8_t* mins;
  const uint16_t* super_scales;
  const uint16_t* super_mins;
  uint8_t* tile;
  int64_t lane, k;
};

template <class T>
void put(uint8_t* to, int64_t index, T value) {
  std::memcpy(to + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}
template <class T>
T get(const void* from, int64_t index) {  // fields come from files, at any address
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(from) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
uint32_t word(const uint8_t* p) { return get<uint32_t>(p, 0); }

template <class T>
void pack_values(const Row& row) {
  for (int64_t k = 0; k < row.k; ++k) put<T>(row.tile, k * kLanes + row.lane, get<T>(row.codes, k));
}

void pack_pairs(const Row& row) {
  for (int64_t k = 0; k < row.k; ++k)
    put<uint16_t>(row.tile, (k / 2 * kLanes + row.lane) * 2 + k % 2, get<uint16_t>(row.codes, k));
}

// 32 four-bit codes: words 2z and 2z + 1 share 32-bit lanes, the second in the high nibbles.
void pack_nibbles(const uint8_t* codes, uint8_t* to, int64_t lane) {
  for (int64_t z = 0; z < 4; ++z)
    put<uint32_t>(to, z * kLanes + lane, (word(codes + 8 * z) & 0x0F0F0F0F) | (word(codes + 8 * z + 4) & 0x0F0F0F0F) << 4);
}

void pack_q8_0(const Row& row) {
  for (int64_t g = 0; g < row.k / kGroup; ++g) {
    uint8_t* block = row.tile + g * 544;
    put(block, row.lane, get<uint16_t>(row.scales, g));
    for (int64_t q = 0; q < 8; ++q)  // + 128 modulo 256 flips the top bit of each byte
      put<uint32_t>(block + 32, q * kLanes + row.lane, word(row.codes + g * kGroup + 4 * q) ^ 0x80808080u);
  }
}

void pack_q4_0(const Row& row) {
  for (int64_t g = 0; g < row.k / kGroup; ++g) {
    uint8_t* block = row.tile + g * 288;
    put(block, row.lane, get<uint16_t>(row.scales, g));
    pack_nibbles(row.codes + g * kGroup, block + 32, row.lane);
  }
}

void pack_q4_k(const Row& row) {
  const auto* scales = static_cast<const uint8_t*>(row.scales);
  for (int64_t s = 0; s < row.k / 256; ++s) {
    uint8_t* block = row.tile + s * 2368;
    put(block, row.lane, get<uint16_t>(row.super_scales, s));
    put(block + 32, row.lane, get<uint16_t>(row.super_mins, s));
    for (int64_t g = 0; g < 8; ++g) {
      block[64 + g * kLanes + row.lane] = scales[s * 8 + g];
      block[192 + g * kLanes + row.lane] = row.mins[s * 8 + g];
      pack_nibbles(row.codes + s * 256 + g * kGroup, block + 320 + g * 256, row.lane);
    }
  }
}

void pack_q6_k(const Row& row) {
  const auto* scales = static_cast<const uint8_t*>(row.scales);
  for (int64_t s = 0; s < row.k / 256; ++s) {
    uint8_t* block = row.tile + s * 3360;
    put(block, row.lane, get<uint16_t>(row.super_scales, s));
    for (int64_t i = 0; i < 16; ++i) block[32 + i * kLanes + row.lane] = scales[s * 16 + i];
    for (int64_t g = 0; g < 8; ++g) {
      const uint8_t* codes = row.codes + s * 256 + g * kGroup;
      uint8_t* to = block + 288 + g * 384;
      pack_nibbles(codes, to, row.lane);
      for (int64_t h = 0; h < 2; ++h) {
        uint32_t pairs = 0;
        for (int p = 0; p < 4; ++p) pairs |= (word(codes + 16 * h + 4 * p) >> 4 & 0x03030303u) << 2 * p;
        put<uint32_t>(to + 256, h * kLanes + row.lane, pairs);
      }
    }
  }
}

void pack_row(Kind kind, const Row& row) {
  switch (kind) {
    case Kind::f32: return pack_values<uint32_t>(row);
    case Kind::f16: return pack_values<uint16_t>(row);
    case Kind::bf16: return pack_pairs(row);
    case Kind::q8_0: return pack_q8_0(row);
    case Kind::q4_0: return pack_q4_0(row);
    case Kind::q4_k: return pack_q4_k(row);
    case Kind::q6_k: return pack_q6_k(row);
  }
}

Row row_of(const PackPart& part, int64_t i, uint8_t* weight) {
  const int64_t n = part.row + i, k = part.k;
  const int64_t element = part.kind == Kind::f32 ? 4 : grouped(part.kind) ? 1 : 2;
  const int64_t sub = part.kind == Kind::q6_k ? 16 : 32, scale = part.super_scales ? 1 : 2;
  const int64_t groups = k / sub, supers = k / 256;
  return {static_cast<const uint8_t*>(part.codes) + i * k * element,
          part.scales ? static_cast<const uint8_t*>(part.scales) + i * groups * scale : nullptr,
          part.mins ? part.mins + i * groups : nullptr,
          part.super_scales ? part.super_scales + i * supers : nullptr,
          part.super_mins ? part.super_mins + i * supers : nullptr,
          weight + n / kLanes * tile_bytes(part.kind, k),
          n % kLanes, k};
}

}  // namespace

void pack(Pool& pool, const PackPart& part, uint8_t* weight) {
  const int64_t first = part.row / kLanes, last = tile_count(part.row + part.rows);
  pool.run(last - first, [&](int64_t chunk, int) {
    const int64_t begin = (first + chunk) * kLanes - part.row, end = begin + kLanes;
    for (int64_t i = begin < 0 ? 0 : begin; i < end && i < part.rows; ++i) pack_row(part.kind, row_of(part, i, weight));
  });
}

}  // namespace flyweight
