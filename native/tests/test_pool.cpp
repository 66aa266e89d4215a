// The pool: every chunk once, any number of threads, nested and concurrent runs, quick when hot, asleep when idle.
#include <chrono>
#include <ctime>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "check.h"

namespace {

using namespace flyweight;
using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::micro>(Clock::now() - since).count();
}

void every_chunk_once(int threads) {
  Pool pool(threads);
  CHECK(pool.threads() == threads, "%d", pool.threads());
  for (int64_t chunks = 0; chunks < 70; ++chunks) {
    std::vector<std::atomic<int>> done(static_cast<size_t>(chunks));
    std::atomic<int> strangers{0};
    pool.run(chunks, [&](int64_t chunk, int worker) {
      ++done[static_cast<size_t>(chunk)];
      if (worker < 0 || worker >= threads) ++strangers;
    });
    for (const std::atomic<int>& times : done) CHECK(times == 1, "%d threads, %d chunks", threads, int(chunks));
    CHECK(strangers == 0, "a worker number out of range");
  }
}

// Portions are taken from both ends: a worker alone goes through all, its own upward and the others' downward.
void every_chunk_of_portions_once(int threads) {
  Pool pool(threads);
  for (int64_t chunks = 0; chunks < 70; ++chunks) {
    std::vector<std::atomic<int>> done(static_cast<size_t>(chunks));
    std::vector<int64_t> last(static_cast<size_t>(threads), -1);
    std::atomic<int> backward{0};
    pool.run_portions(chunks, [&](int64_t chunk, int worker) {
      ++done[static_cast<size_t>(chunk)];
      const int64_t begin = chunks * worker / threads, end = chunks * (worker + 1) / threads;
      int64_t& before = last[static_cast<size_t>(worker)];
      if (chunk >= begin && chunk < end) {
        backward += chunk <= before;
        before = chunk;
      }
    });
    for (const std::atomic<int>& times : done) CHECK(times == 1, "%d threads, %d chunks", threads, int(chunks));
    CHECK(backward == 0, "%d chunks of a worker's own went backward", backward.load());
  }
}

// A worker number names one thread at a time: sums kept per worker need no lock.
void workers_own_their_numbers(int threads) {
  Pool pool(threads);
  std::vector<int64_t> sums(static_cast<size_t>(threads));
  for (int run = 0; run < 2000; ++run)
    pool.run(16, [&](int64_t chunk, int worker) { sums[static_cast<size_t>(worker)] += chunk; });
  int64_t total = 0;
  for (const int64_t sum : sums) total += sum;
  CHECK(total == 2000 * 120, "%lld", static_cast<long long>(total));
}

void nested(int threads) {
  Pool pool(threads);
  std::atomic<int> inner{0}, moved{0};
  pool.run(20, [&](int64_t, int outer) {
    pool.run(5, [&](int64_t, int worker) {
      ++inner;
      moved += worker != outer;
    });
  });
  CHECK(inner == 100 && moved == 0, "%d inner chunks, %d on another worker", inner.load(), moved.load());
}

void two_callers(int threads) {
  Pool pool(threads);
  std::atomic<int> count{0};
  const auto many = [&] {
    for (int i = 0; i < 500; ++i) pool.run(7, [&](int64_t, int) { ++count; });
  };
  std::thread other(many);
  many();
  other.join();
  CHECK(count == 7000, "%d", count.load());
}

void many_tiny_runs(int threads) {
  Pool pool(threads);
  std::atomic<int64_t> count{0};
  const Clock::time_point start = Clock::now();
  constexpr int runs = 5000;
  for (int i = 0; i < runs; ++i) pool.run(threads, [&](int64_t, int) { count.fetch_add(1, std::memory_order_relaxed); });
  CHECK(count == int64_t{runs} * threads, "%lld", static_cast<long long>(count.load()));
  std::printf("pool: %d threads, %.2f us a run\n", threads, microseconds(start) / runs);
}

// Sleeping and waking: runs far apart find the workers parked.
void pauses(int threads) {
  Pool pool(threads);
  std::atomic<int> count{0};
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.run(9, [&](int64_t, int) { ++count; });
  }
  CHECK(count == 180, "%d", count.load());
}

void idle_costs_nothing() {
  Pool pool(8);
  pool.run(64, [](int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const std::clock_t before = std::clock();  // processor time of all threads
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double busy = 1000.0 * static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  CHECK(busy < 10, "%.1f ms of processor time in 200 ms of idleness", busy);
}

// Every thread keeps subnormal numbers, though the caller flushed them before the threads began; it goes on doing so.
void callers_arithmetic_stays_outside(int threads) {
#if defined(__x86_64__)
  const unsigned flushing = _mm_getcsr() | 0x8040;  // FTZ and DAZ
  const unsigned before = _mm_getcsr();
  _mm_setcsr(flushing);
  Pool pool(threads);
  std::atomic<int> flushed{0};
  volatile float tiny = 1e-30F;
  pool.run(threads * 2, [&](int64_t, int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // so that every worker takes one
    flushed += tiny * 1e-10F == 0.0F;
  });
  CHECK(flushed == 0, "%d chunks of %d threads flushed", flushed.load(), threads);
  CHECK(tiny * 1e-10F == 0.0F, "the caller no longer flushes");
  _mm_setcsr(before);
#else
  (void)threads;
#endif
}

}  // namespace

int main() {
  for (int threads = 1; threads <= 8; ++threads) {
    every_chunk_once(threads);
    every_chunk_of_portions_once(threads);
    workers_own_their_numbers(threads);
    nested(threads);
    two_callers(threads);
    many_tiny_runs(threads);
    pauses(threads);
    callers_arithmetic_stays_outside(threads);
  }
  idle_costs_nothing();
  std::puts("pool: ok");
}
