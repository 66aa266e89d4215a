// Persistent worker threads that share out the chunks of one job at a time.
//
// Which worker computes a chunk never changes its bits: kernels give every chunk its own outputs.  Workers spin for a
// few tens of microseconds after a job (the next op of a step follows at once), then park in the kernel: idle costs 0 %.
// The pool does not know kernels, arrays or Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace flyweight {

class Pool {
 public:
  // `threads` counts the caller: Pool(1) starts no thread at all.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(chunk, worker) once for every chunk in [0, chunks), worker in [0, threads()); returns when all are done.
  // A run inside a run is done by the worker that starts it; runs from several threads wait for each other.
  template <class F>
  void run(int64_t chunks, F&& f) {
    run_job(job_of(chunks, f, false));
  }

  // The same, for chunks that are stored one behind the other: each worker goes through a portion of them, and when it
  // is through it helps others from the end of theirs.  So a worker reads one stream, which its prefetchers follow.
  template <class F>
  void run_portions(int64_t chunks, F&& f) {
    run_job(job_of(chunks, f, true));
  }

 private:
  struct Job {
    void (*call)(const void*, int64_t, int) = nullptr;
    const void* body = nullptr;
    int64_t chunks = 0;
    bool portions = false;
  };
  // A worker's chunks that nobody has taken: [low, high) in the halves of one word, so that both ends can be taken from.
  struct alignas(64) Portion {
    std::atomic<uint64_t> left{0};
  };

  template <class F>
  static Job job_of(int64_t chunks, F& f, bool portions) {
    const auto call = [](const void* body, int64_t chunk, int worker) {
      (*static_cast<F*>(const_cast<void*>(body)))(chunk, worker);
    };
    return Job{call, std::addressof(f), chunks, portions};
  }

  void run_job(const Job& job);
  void share_out(int64_t chunks);
  int64_t take_from_portions(int worker);    // -1: all are taken
  void stop();
  void work(int worker);                      // a worker thread's life
  void take_chunks(const Job& job, int worker);
  uint32_t wait_for_change(uint32_t seen);    // spins, then parks

  // One word holds everything: how many workers are inside the job (low bits), whether the job is open for joining, and
  // the job's number.  Joining is optional: a worker that wakes late finds the job closed and no thread waited for it.
  alignas(64) std::atomic<uint32_t> state_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) Job job_;
  std::vector<Portion> portions_;  // one a thread
  std::mutex runs_;
  std::vector<std::thread> workers_;
  const int process_;  // whose threads the workers are
};

}  // namespace flyweight
