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

struct RopeStoreArgs {
  const float* qkv;      // [T, heads*k_dim + kv.heads*(k_dim + v_dim)], without v_dim where V is in K
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

struct AttendArgs {
  const float* q;  // [T, heads, k_dim]
  float* out;      // [T, heads * v_dim], written
  KVView kv;
  int64_t heads;
  float scale;
  int64_t window;            // positions a token sees, itself the last; 0: all
  float softcap;             // c: a score s becomes c*tanh(s/c); 0: it stays
  const float* sinks;        // [heads], or null
  const int32_t* positions;  // [T], ascending within a sequence
  const int32_t* tables;     // [S, table_width]
  int64_t table_width;
};

// A run of query tokens of one sequence against one KV head, over splits [first, last) of the context.
struct AttendItem {
  int32_t sequence, head, token, count, first, last;
  int64_t record;  // -1: all splits are here, write `out`; else where the item's records start, [split, row]
};

// Rows whose splits were computed apart, from split `first` on.
struct AttendMerge {
  int32_t head, token, count, first;
  int64_t record;  // as the first item's
};

// Who computes what; made by plan_attend, no influence on the bits.
struct AttendWork {
  const AttendItem* items;
  int64_t item_count;
  const AttendMerge* merges;
  int64_t merge_count;
};

struct AttentionKernels {
  // Splits, norms the heads of q and k, rotates, writes K and V.
  void (*rope_store)(Pool&, const RopeStoreArgs&);
  // scratch: attend_floats(...) of attend_plan.h.
  void (*attend)(Pool&, const AttendArgs&, const AttendWork&, float* scratch);
  // Copies slots src to slots dst as if all were read first.  scratch: count * row() elements a KV head.
  void (*move_kv)(Pool&, const KVView&, const int32_t* src, const int32_t* dst, int64_t count, void* scratch);
};

}  // namespace flyweight
