#include "checksum.h"

#include <bit>
#include <cstring>

namespace flyweight {
namespace {

constexpr int kLane = 4;
constexpr uint64_t kOdd = 0x9fb21c651e98df25u, kStart = 0x2545f4914f6cdd1du;

void take(const uint8_t* block, uint64_t* lanes) {
  for (int i = 0; i < kLane; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, block + 8 * i, 8);
    lanes[i] = std::rotl((lanes[i] ^ word) * kOdd, 29);
  }
}

}  // namespace

void checksum(const uint8_t* bytes, size_t size, uint8_t sum[32]) {
  uint64_t lanes[kLane];
  for (int i = 0; i < kLane; ++i) lanes[i] = kStart * static_cast<uint64_t>(i + 1) ^ size;
  size_t at = 0;
  for (; at + 32 <= size; at += 32) take(bytes + at, lanes);
  uint8_t last[32] = {};
  if (at < size) {
    std::memcpy(last, bytes + at, size - at);
    take(last, lanes);
  }
  std::memset(last, 0, sizeof last);
  take(last, lanes);
  std::memcpy(sum, lanes, 32);
}

}  // namespace flyweight
