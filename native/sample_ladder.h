// Any position of a row's descending order without sorting the row.  Included by sample.cpp only.
//
// Candidates fall into buckets by their distance from the best logit; each knows how many it holds and their weight.  A
// question about the order ("which is the n-th", "where does the running weight pass w") sorts one bucket only.  A draw
// from all candidates needs weights alone, so its buckets count nothing.
#pragma once

#include "exp32.h"
#include "sample_lists.h"

namespace flyweight::FW_ISA {

// Distances of 0 to 40 temperatures, 0.04 each; e^-40 of the best weighs nothing, so all beyond share the last one.
// With a vocabulary of 150k and usual logits the fullest bucket holds a few thousand ids.
constexpr int kBuckets = 1024;

struct Histogram {
  double mass[kBuckets];
  int32_t count[kBuckets];
  int64_t likely;  // candidates of weight min_p or more
};

// What is drawn from: adjusted logits and how to weigh them.
struct Odds {
  const float* x;
  int64_t vocab;
  float top;  // the largest of x
  float sharpness;  // 1 / temperature
  double top_p, min_p;
  int64_t top_k;  // 0 = all
  double u;       // the row's random number, in [0, 1)

  bool cuts() const { return top_k > 0 || top_p < 1.0 || !(min_p <= 0); }
  float scale() const {
    const float wide = (kBuckets - 1) / 40.0f * sharpness;
    return wide < 1e30f ? wide : 1e30f;
  }
  double weight(float logit) const { return FW_ISA::weight(logit, top, sharpness); }
};

// Bucket numbers, as floats: every step is monotonic, so a larger logit never lands in a later bucket.
FW_INLINE F32x16 bucket_of(F32x16 x, float top, float scale) {
  return rint(min(mul(sub(set1(top), x), set1(scale)), set1(kBuckets - 1)));
}

constexpr int64_t kBlock = 256;  // weights that are under way at once, before they are added up one by one

// Adds up to kBlock logits.  Where none is banned or NaN, as in nearly every block, they are not looked at one by one.
template <bool kCounted>
void fill_block(Histogram& h, const Odds& odds, const float* x, int64_t n) {
  float p[kBlock];
  uint16_t bucket[kBlock];
  const float scale = odds.scale();
  bool candidates = true;  // all of them
  for (int64_t j = 0; j < n; ++j) p[j] = weight(x[j], odds.top, odds.sharpness);
  for (int64_t j = 0; j < n; j += 16) {
    const int left = n - j < 16 ? static_cast<int>(n - j) : 16;
    const F32x16 v = left == 16 ? load(x + j) : load_tail(x + j, left);
    store_u16(bucket + j, to_i32(bucket_of(v, odds.top, scale)));
    candidates = candidates && (mask_gt(v, set1(-INFINITY)) | ~((1u << left) - 1)) == ~0u;
  }
  for (int64_t j = 0; j < n; ++j) {
    if (!candidates && !(x[j] > -INFINITY)) continue;
    h.mass[bucket[j]] += p[j];
    if constexpr (kCounted) ++h.count[bucket[j]];
  }
  if constexpr (kCounted)
    for (int64_t j = 0; j < n; ++j) h.likely += p[j] >= odds.min_p && x[j] > -INFINITY;
}

inline void fill_histogram(Histogram& h, const Odds& odds, int64_t first, int64_t size) {
  std::memset(&h, 0, sizeof h);
  const auto fill = odds.cuts() ? fill_block<true> : fill_block<false>;
  for (int64_t i = 0; i < size; i += kBlock)
    fill(h, odds, odds.x + first + i, size - i < kBlock ? size - i : kBlock);
}

class Ladder {
 public:
  // `parts` in order of their ids, `each` ids long; `list` and `other` are scratch for a whole vocabulary.
  Ladder(const Odds& odds, const Histogram* parts, int64_t count, int64_t each, Entry* list, Entry* other)
      : odds_(odds), parts_(parts), each_(each), list_(list), other_(other) {
    for (int b = 0; b < kBuckets; ++b) {
      counts_[b + 1] = counts_[b];
      mass_[b + 1] = mass_[b];
      for (int64_t s = 0; s < count; ++s) {
        counts_[b + 1] += parts[s].count[b];
        mass_[b + 1] += parts[s].mass[b];
      }
    }
  }

  int64_t size() const { return counts_[kBuckets]; }

  // Weight of the first n candidates, 1 <= n <= size().
  double mass_of(int64_t n) {
    const int b = bucket_with(n - 1);
    if (counts_[b + 1] == n) return mass_[b + 1];
    open(b);
    double sum = mass_[b];
    for (int64_t i = 0; i < n - counts_[b]; ++i) sum += odds_.weight(list_[i].x);
    return sum;
  }

