// Python entry points of elementwise.cpp.
#include <nanobind/stl/optional.h>

#include <optional>

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

Out<float> layer_norm(Engine& e, Rows x, In<float, Vec> w, std::optional<In<float, Vec>> b, float eps) {
  require(w.shape(0) == x.shape(1), "layer_norm: the weight's length is not the row's");
  require(!b || b->shape(0) == x.shape(1), "layer_norm: the bias's length is not the row's");
  Out<float> out = fresh<float>({x.shape(0), x.shape(1)});
  const Computing computing;
  e.kernels->elementwise->layer_norm(e.pool, x.data(), w.data(), b ? b->data() : nullptr, out.data(), extent(x, 0),
                                     extent(x, 1), eps);
  return out;
}

Out<float> act(Engine& e, Rows x, GatedAct kind) {
  require(x.shape(1) % 2 == 0, "act: rows hold gate and up, so their length must be even");
  const size_t inner = x.shape(1) / 2;
  Out<float> out = fresh<float>({x.shape(0), inner});
  const Computing computing;
  e.kernels->elementwise->act(e.pool, x.data(), out.data(), extent(x, 0), static_cast<int64_t>(inner), kind);
  return out;
}

Out<float> activate(Engine& e, Rows x, PlainAct kind) {
  Out<float> out = fresh<float>({x.shape(0), x.shape(1)});
  const Computing computing;
  e.kernels->elementwise->activate(e.pool, x.data(), out.data(), extent(x, 0) * extent(x, 1), kind);
  return out;
}

void scale(Engine& e, InOut<float, Mat> x, float by) {
  const Computing computing;
  e.kernels->elementwise->scale(e.pool, x.data(), extent(x, 0) * extent(x, 1), by);
}

void softcap(Engine& e, InOut<float, Mat> x, float cap) {
  require(cap > 0, "softcap: the cap must be above 0");
  const Computing computing;
  e.kernels->elementwise->softcap(e.pool, x.data(), extent(x, 0) * extent(x, 1), cap);
}

void gate(Engine& e, InOut<float, Mat> x, Rows logits) {
  require(logits.shape(0) == x.shape(0) && logits.shape(1) == 1, "gate: logits must be one number a row");
  const Computing computing;
  e.kernels->elementwise->gate(e.pool, x.data(), logits.data(), extent(x, 0), extent(x, 1));
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
  nb::enum_<GatedAct>(m, "GatedAct")
      .value("silu", GatedAct::silu)
      .value("gelu", GatedAct::gelu)
      .value("gelu_tanh", GatedAct::gelu_tanh)
      .value("swiglu_clamped", GatedAct::swiglu_clamped);
  nb::enum_<PlainAct>(m, "PlainAct")
      .value("silu", PlainAct::silu)
      .value("gelu", PlainAct::gelu)
      .value("gelu_tanh", PlainAct::gelu_tanh)
      .value("relu", PlainAct::relu);
  m.def("norm", &norm, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("w").noconvert(), nb::arg("eps"));
  m.def("add_norm", &add_norm, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("residual").noconvert(),
        nb::arg("w").noconvert(), nb::arg("eps"));
  m.def("layer_norm", &layer_norm, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("w").noconvert(),
        nb::arg("b").noconvert().none(), nb::arg("eps"));
  m.def("act", &act, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("kind"));
  m.def("add", &add, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("residual").noconvert());
  m.def("activate", &activate, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("kind"));
  m.def("scale", &scale, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("by"));
  m.def("softcap", &softcap, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("cap"));
  m.def("gate", &gate, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("logits").noconvert());
  m.def("take", &take, nb::arg("pool"), nb::arg("x").noconvert(), nb::arg("rows").noconvert());
}

}  // namespace flyweight
