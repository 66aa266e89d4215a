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

template <int Sub, bool Mins, Codes C>
Inner inner_of(int64_t tokens) {
  return [&]<int... T>(std::integer_sequence<int, T...>) -> Inner {
    constexpr Inner all[] = {multiply_opened<Sub, Mins, C, T + 1>...};
    return all[tokens - 1];
  }(std::make_integer_sequence<int, kOpenedTokens>{});
}

template <int Sub, bool Mins>
Inner inner_of(Codes codes, int64_t tokens) {
#if defined(FW_ISA_AMX)
  static_cast<void>(codes);
  return inner_of<Sub, Mins, Codes::i8>(tokens);
#else
#if defined(FW_PAIR_SUMS)
  if (codes == Codes::u4) return inner_of<Sub, Mins, Codes::u4>(tokens);
#endif
#if defined(FW_VNNI)
  constexpr bool has_signed = Mins && Sub == 32;  // u8
#else
  constexpr bool has_signed = !Mins || Sub == 32;
#endif
  if constexpr (has_signed)
    if (codes == Codes::i8) return inner_of<Sub, Mins, Codes::i8>(tokens);
  static_cast<void>(codes);
  return inner_of<Sub, Mins, Codes::u8>(tokens);
#endif
}

Inner inner_of(const OpenedForm& form, int64_t tokens) {
  const Codes codes = codes_of(form);
  if (form.sub == 16) return form.mins ? inner_of<16, true>(codes, tokens) : inner_of<16, false>(codes, tokens);
  return form.mins ? inner_of<32, true>(codes, tokens) : inner_of<32, false>(codes, tokens);
}

// A few tiles with all panels of a chunk, stretch by stretch of K.  Panels of few tokens leave their sums where they are
// until K ends, so stretches are short and what is opened stays in L1; else sums go to `out` between long stretches.
class Chunk {
 public:
  Chunk(const LinearJob& job, const OpenedForm& form, OpenTile with, Range panels)
      : job_(job), form_(form), open_(with), panels_(panels), bytes_(tile_bytes(job.kind, job.k)),
        token_(token_bytes(Mode::i8, job.k)), count_(panel_count(job.tokens, kOpenedTokens)), begin_(start(panels.begin)),
        few_(start(panels.end) - begin_ <= kSumTokens) {}

  // Tiles at a time.
  int64_t tiles() const { return few_ ? kFewTiles : kOpenTiles; }

  void run(Range tiles) {
    const int64_t step = (few_ ? kFewK : kOpenK) / kGroup;
    for (int64_t group = 0; group < job_.k / kGroup; group += step) {
      const int64_t left = job_.k / kGroup - group;
      groups_ = left < step ? left : step;
      for (int64_t i = tiles.begin; i < tiles.end; ++i)
        open_(job_.kind, job_.weight + i * bytes_, group, groups_, opened_[i - tiles.begin]);
      for (int64_t p = panels_.begin; p < panels_.end; ++p) multiply(tiles, p, group);
    }
    if (few_) sums_.give(job_, tiles, begin_, start(panels_.end) - begin_, true);
  }

 private:
  int64_t start(int64_t panel) const { return panel_start(job_.tokens, count_, panel); }
  const uint8_t* place(int64_t tile, int64_t group) const {
    return job_.weight + tile * bytes_ + group * bytes_ / (job_.k / kGroup);
  }

  void multiply(Range tiles, int64_t p, int64_t group) {
    const int64_t t = start(p), size = start(p + 1) - t;
    arrangement_.set(form_, size);
    const bool first = group == 0, last = group + groups_ == job_.k / kGroup;
    if (!first && !few_) sums_.take(job_, tiles, t, size);
    const uint8_t* ahead = last ? place(tiles.end, 0) : place(tiles.begin, group + groups_);
    const int64_t ask = p == panels_.begin ? bytes_ / (job_.k / kGroup) : 0;
    inner_of(form_, size)({opened_, tiles.end - tiles.begin, job_.panels + t * token_ + group * kRecord * size,
                           sums_.of(0) + (few_ ? (t - begin_) * kLanes : 0), groups_, first, ahead, ask, bytes_});
    if (!few_) sums_.give(job_, tiles, t, size, last);
  }

  const LinearJob& job_;
  const OpenedForm& form_;
  OpenTile open_;
  Range panels_;
  int64_t bytes_, token_, count_, begin_, groups_ = 0;
  bool few_;
  Arrangement arrangement_;
  Opened opened_[kOpenTiles];
  Sums sums_;
};

}  // namespace

void multiply_opened(const LinearJob& job, Range tiles, Range panels, const OpenedForm& form, OpenTile open) {
  Chunk chunk(job, form, open, panels);
  const int64_t step = chunk.tiles();
  for (int64_t i = tiles.begin; i < tiles.end; i += step) {
    chunk.run({i, i + step < tiles.end ? i + step : tiles.end});
  }
}

}  // namespace flyweight::FW_ISA
