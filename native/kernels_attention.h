// Entry points of attention.cpp and rope_store.cpp.  Included by kernels.h.
#pragma once

#include <cstdint>

#include "kv.h"
#include "pool.h"

namespace flyweight {

// Weights of an RMS norm: [k_dim] for every head by itself, or, as a `whole`, [heads * k_dim] for all of them as one row.
struct HeadWeights {
  const float* w = nullptr;  // null: no norm
  bool whole = false;
};

// Where q, K and V of the first token's first heads are; other heads follow, other tokens are `stride` floats apart.  For a
// share of the heads and tokens only that share need be there.
struct ProjectedRows {
  const float *q, *k, *v;
  int64_t stride;
};
// Of [T, heads*k_dim + kv.heads*(k_dim + v_dim)], without v_dim where V is in K.
inline ProjectedRows projected_rows(const float* qkv, int64_t heads, const KVView& kv) {
  const int64_t k = heads * kv.k_dim, v = k + kv.heads * kv.k_dim;
  return {qkv, qkv + k, qkv + v, k + kv.heads * kv.row()};
}

struct RopeStoreArgs {
  ProjectedRows x;
  float* q;              // [T, heads, k_dim], written
  KVView kv;             // written at slots
  int64_t tokens, heads;
  const int32_t* slots;  // [T]
  const float* cos;      // [T, half]
  const float* sin;      // [T, half]
  int64_t half;          // rotated pairs of a head
  HeadWeights q_norm, k_norm;
  float eps;
};

// Tokens [begin, end), KV heads [first, last) with their query heads.
struct HeadShare {
  int64_t begin, end, first, last;
};

struct AttendArgs {
  const float* q;  // [T, heads, k_dim]
  float* out;      // [T, heads * v_dim], written
  KVView kv;
  int64_t heads;
  float scale;
  Sight sight;               // the positions a token sees
  float softcap;             // c: a score s becomes c*tanh(s/c); 0: it stays
  const float* sinks;        // [heads], or null
  const int32_t* positions;  // [T], ascending within a sequence
  const int32_t* tables;     // [S, table_width]
  int64_t table_width;
};

// Some query tokens against one KV head, over positions [first, last) of a context; multiples of kTile, and `last` may
// lie beyond what the tokens see.
struct AttendItem {
  int32_t sequence, head;  // whose table is read, which KV head
  int32_t token, count;    // tokens order[token, token + count), positions ascending; all see the same blocks
  int32_t first, last;
  int32_t record;          // -1: writes `out`; else which of its tokens' records takes the softmax of whole splits.  The
                           // one after it takes that of the split which ends beyond `last`, if there is one
  bool resumes;            // goes on from records 0 and 1, where another item has come to `first`
};

// Tokens order[token, token + count) whose splits were all computed apart: record i holds split i.
struct AttendMerge {
  int32_t head, token, count;
};

// Who computes what; made by plan_attend, no influence on the bits.
struct AttendWork {
  const AttendItem* items;
  int64_t early, item_count;  // the first `early` items are done before the others begin
  const AttendMerge* merges;  // after all items
  int64_t merge_count;
  const int32_t* order;
  const int64_t* tokens;  // [T] where a token's records start: [record][query head]
};

struct AttentionKernels {
  // Splits, norms the heads of q and k, rotates, writes K and V.
  void (*rope_store)(Pool&, const RopeStoreArgs&);
  void (*rope_store_share)(const RopeStoreArgs&, const HeadShare&);  // a part of it; no norm of whole rows, heads a multiple of KV heads
  // scratch: attend_floats(...) of attend_plan.h.
  void (*attend)(Pool&, const AttendArgs&, const AttendWork&, float* scratch);
  // Copies slots src to slots dst as if all were read first.  scratch: count * row() elements a KV head.
  void (*move_kv)(Pool&, const KVView&, const int32_t* src, const int32_t* dst, int64_t count, void* scratch);
};

}  // namespace flyweight
