// Python entry points of moe.cpp and experts.cpp: routing, a mixture's experts, and heads with a matrix each.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "borrowed.h"

namespace flyweight {
namespace {

using Weights = nb::typed<nb::sequence, nb::object>;
using Ints = In<int32_t, Mat>;
using Weighed = std::tuple<Out<int32_t>, Out<float>>;
// top, scoring, normalise, scale, groups, kept, judges: flyweight.spec.RouteSpec.
using Rule = std::tuple<int64_t, Scoring, bool, double, int64_t, int64_t, int64_t>;

Weighed route(Engine& e, In<float, Mat> logits, std::optional<In<float, Vec>> bias, const Rule& rule) {
  const auto [top, scoring, normalise, scale, groups, kept, judges] = rule;
  const int64_t experts = extent(logits, 1);
  require(experts <= kMostExperts, "route: at most 1024 experts");
  require(top >= 1 && top <= experts, "route: experts chosen must be 1 to all of them");
  require(groups >= 1 && experts % groups == 0, "route: experts must lie in equal groups");
  require(kept >= 1 && kept <= groups, "route: groups kept must be 1 to all of them");
  require(judges >= 1 && judges <= experts / groups, "route: a group is judged by 1 to all of its experts");
  require(!bias || extent(*bias, 0) == experts, "route: the bias must have a number an expert");
  Out<int32_t> ids = fresh<int32_t>({logits.shape(0), static_cast<size_t>(top)});
  Out<float> weights = fresh<float>({logits.shape(0), static_cast<size_t>(top)});
  RouteArgs args{logits.data(), bias ? bias->data() : nullptr, ids.data(), weights.data(), extent(logits, 0), experts,
                 top,           scoring,                       normalise,  scale,          groups,            kept,
                 judges};
  const Computing computing;
  e.kernels->moe->route(e.pool, args);
  return {ids, weights};
}

int64_t rows_of(const Parts& parts) {
  int64_t rows = 0;
  for (const Matrix& part : parts) rows += part.n;
  return rows;
}

Out<float> experts_of(Engine& e, Panels& panels, In<float, Mat> x, Ints ids, In<float, Mat> weights,
                      const std::tuple<Weights, Weights>& matrices, GatedAct act, const Modes& modes) {
  const auto& [up, down] = matrices;
  for (const int mode : modes) require_mode(e, mode);
  require(same_shape(ids, weights) && ids.shape(0) == x.shape(0), "experts: ids and weights must be [T, k] of x [T, H]");
  require(ids.shape(1) > 0, "experts: a token needs an expert");
  const auto count = static_cast<int64_t>(nb::len(up));
  require(static_cast<int64_t>(nb::len(down)) == count, "experts: up and down must have a matrix an expert");
  Out<float> out = fresh<float>({x.shape(0), x.shape(1)});
  if (x.shape(0) == 0) return out;
  ExpertsArgs args{x.data(), ids.data(), weights.data(), out.data(), extent(x, 0), extent(ids, 1), extent(x, 1), 0, act};
  std::vector<Expert> all(static_cast<size_t>(count));
  Borrowed borrowed;
  for (int64_t i = 0; i < args.tokens * args.top; ++i) {
    const int32_t id = ids.data()[i];
    require(id >= 0 && id < count, "experts: an id beyond the experts");
    Expert& expert = all[static_cast<size_t>(id)];
    if (!expert.up.empty()) continue;
    expert.up = borrowed.parts(up[id], modes, 2 * args.inner, args.hidden);
    require(rows_of(expert.up) % 2 == 0, "experts: up must have the rows of gate and up");
    args.inner = rows_of(expert.up) / 2;
    expert.down = borrowed.parts(down[id], modes, args.hidden, args.inner);
  }
  const Computing computing;
  const ExpertsPlan plan = plan_experts(args, all);
  const std::lock_guard<std::mutex> lock(panels.busy);
  experts(e.pool, *e.kernels, args, all, plan, panels.at_least(experts_bytes(args, plan)));
  return out;
}

Out<float> linear_heads_of(Engine& e, Panels& panels, In<float, Cube> x, const Weights& weights,
                           const Modes& modes) {
  require(nb::len(weights) == x.shape(1) && x.shape(1) > 0, "linear_heads: one weight a head is needed");
  for (const int mode : modes) require_mode(e, mode);
  HeadsArgs args{x.data(), nullptr, extent(x, 0), extent(x, 2), 0};
  std::vector<Parts> heads;
  Borrowed borrowed;
  for (nb::handle weight : weights) {
    heads.push_back(borrowed.parts(weight, modes, args.n, args.k));
    args.n = rows_of(heads.back());
  }
  Out<float> out = fresh<float>({x.shape(0), x.shape(1), static_cast<size_t>(args.n)});
  if (args.tokens == 0) return out;
  args.out = out.data();
  const Computing computing;
  const std::lock_guard<std::mutex> lock(panels.busy);
  linear_heads(e.pool, *e.kernels, args, heads, panels.at_least(heads_bytes(args, heads)));
  return out;
}

}  // namespace

void bind_moe(nb::module_& m) {
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  nb::enum_<Scoring>(m, "Scoring")
      .value("softmax", Scoring::softmax)
      .value("chosen", Scoring::chosen)
      .value("sigmoid", Scoring::sigmoid);
  m.def("route", &route, nb::arg("pool"), array("logits"), array("bias").none(), nb::arg("rule"),
        "ids and weights [T, top]; rule: top, scoring, normalise, scale, groups, kept, judges.");
  m.def("experts", &experts_of, nb::arg("pool"), nb::arg("panels"), array("x"), array("ids"), array("weights"),
        nb::arg("matrices"), nb::arg("act"), nb::arg("modes"),
        "Each token's weighted sum of its experts; matrices: up and down, a weight an expert; modes: one a kind.");
  m.def("linear_heads", &linear_heads_of, nb::arg("pool"), nb::arg("panels"), array("x"), nb::arg("weights"),
        nb::arg("modes"), "out[:, h] = x[:, h] through weight h.");
}

}  // namespace flyweight
