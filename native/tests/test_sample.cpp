// `sample` on every target and several thread counts gives the scalar twin's answers, for every way of drawing, with
// ties, bans, NaN and infinities among the logits; a row alone gives what it gives in company.
#include <algorithm>
#include <cmath>
#include <memory>

#include "check.h"

namespace {

using namespace flyweight;

using Ints = std::vector<int32_t>;

constexpr int64_t kWidth = 20;

struct Batch {
  int64_t rows, vocab;
  Floats logits, temperature, top_p, min_p, penalties, bias_values;
  Ints top_k, choice, position, prompt, history, history_starts{0}, bias_ids, bias_starts{0}, banned, banned_starts{0};
  Ints allowed, allowed_starts{0}, repeats, repeat_starts{0}, given, logprobs;
  Floats repeat_values;
  std::vector<uint64_t> seed;
  std::vector<std::vector<uint32_t>> masks;  // empty where every id may be drawn
};

template <class T>
T one_of(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

void add_ids(std::mt19937& random, Ints& ids, Ints& starts, int64_t vocab, uint32_t most) {
  for (auto n = random() % 3 == 0 ? random() % most : 0; n > 0; --n)
    ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
  starts.push_back(static_cast<int32_t>(ids.size()));
}

void add_row(std::mt19937& random, Batch& b) {
  Floats row = normal(random, b.vocab, one_of(random, {0.1f, 3.0f, 30.0f}));
  const auto spice = random() % 6;
  for (float& x : row) {
    if (spice == 0) x = std::round(x);
    if (spice == 1 && random() % 3 == 0) x = -INFINITY;
    if (spice == 2 && random() % 9 == 0) x = NAN;
    if (spice == 3) x = 1.5f;
  }
  if (spice == 4) row[random() % row.size()] = INFINITY;
  if (spice == 5 && random() % 4 == 0) std::fill(row.begin(), row.end(), random() % 2 == 0 ? NAN : -INFINITY);
  b.logits.insert(b.logits.end(), row.begin(), row.end());
  b.temperature.push_back(one_of(random, {0.0f, 1e-30f, 0.01f, 1.0f, 1.0f, 1e20f}));
  b.top_p.push_back(one_of(random, {1.0f, 1e-6f, 0.5f, 0.95f}));
  b.min_p.push_back(one_of(random, {0.0f, 0.0f, 0.05f, 1.0f}));
  b.top_k.push_back(one_of(random, {0, 0, 1, 40, 64, 65, 2000000000}));
  b.seed.push_back(random());
  b.choice.push_back(static_cast<int32_t>(random() % 100));
  b.position.push_back(static_cast<int32_t>(random() % 1000));
  const bool penalised = random() % 2 == 0;
  for (int i = 0; i < 3; ++i) b.penalties.push_back(penalised ? one_of(random, {1.3f, 0.5f}) : i == 0 ? 1.0f : 0.0f);
  add_ids(random, b.history, b.history_starts, b.vocab, 900);
  b.prompt.push_back(static_cast<int32_t>(random() % 500));
  add_ids(random, b.bias_ids, b.bias_starts, b.vocab, 8);
  b.bias_values = Floats(b.bias_ids.size(), 2.5f);
  add_ids(random, b.banned, b.banned_starts, b.vocab, 5);
  add_ids(random, b.allowed, b.allowed_starts, b.vocab, static_cast<uint32_t>(std::min<int64_t>(b.vocab, 30)));
  add_ids(random, b.repeats, b.repeat_starts, b.vocab, 9);
  b.repeat_values = Floats(b.repeats.size(), 1.25f);
  std::vector<uint32_t> mask(random() % 3 == 0 ? static_cast<size_t>((b.vocab + 31) / 32) : 0);
  for (uint32_t& word : mask) word = one_of(random, {0u, ~0u, static_cast<uint32_t>(random())});
  b.masks.push_back(mask);
  const auto token = static_cast<int32_t>(random() % static_cast<uint32_t>(b.vocab));
  b.given.push_back(random() % 8 == 0 ? token : -1);
  b.logprobs.push_back(one_of(random, {-1, 0, 5, static_cast<int32_t>(kWidth)}));
}

struct Answers {
  Ints tokens, ranks, top_ids;
  Floats logprobs, top;
};

Answers run(const Kernels& kernels, int threads, const Batch& b) {
  const auto rows = static_cast<size_t>(b.rows), cells = rows * kWidth;
  Answers a{Ints(rows), Ints(rows), Ints(cells), Floats(rows), Floats(cells)};
  SampleJob job;
  job.rows = b.rows, job.vocab = b.vocab, job.width = kWidth;
  job.logits = b.logits.data(), job.temperature = b.temperature.data(), job.top_p = b.top_p.data();
  job.min_p = b.min_p.data(), job.top_k = b.top_k.data(), job.choice = b.choice.data();
  job.position = b.position.data(), job.seed = b.seed.data(), job.penalties = b.penalties.data();
  job.prompt = b.prompt.data(), job.history = b.history.data(), job.history_starts = b.history_starts.data();
  job.bias_ids = b.bias_ids.data(), job.bias_starts = b.bias_starts.data(), job.bias_values = b.bias_values.data();
  job.banned_ids = b.banned.data(), job.banned_starts = b.banned_starts.data(), job.logprobs = b.logprobs.data();
  job.allowed_ids = b.allowed.data(), job.allowed_starts = b.allowed_starts.data(), job.given = b.given.data();
  job.repeat_ids = b.repeats.data(), job.repeat_starts = b.repeat_starts.data();
  job.repeat_values = b.repeat_values.data();
  std::vector<const uint32_t*> masks;
  for (const auto& mask : b.masks) masks.push_back(mask.empty() ? nullptr : mask.data());
  job.masks = masks.data();
  for (size_t r = 0; r < rows; ++r)
    job.longest_history = std::max<int64_t>(job.longest_history, b.history_starts[r + 1] - b.history_starts[r]);
  job.tokens = a.tokens.data(), job.ranks = a.ranks.data(), job.top_ids = a.top_ids.data();
  job.out_logprobs = a.logprobs.data(), job.top_logprobs = a.top.data();
  Pool pool(threads);
  const auto bytes = static_cast<size_t>(kernels.sample->scratch(job, threads));
  const std::unique_ptr<uint8_t, decltype(&std::free)> scratch(
      static_cast<uint8_t*>(std::aligned_alloc(64, bytes)), &std::free);
  std::memset(scratch.get(), 0xFF, bytes);  // nothing may be read before it is written
  job.scratch = scratch.get();
  kernels.sample->sample(pool, job);
  return a;
}

// Equal bits, any NaN equal to any.
bool same_floats(const Floats& a, const Floats& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])))) return false;
  return true;
}

