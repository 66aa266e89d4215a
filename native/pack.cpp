// Canonical rows into the tile layout of kernels_gemm.h.  Only moves bytes: no value is rounded, every target reads the
// result.  A tile is written by one chunk of a call; rows of a tile may come from several calls, in any order, because
// each row owns its lanes.  Lanes never written must already be zero.
#include <cstring>

#include "blocks.h"
#include "kernels.h"

namespace flyweight {
namespace {

// Where one row comes from and goes to: `codes` etc. point at the row, `tile` at its tile, `lane` its place there.
struct Row {
  const uint8_t* codes;
  const void* scales;
  const void* mins;
  const void* super_scales;
  const void* super_mins;
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
// With the second and third byte exchanged: how kernels want codes of floats.
uint32_t exchanged(uint32_t w) { return (w & 0xFF0000FF) | (w >> 8 & 0xFF00) | (w << 8 & 0xFF0000); }

template <class T>
void pack_values(const Row& row) {
  for (int64_t k = 0; k < row.k; ++k) put<T>(row.tile, k * kLanes + row.lane, get<T>(row.codes, k));
}

void pack_pairs(const Row& row) {
  for (int64_t k = 0; k < row.k; ++k)
    put<uint16_t>(row.tile, (k / 2 * kLanes + row.lane) * 2 + k % 2, get<uint16_t>(row.codes, k));
}

// `width` bits of 32 codes, from bit `from` up, to a plane of kernels_gemm.h.
void pack_plane(const uint8_t* codes, int from, int width, uint8_t* to, int64_t lane) {
  const int quads = 8 / width;
  const uint32_t mask = 0x01010101u * ((1u << width) - 1);
  for (int w = 0; w < width; ++w) {
    uint32_t packed = 0;
    for (int q = 0; q < quads; ++q) packed |= (word(codes + 4 * (w * quads + q)) >> from & mask) << q * width;
    put(to, w * kLanes + lane, packed);
  }
}

// `flip`: codes of 8 bits are signed, and + 128 modulo 256 flips the top bit of each byte.
void pack_codes(const uint8_t* codes, int bits, bool flip, uint8_t* to, int64_t lane) {
  if (bits == 8) {
    for (int q = 0; q < 8; ++q) put<uint32_t>(to, q * kLanes + lane, word(codes + 4 * q) ^ (flip ? 0x80808080u : 0));
    return;
  }
  const int low = low_bits(bits);
  pack_plane(codes, 0, low, to, lane);
  if (low < bits) pack_plane(codes, low, bits - low, to + 64 * low, lane);
}

void pack_number(int bytes, const void* from, int64_t index, uint8_t* to, int64_t lane) {
  switch (bytes) {
    case 2: return put(to, lane, get<uint16_t>(from, index));
    case 4: return put(to, lane, get<uint32_t>(from, index));
    default: to[lane] = get<uint8_t>(from, index);
  }
}

// Whether parsers give codes of 8 bits as signed ones; others are bytes as they are, or codes of floats.
bool signed_codes(Kind kind) { return base_of(kind) != Kind::u8 && !of_floats(kind); }

void pack_block(Kind kind, const Structure& s, const Row& row, int64_t b, uint8_t* to) {
  if (s.super_bytes == 2) put(to, row.lane, get<uint16_t>(row.super_scales, b));
  if (s.super_bytes == 4) put(to, row.lane, get<uint32_t>(row.super_scales, b));
  if (s.super_bytes && s.mins) put(to + kLanes * s.super_bytes, row.lane, get<uint16_t>(row.super_mins, b));
  for (int g = 0; g < s.groups(); ++g) {
    const int64_t index = b * s.groups() + g;
    if (s.number == Number::nibble) {
      to[s.scales() + kLanes * g + row.lane] =
          static_cast<uint8_t>(get<uint8_t>(row.scales, index) | get<uint8_t>(row.mins, index) << 4);
      continue;
    }
    pack_number(s.scale_bytes(), row.scales, index, to + s.scales() + kLanes * g * s.scale_bytes(), row.lane);
    if (s.mins) pack_number(s.low_bytes(), row.mins, index, to + s.minima() + kLanes * g * s.low_bytes(), row.lane);
  }
  for (int g = 0; g < s.k() / kGroup; ++g) {
    const uint8_t* codes = row.codes + b * s.k() + g * kGroup;
    uint8_t some[kGroup];
    if (of_floats(kind)) {
      for (int q = 0; q < kGroup / 4; ++q) put(some, q, exchanged(word(codes + 4 * q)));
      codes = some;
    }
    pack_codes(codes, s.bits, signed_codes(kind), to + s.codes() + g * 64 * s.bits, row.lane);
  }
}

void pack_grouped(Kind kind, const Row& row) {
  const Structure s = structure_of(kind);
  for (int64_t b = 0; b < row.k / s.k(); ++b) pack_block(kind, s, row, b, row.tile + b * s.bytes());
}

void pack_row(Kind kind, const Row& row) {
  switch (base_of(kind)) {
    case Kind::f32: return pack_values<uint32_t>(row);
    case Kind::f16: return pack_values<uint16_t>(row);
    case Kind::bf16: return pack_pairs(row);
    default: return pack_grouped(kind, row);
  }
}

const uint8_t* at(const void* field, int64_t bytes) {
  return field ? static_cast<const uint8_t*>(field) + bytes : nullptr;
}

Row row_of(const PackPart& part, int64_t i, uint8_t* weight) {
  const int64_t n = part.row + i, k = part.k;
  uint8_t* tile = weight + n / kLanes * tile_bytes(part.kind, k);
  if (!grouped(part.kind))
    return {at(part.codes, i * k * (base_of(part.kind) == Kind::f32 ? 4 : 2)), nullptr, nullptr, nullptr, nullptr, tile, n % kLanes, k};
  const Structure s = structure_of(part.kind);
  const int64_t groups = i * (k / s.k()) * s.groups(), scales = groups * s.scale_bytes(), supers = i * (k / s.k());
  const int64_t lows = s.low == Low::none ? scales : groups * s.low_bytes();
  return {at(part.codes, i * k),
          at(part.scales, scales),
          at(part.mins, lows),
          at(part.super_scales, supers * s.super_bytes),
          at(part.super_mins, supers * s.super_bytes),
          tile, n % kLanes, k};
}

// Row i of a part that is blocks of a file.
void pack_row_of_blocks(const Structure& s, const PackPart& part, int64_t i, uint8_t* weight) {
  const int64_t n = part.row + i, blocks = part.k / s.k(), bytes = block_bytes(part.kind);
  uint8_t* tile = weight + n / kLanes * tile_bytes(part.kind, part.k);
  const uint8_t* from = static_cast<const uint8_t*>(part.codes) + i * blocks * bytes;
  Parsed parsed;
  const Row row{parsed.codes, parsed.scales, parsed.mins, parsed.super_scales, parsed.super_mins, tile, n % kLanes, s.k()};
  for (int64_t b = 0; b < blocks; ++b) {
    parse_block(part.kind, from + b * bytes, parsed);
    pack_block(part.kind, s, row, 0, tile + b * s.bytes());
  }
}

// Every row of a part; a tile's rows by one thread.
template <class One>
void by_tiles(Pool& pool, const PackPart& part, const One& one) {
  const int64_t first = part.row / kLanes, last = tile_count(part.row + part.rows);
  pool.run(last - first, [&](int64_t chunk, int) {
    const int64_t begin = (first + chunk) * kLanes - part.row, end = begin + kLanes;
    for (int64_t i = begin < 0 ? 0 : begin; i < end && i < part.rows; ++i) one(i);
  });
}

}  // namespace

void pack(Pool& pool, const PackPart& part, uint8_t* weight) {
  by_tiles(pool, part, [&](int64_t i) { pack_row(part.kind, row_of(part, i, weight)); });
}

void pack_blocks(Pool& pool, const PackPart& part, uint8_t* weight) {
  const Structure s = structure_of(part.kind);
  by_tiles(pool, part, [&](int64_t i) { pack_row_of_blocks(s, part, i, weight); });
}

}  // namespace flyweight
