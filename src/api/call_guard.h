#ifndef ONNXGRAD_API_CALL_GUARD_H_
#define ONNXGRAD_API_CALL_GUARD_H_

#include <atomic>

#include "onnxgrad/error.h"

namespace onnxgrad::api {

/// Lets one call at a time into a session and refuses others.
class CallGuard {
 public:
  /// Throws: Error while another CallGuard on `busy` lives.
  explicit CallGuard(std::atomic<bool>& busy) : busy_(busy) {
    if (busy_.exchange(true, std::memory_order_acquire)) {
      throw Error({.what = "the session is busy with another call",
                   .mend = "Use one session per thread, and none inside its own callbacks."});
    }
  }
  ~CallGuard() { busy_.store(false, std::memory_order_release); }
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;

 private:
  std::atomic<bool>& busy_;
};

}  // namespace onnxgrad::api

#endif  // ONNXGRAD_API_CALL_GUARD_H_
