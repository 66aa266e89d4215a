// AMX: the shapes of tile registers, and what is done with them.  Included by files compiled for the target `amx`.
//
// Permission to use the registers was requested when the target was chosen (dispatch.cpp).  What loads shapes releases
// the registers when done, so that switching threads costs what it did before.  Instructions are written out because GCC's
// own macros do not tell the compiler that a load reads memory; an unsized array as operand says "from here on", where a
// clobber of all memory would keep accumulators out of registers.
#pragma once

#include <cstdint>

#include "simd.h"

namespace flyweight::FW_ISA {

constexpr int kTileRows = 16;  // of a register, 64 bytes each

// The operand of ldtilecfg (Intel, Architecture Instruction Set Extensions, chapter 3).
class TileShapes {
 public:
  void set(int tile, int64_t rows, int64_t bytes) {
    row_bytes_[tile] = static_cast<uint16_t>(bytes);
    rows_[tile] = static_cast<uint8_t>(rows);
  }
  void load() const { asm volatile("ldtilecfg %0" ::"m"(*this)); }
  static void release() { asm volatile("tilerelease"); }

 private:
  alignas(64) uint8_t palette_ = 1;
  uint8_t start_row_ = 0;
  uint8_t reserved_[14] = {};
  uint16_t row_bytes_[16] = {};
  uint8_t rows_[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

template <int Tile>
FW_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
// Rows lie `stride` bytes apart.
template <int Tile>
FW_INLINE void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile), "m"(*static_cast<const char(*)[]>(from)));
}
// The same of what is not read again soon: a hint not to displace what is in L1.
template <int Tile>
FW_INLINE void tile_load_once(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile), "m"(*static_cast<const char(*)[]>(from)));
}
template <int Tile>
FW_INLINE void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c3, (%1,%2,1)"
               : "=m"(*static_cast<char(*)[]>(to))
               : "r"(to), "r"(stride), "i"(Tile));
}
// Has the compiler compute a value here: it may not leave it until after the next tile instruction.
FW_INLINE void settle(F32x16& value) { asm volatile("" : "+v"(value.v)); }
// Sum += A B: A [rows, K], B [K/4 or K/2, 16, 4 or 2].
template <int Sum, int A, int B>
FW_INLINE void tile_dot_i8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
}
template <int Sum, int A, int B>
FW_INLINE void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
}

}  // namespace flyweight::FW_ISA
