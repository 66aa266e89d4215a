// Weights as Python has them, read for calls that take many: pointers for the kernels, and what keeps them alive.
#pragma once

#include <vector>

#include "../experts.h"
#include "gemm.h"

namespace flyweight {

using Modes = std::vector<int>;  // by kind, as `kinds` names them

// What a call reads of Python's weights, and what keeps it alive while the interpreter is free for others.
struct Borrowed {
  std::vector<nb::object> held;

  // `weight` is a PackedWeight or a tuple of them: parts side by side of [rows, columns], rows 0 for any number.
  Parts parts(nb::handle weight, const Modes& modes, int64_t rows, int64_t columns) {
    Parts out;
    if (nb::isinstance<nb::tuple>(weight)) {
      for (nb::handle part : nb::borrow<nb::tuple>(weight)) out.push_back(matrix(part, modes));
    } else {
      out.push_back(matrix(weight, modes));
    }
    int64_t found = 0;
    for (const Matrix& part : out) {
      require(part.k == columns, "a weight does not have the columns of what it is multiplied with");
      found += part.n;
    }
    require(found == rows || (rows == 0 && found > 0), "a weight does not have the rows that are needed");
    return out;
  }

 private:
  Matrix matrix(nb::handle weight, const Modes& modes) {
    held.push_back(nb::borrow(weight));
    const nb::object tiles = weight.attr("tiles"), bias = weight.attr("bias");
    require(nb::isinstance<Tiles>(tiles), "a weight of another backend");
    const Tiles& packed = nb::cast<const Tiles&>(tiles);
    require(modes.size() == std::size(kKindNames), "one mode a kind is needed");
    Matrix out;
    out.tiles = packed.memory.data, out.n = packed.n, out.k = packed.k;
    set_mode(out, packed.kind, modes[static_cast<size_t>(base_of(packed.kind))]);
    if (!bias.is_none()) {
      const auto values = nb::cast<In<float, Vec>>(bias, false);
      require(extent(values, 0) == packed.n, "bias does not have the weight's rows");
      out.bias = values.data();
    }
    return out;
  }
};

}  // namespace flyweight
