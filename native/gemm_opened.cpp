// How a chunk of a product goes over opened tiles: stretch by stretch of K, panels inside.  The loops over a stretch are in
// gemm_opened_{vector,amx}.h.
#include "gemm_opened.h"
#if defined(FW_ISA_AMX)
#include "gemm_opened_amx.h"
#else
#include "gemm_opened_vector.h"
#endif

namespace flyweight::FW_ISA {
namespace {

using Inner = void (*)(const Stretch&);

template <int Sub, bool Mins, bool Signed>
Inner inner_of(int64_t tokens) {
  return [&]<int... T>(std::integer_sequence<int, T...>) -> Inner {
    constexpr Inner all[] = {multiply_opened<Sub, Mins, Signed, T + 1>...};
    return all[tokens - 1];
  }(std::make_integer_sequence<int, kOpenedTokens>{});
}

template <int Sub>
Inner inner_of(const OpenedForm& form, int64_t tokens) {
  if (form.mins) return inner_of<Sub, true, false>(tokens);
  return kOpenSigned && form.is_signed ? inner_of<Sub, false, true>(tokens) : inner_of<Sub, false, false>(tokens);
}

Inner inner_of(const OpenedForm& form, int64_t tokens) {
  return form.sub == 16 ? inner_of<16>(form, tokens) : inner_of<32>(form, tokens);
}

// One stretch [group, group + groups) of a few tiles with all panels of a chunk.
class Chunk {
 public:
  Chunk(const LinearJob& job, const OpenedForm& form, OpenTile with)
      : job_(job), form_(form), open_(with), bytes_(tile_bytes(job.kind, job.k)),
        token_(token_bytes(Mode::i8, job.k)), panels_(panel_count(job.tokens, kOpenedTokens)) {}

  void run(Range tiles, Range panels) {
    for (int64_t group = 0; group < job_.k / kGroup; group += kOpenK / kGroup) {
      const int64_t left = job_.k / kGroup - group;
      groups_ = left < kOpenK / kGroup ? left : kOpenK / kGroup;
      for (int64_t i = tiles.begin; i < tiles.end; ++i)
        open_(job_.weight + i * bytes_, group, groups_, opened_[i - tiles.begin]);
      for (int64_t p = panels.begin; p < panels.end; ++p) multiply(tiles, p, group, p == panels.begin);
    }
  }

 private:
  const uint8_t* place(int64_t tile, int64_t group) const {
    return job_.weight + tile * bytes_ + group * bytes_ / (job_.k / kGroup);
  }

  void multiply(Range tiles, int64_t p, int64_t group, bool ask) {
    const int64_t t = panel_start(job_.tokens, panels_, p), size = panel_start(job_.tokens, panels_, p + 1) - t;
    arrangement_.set(form_, size);
    const bool first = group == 0, last = group + groups_ == job_.k / kGroup;
    if (!first) sums_.take(job_, tiles, t, size);
    const uint8_t* ahead = last ? place(tiles.end, 0) : place(tiles.begin, group + groups_);
    inner_of(form_, size)({opened_, tiles.end - tiles.begin, job_.panels + t * token_ + group * kRecord * size, sums_.of(0),
                           groups_, first, ahead, ask ? bytes_ / (job_.k / kGroup) : 0, bytes_});
    sums_.give(job_, tiles, t, size, last);
  }

  const LinearJob& job_;
  const OpenedForm& form_;
  OpenTile open_;
  int64_t bytes_, token_, panels_, groups_ = 0;
  Arrangement arrangement_;
  Opened opened_[kOpenTiles];
  Sums sums_;
};

}  // namespace

void multiply_opened(const LinearJob& job, Range tiles, Range panels, const OpenedForm& form, OpenTile open) {
  Chunk chunk(job, form, open);
  for (int64_t i = tiles.begin; i < tiles.end; i += kOpenTiles)
    chunk.run({i, i + kOpenTiles < tiles.end ? i + kOpenTiles : tiles.end}, panels);
}

}  // namespace flyweight::FW_ISA
