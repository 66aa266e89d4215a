// Encoders of GGUF's blocks: every target and thread count gives the scalar twin's bytes, a block's bytes do not depend
// on its neighbours, and buffers are exact, so that AddressSanitizer sees a read or write beyond a row.
#include "check.h"

namespace {

using namespace flyweight;
using Bytes = std::vector<uint8_t>;

Bytes encode(const Kernels& kernels, int threads, BlockKind kind, const Floats& x, const Floats& w, int64_t k) {
  EncodeJob job;
  job.x = x.data(), job.kind = kind, job.k = k, job.rows = static_cast<int64_t>(x.size()) / k;
  job.importance = w.empty() ? nullptr : w.data();
  Bytes out(static_cast<size_t>(job.rows * (k / block_length(kind)) * block_bytes(kind)));
  job.out = out.data();
  Pool pool(threads);
  kernels.encode->encode(pool, job);
  return out;
}

void check_kind(BlockKind kind) {
  const int number = static_cast<int>(kind);
  const int64_t k = 3 * block_length(kind), rows = 7;
  std::mt19937 random(11);
  Floats x = normal(random, rows * k, 0.05f), w = normal(random, k);
  for (float& v : w) v *= v;
  for (int64_t i = 0; i < block_length(kind); ++i) x[static_cast<size_t>(i)] = 0.0f;      // a block of zeros,
  for (int64_t i = 0; i < block_length(kind); ++i) x[static_cast<size_t>(k + i)] = 0.7f;  // of equal values,
  for (int64_t i = 0; i < block_length(kind); ++i) x[static_cast<size_t>(2 * k + i)] *= 1e-38f;  // of next to nothing
  for (const Floats& weights : {w, Floats{}}) {
    const Bytes want = encode(scalar_twin(), 1, kind, x, weights, k);
    each_target([&](const Kernels& target) {
      for (int threads : {1, 3})
        CHECK(same_bits(encode(target, threads, kind, x, weights, k), want), "type %d on %s", number, target.isa);
    });
    const size_t row = want.size() / static_cast<size_t>(rows);
    for (int64_t r = 0; r < rows; ++r) {
      const Floats alone(x.begin() + r * k, x.begin() + (r + 1) * k);
      const Bytes got = encode(scalar_twin(), 1, kind, alone, weights, k);
      CHECK(std::memcmp(got.data(), want.data() + row * static_cast<size_t>(r), row) == 0, "row alone, type %d", number);
    }
  }
}

}  // namespace

int main() {
  for (int kind = 0; kind <= static_cast<int>(BlockKind::iq4_xs); ++kind) check_kind(static_cast<BlockKind>(kind));
  std::puts("encode: ok");
}
