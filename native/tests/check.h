// What the C++ tests share: a check that names the place, random numbers, and every target this machine can run.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "../kernels.h"

// Ends the test with the place and the words when `ok` is false.
#define CHECK(ok, ...) \
  do { \
    if (!(ok)) { \
      std::printf("%s:%d: CHECK(%s) failed: ", __FILE__, __LINE__, #ok); \
      std::printf(__VA_ARGS__); \
      std::printf("\n"); \
      std::exit(1); \
    } \
  } while (false)

namespace flyweight {

using Floats = std::vector<float>;

inline Floats normal(std::mt19937& random, int64_t n, float scale = 1.0f) {
  std::normal_distribution<float> draw(0.0f, scale);
  Floats out(static_cast<size_t>(n));
  for (float& x : out) x = draw(random);
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// f(kernels) for every target but the scalar one, which is the twin to compare with.
template <class F>
void each_target(F f) {
  const Targets found = targets();
  for (int i = 1; i < found.count; ++i) f(*found.list[i]);
}
inline const Kernels& scalar_twin() { return *targets().list[0]; }

}  // namespace flyweight
