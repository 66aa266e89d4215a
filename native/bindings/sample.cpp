// Python entry point of sample.cpp: checks the columns of a SampleBatch, owns the scratch and the answers.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <tuple>
#include <vector>

#include "bindings.h"

namespace flyweight {
namespace {

template <class T>
using Column = In<T, Vec>;
using Ids = Column<int32_t>;

using DrawColumns = std::tuple<Column<float>, Column<float>, Ids, Column<float>, Column<uint64_t>, Ids, Ids>;
using HistoryColumns = std::tuple<In<float, Mat>, Ids, Ids, Ids>;
using ValueColumns = std::tuple<Ids, Column<float>, Ids>;
using IdColumns = std::tuple<Ids, Ids>;
using MaskColumns = std::tuple<Ids, In<uint32_t, Mat>>;
// None where no row has any: to look at an array costs as much as to sample a small row.
template <class Columns>
using Maybe = std::optional<Columns>;
using Answers = std::tuple<Out<int32_t>, Out<float>, Out<int32_t>, Out<int32_t>, Out<float>>;

constexpr int64_t kMaxWidth = 64;  // sample_lists.h

template <class T>
const T* column(const Column<T>& array, const SampleJob& job) {
  require(extent(array, 0) == job.rows, "sample: a column's length is not the number of rows");
  return array.data();
}

// Ragged rows over `ids`: starts ascend from 0 to the end, ids lie in the vocabulary.  Returns the longest row.
int64_t check_ragged(const Ids& ids, const Ids& starts, const SampleJob& job) {
  require(extent(starts, 0) == job.rows + 1, "sample: starts must have one entry more than there are rows");
  const int32_t* at = starts.data();
  require(at[0] == 0 && at[job.rows] == extent(ids, 0), "sample: starts must run from 0 to the number of ids");
  int64_t longest = 0;
  for (int64_t r = 0; r < job.rows; ++r) {
    require(at[r] <= at[r + 1], "sample: starts must ascend");
    longest = at[r + 1] - at[r] > longest ? at[r + 1] - at[r] : longest;
  }
  for (size_t i = 0; i < ids.shape(0); ++i)
    require(ids.data()[i] >= 0 && ids.data()[i] < job.vocab, "sample: an id is outside the vocabulary");
  return longest;
}

void take_draw(SampleJob& job, const DrawColumns& c) {
  job.temperature = column(std::get<0>(c), job);
  job.top_p = column(std::get<1>(c), job);
  job.top_k = column(std::get<2>(c), job);
  job.min_p = column(std::get<3>(c), job);
  job.seed = column(std::get<4>(c), job);
  job.choice = column(std::get<5>(c), job);
  job.position = column(std::get<6>(c), job);
}

void take_history(SampleJob& job, const Maybe<HistoryColumns>& c) {
  if (!c) return;
  const auto& [penalties, prompt, ids, starts] = *c;
  require(extent(penalties, 0) == job.rows && penalties.shape(1) == 3, "sample: penalties must be [rows, 3]");
  job.penalties = penalties.data();
  job.prompt = column(prompt, job);
  for (int64_t r = 0; r < job.rows; ++r) require(job.prompt[r] >= 0, "sample: prompt must not be negative");
  job.longest_history = check_ragged(ids, starts, job);
  job.history = ids.data();
  job.history_starts = starts.data();
}

// Ids with a value each, ragged by row: the bias, the penalties on repeats.
void take_values(const SampleJob& job, const Maybe<ValueColumns>& c, const int32_t*& ids, const float*& values,
                 const int32_t*& starts) {
  if (!c) return;
  const auto& [given, numbers, from] = *c;
  check_ragged(given, from, job);
  require(numbers.shape(0) == given.shape(0), "sample: ids and their values differ in length");
  ids = given.data();
  values = numbers.data();
  starts = from.data();
}

// Ids, ragged by row, and the longest row: what is banned, what is allowed.
int64_t take_ids(const SampleJob& job, const Maybe<IdColumns>& c, const int32_t*& ids, const int32_t*& starts) {
  if (!c) return 0;
  ids = std::get<0>(*c).data();
  starts = std::get<1>(*c).data();
  return check_ragged(std::get<0>(*c), std::get<1>(*c), job);
}

// Each row's mask; null where it has none.
std::vector<const uint32_t*> mask_rows(const SampleJob& job, const Maybe<MaskColumns>& c) {
  std::vector<const uint32_t*> found(static_cast<size_t>(job.rows), nullptr);
  if (!c) return found;
  const auto& [rows, words] = *c;
  require(extent(words, 0) == extent(rows, 0), "sample: masks and their rows differ in number");
  require(extent(words, 1) == (job.vocab + 31) / 32, "sample: a mask must have a bit for each id");
  for (size_t q = 0; q < rows.shape(0); ++q) {
    const int32_t r = rows.data()[q];
    require(r >= 0 && r < job.rows, "sample: a mask is for a row that does not exist");
    found[static_cast<size_t>(r)] = words.data() + q * words.shape(1);
  }
  return found;
}

void take_given(SampleJob& job, const Ids& given) {
  job.given = column(given, job);
  for (int64_t r = 0; r < job.rows; ++r)
    require(job.given[r] >= -1 && job.given[r] < job.vocab, "sample: a given token is outside the vocabulary");
}

Answers sample(Engine& e, In<float, Mat> logits, const DrawColumns& draw, const Maybe<HistoryColumns>& history,
               const Maybe<ValueColumns>& bias, const Maybe<IdColumns>& allowed, const Maybe<IdColumns>& banned,
               const Maybe<ValueColumns>& repeats, const Maybe<MaskColumns>& masks, Ids given, Ids logprobs) {
  SampleJob job;
  job.rows = extent(logits, 0);
  job.vocab = extent(logits, 1);
  job.logits = logits.data();
  require(job.vocab > 0 && job.vocab < INT32_MAX, "sample: the vocabulary must not be empty");
  const std::vector<int32_t> nothing(static_cast<size_t>(job.rows) + 1);  // where ragged rows start that are all empty
  job.history_starts = job.bias_starts = job.allowed_starts = job.banned_starts = job.repeat_starts = nothing.data();
  take_draw(job, draw);
  take_history(job, history);
  take_values(job, bias, job.bias_ids, job.bias_values, job.bias_starts);
  require(take_ids(job, allowed, job.allowed_ids, job.allowed_starts) <= job.vocab,
          "sample: more ids are allowed than there are");
  take_ids(job, banned, job.banned_ids, job.banned_starts);
  take_values(job, repeats, job.repeat_ids, job.repeat_values, job.repeat_starts);
  const std::vector<const uint32_t*> marked = mask_rows(job, masks);
  job.masks = marked.data();
  take_given(job, given);
  job.logprobs = column(logprobs, job);
  for (int64_t r = 0; r < job.rows; ++r) job.width = job.logprobs[r] > job.width ? job.logprobs[r] : job.width;
  require(job.width <= kMaxWidth, "sample: at most 64 log-probabilities a row");

  const size_t rows = logits.shape(0), columns = static_cast<size_t>(job.width);
  Answers answers{fresh<int32_t>({rows}), fresh<float>({rows}), fresh<int32_t>({rows}),
                  fresh<int32_t>({rows, columns}), fresh<float>({rows, columns})};
  job.tokens = std::get<0>(answers).data();
  job.out_logprobs = std::get<1>(answers).data();
  job.ranks = std::get<2>(answers).data();
  job.top_ids = std::get<3>(answers).data();
  job.top_logprobs = std::get<4>(answers).data();

  const Computing computing;
  const Aligned<uint8_t> scratch(static_cast<size_t>(e.kernels->sample->scratch(job, e.pool.threads())));
  job.scratch = scratch.data();
  e.kernels->sample->sample(e.pool, job);
  return answers;
}

}  // namespace

void bind_sample(nb::module_& m) {
  const auto arrays = [](const char* name) { return nb::arg(name).noconvert(); };
  m.def("sample", &sample, nb::arg("pool"), arrays("logits"), arrays("draw"), arrays("history").none(),
        arrays("bias").none(), arrays("allowed").none(), arrays("banned").none(), arrays("repeats").none(),
        arrays("masks").none(), arrays("given"), arrays("logprobs"));
}

}  // namespace flyweight
