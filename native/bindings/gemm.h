// What the bindings of products share: `Tiles` owns a packed matrix, `Panels` the working memory of one call.
#pragma once

#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "bindings.h"
#include "pages.h"

namespace flyweight {

constexpr const char* kKindNames[] = {"f32",   "f16",    "bf16",  "q8_0",  "q4_0", "q4_1", "q5_0", "q5_1",   "iq4_nl",
                                      "mxfp4", "nvfp4",  "q2_k",  "q3_k",  "q4_k", "q5_k", "q6_k", "iq4_xs", "int8_k",
                                      "u2",    "u3",     "u4",    "u8",    "s4",   "s8",   "nf4",  "fp4",    "e4m3",
                                      "e5m2"};
static_assert(std::size(kKindNames) == kKinds);

// A kind with its form, as ops/grouped.py's name_kind writes it; `parse_kind` raises ValueError.
Kind parse_kind(const std::string& name);
std::string name_kind(Kind kind);

struct Tiles {
  Kind kind;
  int64_t n, k;
  Arena::Piece memory;
};

// Grows, never shrinks; one call at a time.
struct Panels {
  std::mutex busy;
  Pages pages;
  uint8_t* at_least(int64_t size) {
    if (static_cast<int64_t>(pages.size()) < size) pages = Pages(round_up(static_cast<size_t>(size), kHugePage));
    return pages.data();
  }
};

// Whether products in bf16 read the weight's tiles themselves.
inline bool opens_to_bf16(Kind kind) { return base_of(kind) == Kind::bf16 || of_floats(kind); }

constexpr int kOpened = 3;  // of the modes below

inline void require_mode(const Engine& engine, int mode) {
  require(mode != kOpened || engine.kernels->gemm->opens_pairs, "this instruction set does not open weights to bf16");
}

// What a product multiplies with: `mode` as Python gives it, 0 f32, 1 bf16, 2 int8, 3 bf16 with weights opened to bf16.
template <class Product>
void set_mode(Product& product, Kind kind, int mode) {
  require(mode >= 0 && mode <= kOpened && (mode < static_cast<int>(Mode::i8) || grouped(kind)), "mode does not fit");
  product.kind = kind;
  product.round_bf16 = mode == static_cast<int>(Mode::bf16) || mode == kOpened;
  const bool opened = mode == kOpened || opens_to_bf16(kind);
  product.mode = !product.round_bf16 ? static_cast<Mode>(mode) : opened ? Mode::bf16 : Mode::f32;
}

}  // namespace flyweight
