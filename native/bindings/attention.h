// What the bindings of attention share: `KV` is a layer's memory as kernels see it, `Scratch` what attention works in,
// and the checks of everything that indexes memory.
#pragma once

#include <nanobind/stl/optional.h>

#include <memory>
#include <mutex>
#include <optional>

#include "bindings.h"
#include "pages.h"

namespace flyweight {

using Bytes = InOut<uint8_t, Vec>;
using MaybeBytes = std::optional<Bytes>;
using MaybeFloats = std::optional<In<float, Vec>>;

struct KV {
  KVView view;
  Bytes k;  // keep the memory alive
  MaybeBytes v;
};

// Working memory of `attend` and of a stack between its kernels: grown here and never in a kernel, and kept, as fresh pages
// are cleared by the system first.  Who uses it holds `busy`, taken without the GIL.
class Scratch {
 public:
  std::mutex busy;
  void* reserve(int64_t bytes) {
    if (bytes > this->bytes()) pages_ = Pages(round_up(static_cast<size_t>(bytes), kHugePage));
    return pages_.data();
  }
  int64_t bytes() const { return static_cast<int64_t>(pages_.size()); }

 private:
  Pages pages_;
};

// Where the tokens of a batch stand, and what they may see.
struct Where {
  In<int32_t, Vec> positions, starts;
  In<int32_t, Mat> tables;
};

// These raise ValueError.
void require_slots(const In<int32_t, Vec>& slots, const KVView& kv);
void require_sequences(const Where& where, const KVView& kv, Sight sight);
HeadWeights head_weights(const MaybeFloats& w, int64_t heads, int64_t dim);

}  // namespace flyweight
