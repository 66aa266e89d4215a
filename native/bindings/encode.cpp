// Python entry points of encode_blocks.cpp.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bindings.h"

namespace flyweight {
namespace {

constexpr const char* kBlockNames[] = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl",
                                       "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"};

BlockKind kind_of(const std::string& name) {
  for (int i = 0; i < static_cast<int>(std::size(kBlockNames)); ++i)
    if (name == kBlockNames[i]) return static_cast<BlockKind>(i);
  throw nb::value_error(("encode_blocks: no encoder for " + name).c_str());
}

using Importance = std::optional<In<float, Vec>>;

template <class T>
Out<uint8_t> encode(Engine& e, const std::string& name, In<T, Mat> rows, Importance importance) {
  EncodeJob job;
  job.kind = kind_of(name);
  job.rows = extent(rows, 0), job.k = extent(rows, 1);
  const int64_t length = block_length(job.kind);
  require(job.k % length == 0, "encode_blocks: rows are not whole blocks");
  require(!importance || extent(*importance, 0) == job.k, "encode_blocks: importance needs one number a column");
  if constexpr (sizeof(T) == 4) {
    job.x = rows.data();
  } else {
    job.bits = rows.data();
  }
  job.importance = importance ? importance->data() : nullptr;
  Out<uint8_t> out =
      fresh<uint8_t>({rows.shape(0), static_cast<size_t>(job.k / length * block_bytes(job.kind))});
  job.out = out.data();
  const Computing computing;
  e.kernels->encode->encode(e.pool, job);
  return out;
}

}  // namespace

void bind_encode(nb::module_& m) {
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  m.def("encode_blocks", &encode<float>, nb::arg("pool"), nb::arg("kind"), array("rows"), array("importance").none(),
        "Blocks of a type of GGUF, uint8 [N, bytes], of finite float32 [N, K], or of bfloat16 bits.");
  m.def("encode_blocks", &encode<uint16_t>, nb::arg("pool"), nb::arg("kind"), array("rows"), array("importance").none());
}

}  // namespace flyweight
