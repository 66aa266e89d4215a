// The query rows of a work item: what each sees of the context, and where its records are.  Included by attention.cpp.
//
// Invariant: rows are (token, query head of the group), token by token, so positions ascend with the row.
#pragma once

#include <type_traits>

#include "kernels_attention.h"
#include "simd.h"

namespace flyweight::FW_ISA {

// A tile as some rows [row, end) of an item see it: positions at + [from, to), each row its own part of them.
struct Span {
  int64_t at = 0, from = 0, to = 0, row = 0, end = 0;
  bool starts = false;  // the weighted V of these rows: their records hold none yet

  bool seen() const { return row < end; }
};

// The tile after the one at work: of the same item, or the first of the item that follows.
struct Next {
  const AttendItem* item = nullptr;
  Span span;

  bool seen() const { return span.seen(); }
};

// The first tile of an item, as all its rows together see it.
inline Next first_tile(const AttendArgs& a, const AttendWork& work, const AttendItem& item) {
  const int64_t first = first_seen(a.positions[work.order[item.token]], a.sight);
  const int64_t end = a.positions[work.order[item.token + item.count - 1]] + 1;
  Span s;
  s.at = first / kTile * kTile > item.first ? first / kTile * kTile : item.first;
  s.from = first > s.at ? first - s.at : 0;
  s.to = end - s.at < kTile ? end - s.at : kTile;
  s.end = s.from < s.to && s.at < item.last ? 1 : 0;
  return {&item, s};
}

class Rows {
 public:
  // `positions` has room for a number a row.
  Rows(const AttendArgs& a, const AttendWork& work, const AttendItem& item, int32_t* positions)
      : a_(a), work_(work), item_(item), group_(a.heads / a.kv.heads), count_(item.count * group_),
        positions_(positions) {
    for (int64_t i = 0, row = 0; i < item.count; ++i)
      for (int64_t g = 0; g < group_; ++g) positions[row++] = a.positions[work.order[item.token + i]];
  }

  int64_t count() const { return count_; }
  int64_t token(int64_t row) const { return place(item_, row).token; }
  int64_t head(int64_t row) const { return place(item_, row).head; }
  const float* q(int64_t row) const { return a_.q + place(item_, row).index * a_.kv.k_dim; }
  float* out(int64_t row) const { return a_.out + place(item_, row).index * a_.kv.v_dim; }
  int64_t record(int64_t row, int64_t i) const { return work_.tokens[token(row)] + i * a_.heads + head(row); }

  // A row sees positions [first(row), position(row)] of the context; both ascend with the row.
  int64_t position(int64_t row) const { return positions_[row]; }
  int64_t first(int64_t row) const { return first_seen(position(row), a_.sight); }
  // The same within a tile: [from, to).
  int64_t from(int64_t row, int64_t at) const { return within(first(row) - at); }
  int64_t to(int64_t row, int64_t at) const { return within(position(row) + 1 - at); }

  // The tile at `at` as the rows see it, given the span of a tile before it.
  Span span(int64_t at, Span s) const {
    s.at = at;
    s.starts = false;
    while (s.row < count_ && position(s.row) < at) ++s.row;
    while (s.end < count_ && first(s.end) < at + kTile) ++s.end;
    if (!s.seen()) return s;
    s.from = from(s.row, at);
    s.to = to(s.end - 1, at);
    return s;
  }

  // Asks for what comes after an item's last tile, as far as it is this row's: where its result goes, and q of the item
  // that follows, if there is one.
  void ask_after(int64_t row, const AttendItem* follower) const {
    if (item_.record < 0) ask(out(row), a_.kv.v_dim);
    if (follower != nullptr && row < follower->count * group_)
      ask(a_.q + place(*follower, row).index * a_.kv.k_dim, a_.kv.k_dim);
  }

 private:
  struct Place {
    int64_t token, head, index;  // the row's among all tokens' heads
  };
  Place place(const AttendItem& item, int64_t row) const {
    const auto group = static_cast<uint32_t>(group_), at = static_cast<uint32_t>(row);
    const int64_t token = work_.order[item.token + at / group], head = item.head * group_ + at % group;
    return {token, head, token * a_.heads + head};
  }
  template <class T>
  static void ask(T* row, int64_t floats) {
    for (int64_t i = 0; i < floats; i += 16) __builtin_prefetch(row + i, std::is_const_v<T> ? 0 : 1, 2);
  }
  static int64_t within(int64_t n) { return n < 0 ? 0 : n < kTile ? n : kTile; }

  const AttendArgs& a_;
  const AttendWork& work_;
  const AttendItem& item_;
  int64_t group_, count_;
  const int32_t* positions_;
};

}  // namespace flyweight::FW_ISA
