// Python entry points of elementwise.cpp.
#include "bindings.h"

namespace flyweight {
namespace {

using Rows = In<float, Mat>;

Out<float> norm(Engine& e, Rows x, In<float, Vec> w, float eps) {
  require(w.shape(0) == x.shape(1), "norm: the weight's length is not the row's");
  Out<float> out = fresh<float>({x.shape(0), x.shape(1)});
  const Computing computing;
  e.kernels->elementwise->norm(e.pool, x.data(), w.data(), out.data(), extent(x, 0), extent(x, 1), eps);
  return out;
}

Out<float> add_norm(Engine& e, Rows x, InOut<float, Mat> residual, In<float, Vec> w, float eps) {
  require(w.shape(0) == x.shape(1), "add_norm: the weight's length is not the row's");
  require(same_shape(x, residual), "add_norm: x and residual differ in shape");
  Out<float> out = fresh<float>({x.shape(0), x.shape(1)});
  const Computing computing;
  e.kernels->elementwise->add_norm(e.pool, x.data(), residual.data(), w.data(), out.data(), extent(x, 0), extent(x, 1),
                                   eps);
  return out;
}

Out<float> act(Engine& e, Rows x, Act kind) {
  require(x.shape(1) % 2 == 0, "act: rows hold gate and up, so their length must be even");
  const size_t inner = x.shape(1) / 2;
  Out<float> out = fresh<float>({x.shape(0), inner});
  const Computing computing;
  e.kernels->elementwise->act(e.pool, x.data(), out.data(), extent(x, 0), static_cast<int64_t>(inner), kind);
  return out;
}

void add(Engine& e, Rows x, InOut<float, Mat> residual) {
  require(same_shape(x, residual), "add: x and residual differ in shape");
  const Computing computing;
  e.kernels->elementwise->add(e.pool, x.data(), residual.data(), extent(x, 0) * extent(x, 1));
}

Out<float> take(Engine& e, Rows x, In<int32_t, Vec> rows) {
  for (size_t r = 0; r < rows.shape(0); ++r)
    require(rows.data()[r] >= 0 && rows.data()[r] < extent(x, 0), "take: a row number is out of range");
  Out<float> out = fresh<float>({rows.shape(0), x.shape(1)});
  const Computing computing;
  e.kernels->elementwise->take(e.pool, x.data(), rows.data(), out.data(), extent(rows, 0), extent(x, 1));
  return out;
}

}  // namespace

void bind_elementwise(nb::module_& m) {
  nb::enum_<Act>(m, "Act").value("silu", Act::silu).value("gelu", Act::gelu).value("gelu_tanh", Act::gelu_tanh);
  m.def("norm", &norm, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("w").noconvert(), nb::arg("eps"));
  m.def("add_norm", &add_norm, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("residual").noconvert(),
        nb::arg("w").noconvert(), nb::arg("eps"));
  m.def("act", &act, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("kind"));
  m.def("add", &add, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("residual").noconvert());
  m.def("take", &take, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("rows").noconvert());
}

}  // namespace flyweight
