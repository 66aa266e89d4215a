// Tokens for a batch of logits rows, by the order of docs/ops.md; equal to the NumPy reference draw for draw.
//
// A row is cut into segments of fixed length; segments are the pool's chunks, and what they found is joined in the
// order of their ids, so threads and other rows never change a bit.  Greedy rows and rows whose token is given cost one
// pass; top_k <= 64 one pass with a short list; everything else one more pass into a histogram (sample_ladder.h).  NaN
// logits count as banned.
#include "exp64.h"
#include "kernels.h"
#include "sample_ladder.h"
#include "sample_lists.h"
#include "simd.h"

namespace flyweight::FW_ISA {
namespace {

constexpr int64_t kSegment = 16384;  // 64 KiB of logits: some 4 us a pass, and a row of 152k still feeds 10 threads
constexpr float kSharpest = 1e30f;   // so that the best logit's distance, 0, stays 0
constexpr int64_t kWave = 16;        // rows worked on together; bounds the scratch

// What one pass over one segment found.
struct Segment {
  float top, raw_top;
  int32_t best;  // first id of the largest logit
  double raw_total;
  int64_t before;  // ids ranked before the token
  Best list, raw_list;
};

enum class Draw { greedy, listed, laddered };

struct Row {
  const float* raw;
  Odds odds;  // odds.x is `raw`, or the adjusted copy
  Draw draw;
  bool wants;  // log-probabilities
  int32_t best, token;
  float raw_top;
  double raw_total;
};

inline int64_t segments_of(int64_t vocab) { return (vocab + kSegment - 1) / kSegment; }

// kWave rows, their segments with histograms, their adjusted copies, and two entry lists for each worker.
struct Scratch {
  Row* rows;
  Segment* segments;
  Histogram* histograms;
  float* adjusted;
  Entry* entries;
  int64_t list;  // entries of one list
};

// Takes the next `count` elements of a buffer; with none, only counts the bytes.
template <class T>
T* carve(uint8_t* buffer, int64_t& used, int64_t count) {
  T* const here = buffer == nullptr ? nullptr : reinterpret_cast<T*>(buffer + used);
  used += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  return here;
}

Scratch carve_scratch(const SampleJob& job, int threads, int64_t& used) {
  const int64_t rows = job.rows < kWave ? job.rows : kWave, segments = rows * segments_of(job.vocab);
  Scratch s{};
  s.list = job.vocab > job.longest_history ? job.vocab : job.longest_history;
  s.rows = carve<Row>(job.scratch, used, rows);
  s.segments = carve<Segment>(job.scratch, used, segments);
  s.histograms = carve<Histogram>(job.scratch, used, segments);
  s.adjusted = carve<float>(job.scratch, used, rows * job.vocab);
  s.entries = carve<Entry>(job.scratch, used, threads * s.list * 2);
  return s;
}

// --- the draw's number -------------------------------------------------------------------------------------------

uint64_t mix(uint64_t z) {  // splitmix64's finaliser (Steele et al., 2014)
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double uniform(uint64_t seed, int32_t choice, int32_t position) {
  uint64_t h = mix(seed + 0x9E3779B97F4A7C15u);
  h = mix(h ^ static_cast<uint64_t>(choice) * 0xD1B54A32D192ED03u);
  h = mix(h ^ static_cast<uint64_t>(position) * 0x8CB92BA72F3D8DD7u);
  return static_cast<double>(h >> 11) * 0x1p-53;
}

// --- bias, lists, bans, penalties --------------------------------------------------------------------------------

struct Span {
  const int32_t* data;
  int64_t size;
};
Span span(const int32_t* ids, const int32_t* starts, int64_t row) {
  return {ids + starts[row], starts[row + 1] - starts[row]};
}

// Calls f(id, times) for each distinct id.
template <class F>
void each_distinct(Span ids, Entry* list, Entry* other, F f) {
  for (int64_t i = 0; i < ids.size; ++i) list[i] = {0.0f, ids.data[i]};
  sort_entries<id_key>(list, other, ids.size);
  for (int64_t i = 0, next; i < ids.size; i = next) {
    for (next = i + 1; next < ids.size && list[next].id == list[i].id;) ++next;
    f(list[i].id, next - i);
  }
}

// Bans every id that is not among those allowed.
void keep_only(Span allowed, float* x, int64_t vocab, Entry* list) {
  for (int64_t i = 0; i < allowed.size; ++i) list[i] = {x[allowed.data[i]], allowed.data[i]};
  for (int64_t i = 0; i < vocab; ++i) x[i] = -INFINITY;
  for (int64_t i = 0; i < allowed.size; ++i) x[list[i].id] = list[i].x;
}

// Bans every id whose bit is 0.  Nearly every word of a grammar's mask is all of one kind.
void keep_marked(const uint32_t* words, float* x, int64_t vocab) {
  for (int64_t first = 0; first < vocab; first += 32) {
    const uint32_t word = words[first / 32];
    if (word == ~0u) continue;
    const int64_t size = vocab - first < 32 ? vocab - first : 32;
    for (int64_t i = 0; i < size; ++i) x[first + i] = (word >> i & 1) != 0 ? x[first + i] : -INFINITY;
  }
}

// Penalties on tokens there have been.
void penalise(const SampleJob& job, int64_t r, float* x, Entry* list, Entry* other) {
  const Span history = span(job.history, job.history_starts, r);
  if (history.size == 0) return;
  const float repetition = job.penalties[3 * r], presence = job.penalties[3 * r + 1];
  const float frequency = job.penalties[3 * r + 2];
  if (repetition != 1.0f)
    each_distinct(history, list, other, [&](int32_t id, int64_t) {
      x[id] = x[id] > 0.0f ? x[id] / repetition : x[id] * repetition;
    });
  const int64_t prompt = job.prompt[r] < history.size ? job.prompt[r] : history.size;
  if (presence != 0.0f || frequency != 0.0f)
    each_distinct({history.data + prompt, history.size - prompt}, list, other, [&](int32_t id, int64_t times) {
      x[id] -= frequency * static_cast<float>(times);
      x[id] -= presence;
    });
}

void adjust_row(const SampleJob& job, int64_t r, float* x, Entry* list, Entry* other) {
  for (int64_t i = job.bias_starts[r]; i < job.bias_starts[r + 1]; ++i) x[job.bias_ids[i]] += job.bias_values[i];
  const Span allowed = span(job.allowed_ids, job.allowed_starts, r);
  if (allowed.size > 0) keep_only(allowed, x, job.vocab, list);
  for (int64_t i = job.banned_starts[r]; i < job.banned_starts[r + 1]; ++i) x[job.banned_ids[i]] = -INFINITY;
  if (job.masks[r] != nullptr) keep_marked(job.masks[r], x, job.vocab);
  penalise(job, r, x, list, other);
  for (int64_t i = job.repeat_starts[r]; i < job.repeat_starts[r + 1]; ++i) x[job.repeat_ids[i]] -= job.repeat_values[i];
}

bool adjusts(const SampleJob& job, int64_t r) {
  const auto some = [r](const int32_t* starts) { return starts[r + 1] > starts[r]; };
  if (job.given[r] >= 0) return false;
  return some(job.bias_starts) || some(job.allowed_starts) || some(job.banned_starts) || some(job.history_starts) ||
         some(job.repeat_starts) || job.masks[r] != nullptr;
}

// --- passes over a segment ---------------------------------------------------------------------------------------

float top_of(const float* x, int64_t size) {
  F32x16 top = set1(-INFINITY);
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) top = max(load(x + i), top);  // a NaN loses against what is there
  float best = hmax(top);
  for (; i < size; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

int32_t first_of(const float* x, int64_t size, float value) {
  int64_t i = 0;
  for (; i + 16 <= size && mask_gt(set1(value), load(x + i)) == 0xFFFF;) i += 16;  // all 16 below
  for (; i < size; ++i)
    if (x[i] == value) return static_cast<int32_t>(i);
  return 0;  // nothing but NaN
}

void scan(const SampleJob& job, const Row& row, int64_t r, Segment& found, int64_t first, int64_t size) {
  const float* x = row.odds.x + first;
  found.top = top_of(x, size);
  found.best = static_cast<int32_t>(first) + first_of(x, size, found.top);
  found.list.count = 0;
  found.list.capacity = row.draw == Draw::listed ? static_cast<int>(row.odds.top_k) : 0;
  offer_all(found.list, x, size, first);
  found.raw_top = -INFINITY;
  if (!row.wants) return;
  found.raw_top = row.raw == row.odds.x ? found.top : top_of(row.raw + first, size);
  found.raw_list.count = 0;
  found.raw_list.capacity = job.logprobs[r];
  offer_all(found.raw_list, row.raw + first, size, first);
}

double total_weight(const float* x, int64_t size, float top) {
  double lane[8] = {};
  for (int64_t i = 0; i < size; i += 64) {
    double p[64] = {};
    const int64_t n = size - i < 64 ? size - i : 64;
    for (int64_t j = 0; j < n; ++j) p[j] = exp64(static_cast<double>(x[i + j]) - static_cast<double>(top));
    for (int j = 0; j < 64; j += 8)
      for (int l = 0; l < 8; ++l) lane[l] += p[j + l];
  }
  return ((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

void weigh_segment(const Row& row, Segment& found, Histogram& histogram, int64_t first, int64_t size) {
  if (row.draw == Draw::laddered) fill_histogram(histogram, row.odds, first, size);
  if (row.wants) found.raw_total = total_weight(row.raw + first, size, row.raw_top);
}

// Ids ranked before the token: larger, or equal and lower.
int64_t ranked_before(const Row& row, int64_t first, int64_t size) {
  const float* x = row.raw + first;
  const float mine = row.raw[row.token];
  const int64_t lower = row.token - first < size ? row.token - first : size;
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) count += x[i] > mine;
  for (int64_t i = 0; i < lower; ++i) count += x[i] == mine;
  return count;
}

// --- rows --------------------------------------------------------------------------------------------------------

Row open_row(const SampleJob& job, int64_t r, float* adjusted) {
  Row row{};
  row.raw = job.logits + r * job.vocab;
  row.wants = job.logprobs[r] >= 0;
  row.odds = {.x = row.raw,
              .vocab = job.vocab,
              .top = 0,
              .sharpness = std::min(1.0f / job.temperature[r], kSharpest),
              .top_p = job.top_p[r],
              .min_p = job.min_p[r],
              .top_k = job.top_k[r],
              .u = uniform(job.seed[r], job.choice[r], job.position[r])};
  if (adjusts(job, r)) row.odds.x = adjusted;
  const bool listed = row.odds.top_k > 0 && row.odds.top_k <= kBest;
  const bool greedy = job.given[r] >= 0 || !(job.temperature[r] > 0);
  row.draw = greedy ? Draw::greedy : listed ? Draw::listed : Draw::laddered;
  return row;
}

void join_scans(Row& row, const Segment* found, int64_t segments) {
  row.odds.top = found[0].top;
  row.best = found[0].best;
  row.raw_top = found[0].raw_top;
  for (int64_t s = 1; s < segments; ++s) {
    if (found[s].top > row.odds.top) row.best = found[s].best, row.odds.top = found[s].top;
    if (found[s].raw_top > row.raw_top) row.raw_top = found[s].raw_top;
  }
  // Everything banned, or a logit of +infinity: no weights to speak of.
  if (!std::isfinite(row.odds.top)) row.draw = Draw::greedy;
}

void join_lists(Best& all, const Segment* found, int64_t segments, Best Segment::*list) {
  all = found[0].*list;
  for (int64_t s = 1; s < segments; ++s)
    for (int i = 0; i < (found[s].*list).count; ++i) all.offer((found[s].*list).entry[i].x, (found[s].*list).entry[i].id);
}

int32_t choose_listed(const Row& row, const Segment* found, int64_t segments) {
  Best best;
  join_lists(best, found, segments, &Segment::list);
  return draw_from(best, row.odds);
}

int32_t choose_laddered(const Row& row, const Histogram* parts, int64_t segments, Entry* list, Entry* other) {
  int64_t likely = 0;
  for (int64_t s = 0; s < segments; ++s) likely += parts[s].likely;
  Ladder ladder(row.odds, parts, segments, kSegment, list, other);
  return draw_from(ladder, row.odds, likely);
}

void report(const SampleJob& job, const Row& row, int64_t r, const Segment* found, int64_t segments) {
  job.tokens[r] = row.token;
  job.out_logprobs[r] = NAN;
  job.ranks[r] = 0;
  for (int64_t i = r * job.width; i < (r + 1) * job.width; ++i) job.top_ids[i] = -1, job.top_logprobs[i] = NAN;
  if (!row.wants) return;
  double total = 0;
  int64_t rank = 1;
  for (int64_t s = 0; s < segments; ++s) total += found[s].raw_total, rank += found[s].before;
  const double log_total = std::log(total);
  const auto logprob = [&](float x) {
    return static_cast<float>(static_cast<double>(x) - static_cast<double>(row.raw_top) - log_total);
  };
  job.out_logprobs[r] = logprob(row.raw[row.token]);
  job.ranks[r] = static_cast<int32_t>(rank);
  Best best;
  join_lists(best, found, segments, &Segment::raw_list);
  for (int i = 0; i < best.count; ++i) {
    job.top_ids[r * job.width + i] = best.entry[i].id;
    job.top_logprobs[r * job.width + i] = logprob(best.entry[i].x);
  }
}

// --- the batch ---------------------------------------------------------------------------------------------------

// Rows [first, first + count) from the start to their tokens.
void sample_wave(Pool& pool, const SampleJob& job, const Scratch& s, int64_t first, int64_t count) {
  const int64_t segments = segments_of(job.vocab);
  bool adjusted = false, weighed = false, wants = false;
  for (int64_t i = 0; i < count; ++i) {
    s.rows[i] = open_row(job, first + i, s.adjusted + i * job.vocab);
    adjusted |= s.rows[i].odds.x != s.rows[i].raw;
    wants |= s.rows[i].wants;
    weighed |= s.rows[i].wants || s.rows[i].draw == Draw::laddered;
  }
  const auto over_rows = [&](auto f) {
    pool.run(count, [&](int64_t i, int worker) { f(s.rows[i], i, s.entries + 2 * s.list * worker); });
  };
  const auto over_segments = [&](auto f) {
    pool.run(count * segments, [&](int64_t chunk, int) {
      const int64_t i = chunk / segments, from = chunk % segments * kSegment, left = job.vocab - from;
      f(s.rows[i], chunk, from, left < kSegment ? left : kSegment);
    });
  };
  if (adjusted)
    over_rows([&](Row& row, int64_t i, Entry* lists) {
      if (row.odds.x == row.raw) return;
      float* copy = s.adjusted + i * job.vocab;
      std::memcpy(copy, row.raw, sizeof(float) * static_cast<size_t>(job.vocab));
      adjust_row(job, first + i, copy, lists, lists + s.list);
    });
  over_segments([&](Row& row, int64_t chunk, int64_t from, int64_t size) {
    scan(job, row, first + chunk / segments, s.segments[chunk], from, size);
  });
  for (int64_t i = 0; i < count; ++i) join_scans(s.rows[i], s.segments + i * segments, segments);
  if (weighed)
    over_segments([&](Row& row, int64_t chunk, int64_t from, int64_t size) {
      weigh_segment(row, s.segments[chunk], s.histograms[chunk], from, size);
    });
  over_rows([&](Row& row, int64_t i, Entry* lists) {
    int32_t token = job.given[first + i];
    if (row.draw == Draw::listed) token = choose_listed(row, s.segments + i * segments, segments);
    if (row.draw == Draw::laddered)
      token = choose_laddered(row, s.histograms + i * segments, segments, lists, lists + s.list);
    row.token = token < 0 ? row.best : token;
  });
  if (wants)
    over_segments([&](Row& row, int64_t chunk, int64_t from, int64_t size) {
      if (row.wants) s.segments[chunk].before = ranked_before(row, from, size);
    });
  for (int64_t i = 0; i < count; ++i) report(job, s.rows[i], first + i, s.segments + i * segments, segments);
}

int64_t scratch(const SampleJob& job, int threads) {
  int64_t bytes = 0;
  carve_scratch(job, threads, bytes);
  return bytes;
}

void sample(Pool& pool, const SampleJob& job) {
  int64_t used = 0;
  const Scratch s = carve_scratch(job, pool.threads(), used);
  for (int64_t first = 0; first < job.rows; first += kWave)
    sample_wave(pool, job, s, first, job.rows - first < kWave ? job.rows - first : kWave);
}

}  // namespace

extern const SampleKernels sample_kernels;
const SampleKernels sample_kernels = {scratch, sample};

}  // namespace flyweight::FW_ISA
