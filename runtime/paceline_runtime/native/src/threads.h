// How the threads of one step share its phases.
//
// A phase is a number of equal units. Threads take some at a time from one counter, so a thread whose processor is busy
// with something else simply takes fewer; a phase ends when its units are done, not when every thread has come by, so a
// thread that sleeps holds up nobody unless it is in the middle of a unit. Whoever finishes a phase opens the next.
#pragma once
#include <atomic>
#include <cstdint>

class Phases {
 public:
  // The number of the phase that is open; threads of a step start from the same one.
  uint32_t now() const { return uint32_t(ticket_.load(std::memory_order_acquire) >> 32); }

  // Do a part of phase `mine`: body(begin, end) for ranges of [0, total). Returns once the phase is over.
  template <class Body>
  void run(uint32_t mine, uint32_t total, uint32_t threads, Body&& body) {
    for (;;) {
      uint64_t ticket = ticket_.load(std::memory_order_acquire);
      if (uint32_t(ticket >> 32) != mine) return;
      const uint32_t next = uint32_t(ticket);
      if (next >= total) {
        await(mine);
        return;
      }
      // Large shares first, single units last: little is left to wait for at the end.
      uint32_t share = (total - next) / (4 * threads);
      if (share < 1) share = 1;
      if (!ticket_.compare_exchange_weak(ticket, ticket + share, std::memory_order_acq_rel)) continue;
      body(next, next + share);
      if (done_.fetch_add(share, std::memory_order_acq_rel) + share == total) {
        done_.store(0, std::memory_order_relaxed);
        ticket_.store(uint64_t(mine + 1) << 32, std::memory_order_release);
        events_.fetch_add(1, std::memory_order_acq_rel);
        if (threads > 1) events_.notify_all();
        return;
      }
    }
  }

 private:
  // Tens of microseconds: longer than a unit usually takes, far shorter than a turn of another process.
  static constexpr int SPINS = 1000;

  void await(uint32_t mine) {
    for (int i = 0; i < SPINS; i++) {
      if (now() != mine) return;
      __builtin_ia32_pause();
    }
    for (;;) {
      // Counted before the phase is looked at: one that opens in between is an event more, and nobody sleeps through it.
      const uint32_t seen = events_.load(std::memory_order_acquire);
      if (now() != mine) return;
      events_.wait(seen, std::memory_order_acquire);
    }
  }

  alignas(64) std::atomic<uint64_t> ticket_{0};  // open phase in the high half, next unit in the low half
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> events_{0};  // phases opened so far
};
