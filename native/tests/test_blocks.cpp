// Blocks of a file, packed from the file's layout, against packing what was parsed from them; every byte of every buffer is its own
// allocation's, so that sanitizers see a step beyond.
#include <random>
#include <vector>

#include "../blocks.h"
#include "../kernels.h"
#include "check.h"

namespace fw = flyweight;

namespace {

void compare(fw::Pool& pool, fw::Kind kind, int64_t n, int64_t k, std::mt19937& random) {
  const fw::Structure s = fw::structure_of(kind);
  const int64_t blocks = n * (k / s.k()), bytes = fw::block_bytes(kind), scales = s.groups() * s.scale_bytes();
  std::vector<uint8_t> raw(static_cast<size_t>(blocks * bytes));
  for (uint8_t& byte : raw) byte = static_cast<uint8_t>(random());
  std::vector<uint8_t> codes, each, mins, supers, super_mins;
  for (int64_t b = 0; b < blocks; ++b) {
    fw::Parsed parsed;
    fw::parse_block(kind, raw.data() + b * bytes, parsed);
    codes.insert(codes.end(), parsed.codes, parsed.codes + s.k());
    each.insert(each.end(), parsed.scales, parsed.scales + scales);
    if (s.mins) mins.insert(mins.end(), parsed.mins, parsed.mins + scales);
    supers.insert(supers.end(), parsed.super_scales, parsed.super_scales + s.super_bytes);
    if (s.mins) super_mins.insert(super_mins.end(), parsed.super_mins, parsed.super_mins + s.super_bytes);
  }
  fw::PackPart part;
  part.kind = kind, part.k = k, part.rows = n;
  const auto size = static_cast<size_t>(fw::tile_count(n) * fw::tile_bytes(kind, k));
  std::vector<uint8_t> expected(size), got(size);
  part.codes = codes.data(), part.scales = each.data(), part.mins = mins.data();
  part.super_scales = supers.data(), part.super_mins = super_mins.data();
  fw::pack(pool, part, expected.data());
  fw::PackPart file;
  file.kind = kind, file.k = k, file.rows = n, file.codes = raw.data();
  fw::pack_blocks(pool, file, got.data());
  CHECK(got == expected, "kind %d, %d rows", static_cast<int>(kind), static_cast<int>(n));
}

}  // namespace

int main() {
  using enum fw::Kind;
  fw::Pool pool(2);
  std::mt19937 random(9);
  for (const fw::Kind kind : {q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k}) {
    CHECK(fw::block_bytes(kind) > 0, "kind %d", static_cast<int>(kind));
    for (const int64_t n : {1, 16, 21}) compare(pool, kind, n, 512, random);
  }
  for (const fw::Kind kind : {f32, f16, bf16, iq4_nl, q2_k, int8_k}) CHECK(fw::block_bytes(kind) == 0, "kind %d", static_cast<int>(kind));
  return 0;
}
