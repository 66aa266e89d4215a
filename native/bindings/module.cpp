// The extension module `flyweight._native`: the pool with its target, and one bind_<area> per file next to this one.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings.h"

namespace flyweight {

void require(bool ok, const char* what) {
  if (!ok) throw nb::value_error(what);
}

namespace {

std::vector<std::string> isas() {
  const Targets found = targets();
  std::vector<std::string> names;
  for (int i = 0; i < found.count; ++i) names.emplace_back(found.list[i]->isa);
  return names;
}

const Kernels* choose(const std::string& isa) {
  const Targets found = targets();
  if (isa.empty()) return found.list[found.count - 1];
  std::string names;
  for (int i = 0; i < found.count; ++i) {
    if (isa == found.list[i]->isa) return found.list[i];
    names += (i == 0 ? "" : ", ") + std::string(found.list[i]->isa);
  }
  throw nb::value_error(("isa = '" + isa + "' cannot run on this machine; available: " + names).c_str());
}

constexpr int kMaxThreads = 1024;  // the pool counts workers inside a job in ten bits

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a model that a traceback holds at exit is no leak of ours
  m.def("isas", &isas, "Names of the instruction sets this machine can run, best last.");
  nb::class_<Engine>(m, "Pool", "Worker threads and the kernels they run; `isa` empty takes the best.")
      .def(
          "__init__",
          [](Engine* self, int threads, const std::string& isa) {
            require(threads >= 1 && threads <= kMaxThreads, "threads must be 1 to 1024");
            new (self) Engine{Pool(threads), choose(isa)};
          },
          nb::arg("threads"), nb::arg("isa") = "")
      .def_prop_ro("threads", [](const Engine& e) { return e.pool.threads(); })
      .def_prop_ro("isa", [](const Engine& e) { return e.kernels->isa; })
      .def_prop_ro("opens_pairs", [](const Engine& e) { return e.kernels->gemm->opens_pairs; },
                   "Whether products in bf16 open grouped weights to bf16.");
  bind_attention(m);
  bind_calibrate(m);
  bind_elementwise(m);
  bind_encode(m);
  bind_gemm(m);
  bind_moe(m);
  bind_sample(m);
  bind_stack(m);
  bind_text(m);
}

}  // namespace flyweight
