#include "pool.h"

#include <unistd.h>

#include "arithmetic.h"

namespace flyweight {
namespace {

constexpr uint32_t kInside = (1u << 10) - 1;  // bits 0-9: workers inside, at most 1023
constexpr uint32_t kOpen = 1u << 10;
constexpr uint32_t kStop = 1u << 11;
constexpr uint32_t kJob = 1u << 12;  // bits 12-31: number of the job; a wrap only makes one worker miss one job

// A pause takes 40-140 cycles (Zen 4, Skylake and later), so 1,000 of them are some 20-50 us: longer than the gap
// between two calls of a step (5-20 us of Python), far shorter than any idle time worth saving.
constexpr int kSpins = 1000;

struct Place {
  const Pool* pool = nullptr;
  int worker = 0;
};
thread_local Place place;  // where this thread works now, so that a nested run is recognised

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // yield is a no-op on most cores; isb waits about as long as x86's pause
#endif
}

}  // namespace

Pool::Pool(int threads) : portions_(static_cast<size_t>(threads > 0 ? threads : 1)), process_(getpid()) {
  try {
    for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { work(worker); });
  } catch (...) {  // the system grants no more threads: those it did grant must end, or the program would
    stop();
    throw;
  }
}

Pool::~Pool() {
  if (getpid() == process_) {
    stop();
  } else {  // a fork's child has a copy of the pool and none of its threads; to join or detach them would crash
    new std::vector<std::thread>(std::move(workers_));
  }
}

void Pool::stop() {
  state_.fetch_or(kStop);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::share_out(int64_t chunks) {
  const auto count = static_cast<int64_t>(portions_.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto low = static_cast<uint64_t>(chunks * i / count), high = static_cast<uint64_t>(chunks * (i + 1) / count);
    portions_[static_cast<size_t>(i)].left.store(high << 32 | low, std::memory_order_relaxed);
  }
}

int64_t Pool::take_from_portions(int worker) {
  const size_t count = portions_.size(), own = static_cast<size_t>(worker);
  for (size_t i = 0; i < count; ++i) {
    std::atomic<uint64_t>& left = portions_[(own + i) % count].left;
    uint64_t seen = left.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t low = seen & UINT32_MAX, high = seen >> 32;
      if (low >= high) break;
      const uint64_t rest = i == 0 ? seen + 1 : seen - (uint64_t{1} << 32);
      if (left.compare_exchange_weak(seen, rest, std::memory_order_relaxed))
        return static_cast<int64_t>(i == 0 ? low : high - 1);
    }
  }
  return -1;
}

void Pool::take_chunks(const Job& job, int worker) {
  for (;;) {
    const int64_t chunk = job.portions ? take_from_portions(worker) : next_.fetch_add(1, std::memory_order_relaxed);
    if (chunk < 0 || chunk >= job.chunks) return;
    job.call(job.body, chunk, worker);
  }
}

void Pool::run_job(const Job& job) {
  if (job.chunks <= 0) return;
  const DefaultArithmetic arithmetic;
  const bool nested = place.pool == this;
  if (nested || workers_.empty() || job.chunks == 1) {
    for (int64_t chunk = 0; chunk < job.chunks; ++chunk) job.call(job.body, chunk, nested ? place.worker : 0);
    return;
  }
  const std::lock_guard<std::mutex> lock(runs_);
  const Place before = place;
  place = {this, 0};
  job_ = job;
  next_.store(0, std::memory_order_relaxed);
  if (job.portions) share_out(job.chunks);
  // No thread is inside and the job is closed: only this thread may change the word, so a plain store opens the next job.
  const uint32_t number = (state_.load() & ~(kInside | kOpen)) + kJob;
  state_.store(number | kOpen);
  state_.notify_all();  // looks at a waiter count first: no system call while all workers spin
  take_chunks(job, 0);
  uint32_t state = state_.fetch_and(~kOpen) & ~kOpen;
  while ((state & kInside) != 0) state = wait_for_change(state);
  place = before;
}

uint32_t Pool::wait_for_change(uint32_t seen) {
  for (int spin = 0; spin < kSpins; ++spin) {
    const uint32_t state = state_.load();
    if (state != seen) return state;
    pause();
  }
  state_.wait(seen);
  return state_.load();
}

void Pool::work(int worker) {
  place = {this, worker};
  const DefaultArithmetic arithmetic;  // a new thread has its creator's
  uint32_t done = 0;  // the job this worker has already been in
  uint32_t state = state_.load();
  while ((state & kStop) == 0) {
    const uint32_t number = state & ~(kInside | kOpen);
    if ((state & kOpen) == 0 || number == done) {
      state = wait_for_change(state);
      continue;
    }
    if (!state_.compare_exchange_weak(state, state + 1)) continue;
    take_chunks(job_, worker);
    done = number;
    state = state_.fetch_sub(1) - 1;
    if ((state & (kInside | kOpen)) == 0) state_.notify_all();  // the caller may be parked, waiting for the last one
  }
}

}  // namespace flyweight
