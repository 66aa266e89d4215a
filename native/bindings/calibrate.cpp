// Python entry points of gram.cpp and sweep.cpp.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <tuple>

#include "bindings.h"

namespace flyweight {
namespace {

constexpr int64_t kMostColumns = 1 << 20;  // their squares, and the scratch, are far from the end of 64 bits

void accumulate_gram(Engine& e, InOut<float, Mat> h, In<float, Mat> x) {
  require(h.shape(0) == h.shape(1) && h.shape(0) == x.shape(1), "accumulate_gram: h must be [K, K] for rows of K columns");
  require(h.shape(0) <= kMostColumns, "accumulate_gram: too many columns");
  GramJob job;
  job.h = h.data(), job.x = x.data();
  job.rows = extent(x, 0), job.k = extent(x, 1);
  const GramKernels& gram = *e.kernels->gram;
  const Aligned<float> scratch(static_cast<size_t>(gram.scratch(job, e.pool.threads())));
  job.scratch = scratch.data();
  const Computing computing;
  gram.accumulate(e.pool, job);
}

using Grouped = std::tuple<Out<uint8_t>, Out<float>, Out<uint8_t>>;

Grouped gptq_sweep(Engine& e, In<float, Mat> rows, std::optional<In<float, Mat>> factor, int64_t group, int bits,
                   bool symmetric, bool shrink) {
  SweepJob job;
  job.rows = extent(rows, 0), job.k = extent(rows, 1);
  job.group = group, job.bits = bits, job.symmetric = symmetric, job.shrink = shrink;
  require(bits >= 2 && bits <= 8, "gptq_sweep: bits must be 2 to 8");
  require(job.k <= kMostColumns, "gptq_sweep: too many columns");
  require(group >= 1 && job.k >= 1 && job.k % group == 0, "gptq_sweep: columns must be whole groups");
  require(!factor || (extent(*factor, 0) == job.k && extent(*factor, 1) == job.k),
          "gptq_sweep: the factor must be [K, K]");
  job.w = rows.data(), job.factor = factor ? factor->data() : nullptr;
  const size_t n = rows.shape(0), groups = static_cast<size_t>(job.k / group);
  Out<uint8_t> codes = fresh<uint8_t>({n, rows.shape(1)}), zeros = fresh<uint8_t>({n, groups});
  Out<float> scales = fresh<float>({n, groups});
  job.codes = codes.data(), job.scales = scales.data(), job.zeros = zeros.data();
  const SweepKernels& kernels = *e.kernels->sweep;
  const Aligned<float> scratch(static_cast<size_t>(kernels.scratch(job, e.pool.threads())));
  job.scratch = scratch.data();
  {
    const Computing computing;
    kernels.sweep(e.pool, job);
  }
  return {codes, scales, zeros};
}

}  // namespace

void bind_calibrate(nb::module_& m) {
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  m.def("accumulate_gram", &accumulate_gram, nb::arg("pool"), array("h"), array("x"),
        "Adds x^T x to a symmetric h [K, K], for rows x [T, K].");
  m.def("gptq_sweep", &gptq_sweep, nb::arg("pool"), array("rows"), array("factor").none(), nb::arg("group"),
        nb::arg("bits"), nb::arg("symmetric"), nb::arg("shrink"),
        "Codes [N, K], scales and zero points [N, K / group] of finite rows [N, K]; factor [K, K] is the upper Cholesky\n"
        "factor of the inverse Hessian, None for rounding to nearest.");
}

}  // namespace flyweight