void compare(const Answers& got, const Answers& want, const char* isa, int threads, const Batch& b) {
  const int vocab = static_cast<int>(b.vocab);
  CHECK(got.tokens == want.tokens, "tokens on %s, %d threads, vocabulary %d", isa, threads, vocab);
  CHECK(got.ranks == want.ranks, "ranks on %s, %d threads, vocabulary %d", isa, threads, vocab);
  CHECK(got.top_ids == want.top_ids, "top ids on %s, %d threads, vocabulary %d", isa, threads, vocab);
  CHECK(same_floats(got.logprobs, want.logprobs), "logprobs on %s, vocabulary %d", isa, vocab);
  CHECK(same_floats(got.top, want.top), "top logprobs on %s, vocabulary %d", isa, vocab);
  for (size_t r = 0; r < b.given.size(); ++r) CHECK(b.given[r] < 0 || got.tokens[r] == b.given[r], "given, row %zu", r);
  for (const int32_t token : got.tokens) CHECK(token >= 0 && token < vocab, "token %d of %d", token, vocab);
}

Batch batch(std::mt19937& random, int64_t rows, int64_t vocab) {
  Batch b{};
  b.rows = rows, b.vocab = vocab;
  b.history_starts = b.bias_starts = b.banned_starts = b.allowed_starts = b.repeat_starts = {0};
  for (int64_t r = 0; r < rows; ++r) add_row(random, b);
  return b;
}

}  // namespace

int main() {
  std::mt19937 random(3);
  for (const int64_t vocab : {1, 2, 15, 16, 33, 64, 65, 500, 16384, 16400, 40000}) {
    const Batch b = batch(random, vocab > 10000 ? 21 : 60, vocab);
    const Answers want = run(scalar_twin(), 1, b);
    compare(run(scalar_twin(), 3, b), want, "scalar", 3, b);
    each_target([&](const Kernels& kernels) {
      for (const int threads : {1, 4}) compare(run(kernels, threads, b), want, kernels.isa, threads, b);
    });
  }
  std::puts("sample: ok");
}
