// What every hook asks first: are we off, or inside our own work?
#pragma once

#include <atomic>

namespace nanscan {

// Set in a forked child and at interpreter exit: from then on every hook returns at once. A child shares the parent's
// hooks and ring by copy-on-write, and nobody would ever drain its records.
inline std::atomic<bool>& process_inert() {
  static std::atomic<bool> inert{false};
  return inert;
}

// One level of "we are inside a hook" for the calling thread.
class InsideHook {
 public:
  InsideHook() : was_inside_(depth()++ > 0) {}
  ~InsideHook() { --depth(); }
  InsideHook(const InsideHook&) = delete;
  InsideHook& operator=(const InsideHook&) = delete;

  // True when a hook was already running on this thread: observing it would observe ourselves.
  bool reentered() const { return was_inside_; }

 private:
  static int& depth() {
    static thread_local int value = 0;
    return value;
  }
  bool was_inside_;
};

}  // namespace nanscan