  // The first candidate at which the running weight is more than `share` of all, which nothing is cut from.
  int32_t id_past(double share) {
    const double target = share * mass_[kBuckets];
    int b = 0;
    while (b < kBuckets - 1 && !(mass_[b + 1] > target)) ++b;
    for (; b > 0 && open(b) == 0;) --b;  // rounding took the target to the whole: the last bucket that holds any
    const int64_t held = open(b);
    double sum = mass_[b];
    for (int64_t i = 0; i < held; ++i)
      if ((sum += odds_.weight(list_[i].x)) > target) return list_[i].id;
    return held > 0 ? list_[held - 1].id : -1;
  }

  // The first place at which the running weight is at least (`beyond`: more than) `target`.
  int64_t place_of(double target, bool beyond) {
    const auto passed = [&](double sum) { return beyond ? sum > target : sum >= target; };
    int b = 0;
    while (b < kBuckets && !passed(mass_[b + 1])) ++b;
    if (b == kBuckets) return size() - 1;
    open(b);
    const int64_t held = counts_[b + 1] - counts_[b];
    double sum = mass_[b];
    for (int64_t i = 0; i < held; ++i) {
      sum += odds_.weight(list_[i].x);
      if (passed(sum)) return counts_[b] + i;
    }
    return counts_[b + 1] - 1;  // the bucket's own sum was taken in id order: the last bit may differ
  }

  int32_t id_at(int64_t place) {
    const int b = bucket_with(place);
    open(b);
    return list_[place - counts_[b]].id;
  }

 private:
  int bucket_with(int64_t place) const {
    int b = 0;
    while (counts_[b + 1] <= place) ++b;
    return b;
  }

  // Puts bucket b into list_, sorted; returns how many it holds.
  int64_t open(int b) {
    if (opened_ == b) return held_;
    opened_ = b;
    held_ = 0;
    for (int64_t first = 0, s = 0; first < odds_.vocab; first += each_, ++s)
      if (parts_[s].mass[b] > 0) held_ = collect(b, first, held_);
    sort_entries<descending_key>(list_, other_, held_);
    return held_;
  }

  int64_t collect(int b, int64_t first, int64_t held) {
    const int64_t end = first + each_ < odds_.vocab ? first + each_ : odds_.vocab;
    const float scale = odds_.scale(), middle = static_cast<float>(b);
    for (int64_t i = first; i < end; i += 16) {
      const int n = end - i < 16 ? static_cast<int>(end - i) : 16;
      const F32x16 v = n == 16 ? load(odds_.x + i) : load_tail(odds_.x + i, n);
      const F32x16 bucket = bucket_of(v, odds_.top, scale);
      uint32_t hit = mask_gt(bucket, set1(middle - 0.5f)) & mask_gt(set1(middle + 0.5f), bucket);
      hit &= n == 16 ? 0xFFFFu : (1u << n) - 1;
      for (; hit != 0; hit &= hit - 1) {
        const int64_t id = i + __builtin_ctz(hit);
        if (odds_.x[id] > -INFINITY) list_[held++] = {odds_.x[id], static_cast<int32_t>(id)};
      }
    }
    return held;
  }

  const Odds& odds_;
  const Histogram* parts_;
  int64_t each_;
  Entry *list_, *other_;
  int64_t counts_[kBuckets + 1] = {};  // candidates before bucket b
  double mass_[kBuckets + 1] = {};
  int opened_ = -1;
  int64_t held_ = 0;  // by the opened bucket
};

// The draw over a whole vocabulary.  Returns -1 when there is no candidate.
inline int32_t draw_from(Ladder& ladder, const Odds& odds, int64_t likely) {
  if (!odds.cuts()) return ladder.id_past(odds.u);
  const int64_t all = ladder.size();
  if (all == 0) return -1;
  int64_t keep = odds.top_k > 0 && odds.top_k < all ? odds.top_k : all;
  if (odds.top_p < 1.0) {
    const int64_t reach = ladder.place_of(odds.top_p * ladder.mass_of(keep), false) + 1;
    keep = reach < keep ? reach : keep;
  }
  keep = likely < keep ? likely : keep;
  if (keep < 1) keep = 1;  // the best stays, whatever min_p says (above 1, NaN), as in the short list
  const int64_t place = ladder.place_of(odds.u * ladder.mass_of(keep), true);
  return ladder.id_at(place < keep ? place : keep - 1);
}

// The draw from a short list that already holds the first top_k candidates in order.
inline int32_t draw_from(const Best& best, const Odds& odds) {
  double reach[kBest], p[kBest], sum = 0;
  int all = 0;
  for (; all < best.count && best.entry[all].x > -INFINITY; ++all) {
    p[all] = odds.weight(best.entry[all].x);
    reach[all] = sum += p[all];
  }
  if (all == 0) return -1;
  int keep = 0;
  while (keep + 1 < all && reach[keep] < odds.top_p * sum) ++keep;
  ++keep;
  while (keep > 1 && p[keep - 1] < odds.min_p) --keep;
  int place = 0;
  while (place + 1 < keep && !(reach[place] > odds.u * reach[keep - 1])) ++place;
  return best.entry[place].id;
}

}  // namespace flyweight::FW_ISA
