#ifndef ONNXGRAD_DIST_ROLL_CALL_H_
#define ONNXGRAD_DIST_ROLL_CALL_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "dist/transport.h"

namespace onnxgrad::dist {

/// The collective that a rank waits for: its number in the sequence and its name.
struct Waiting {
  std::int64_t sequence = -1;
  std::array<char, 24> name{};
};

/// Finds the missing ranks when a wait has taken too long. A rank that lacks a message does not
/// know whether the sender or somebody that the sender waits for is to blame. So it calls all
/// ranks; those that wait as well answer, by serve(), and the others are missing.
class RollCall {
 public:
  explicit RollCall(Transport& transport);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  /// Answers calls of other ranks; called repeatedly by a rank that has waited for long.
  void serve(const Waiting& mine);
  /// Calls all ranks, for `seconds`; the answer of each rank, with sequence -1 if it gave none.
  std::vector<Waiting> call(const Waiting& mine, double seconds);

 private:
  struct Peer {
    Request call = nullptr;  // call expected from the rank
    Request answer = nullptr;
    Request my_call = nullptr;  // call sent to the rank
    Request my_answer = nullptr;
    std::byte call_byte{};
    std::byte my_call_byte{};
    Waiting answer_text;
    Waiting my_answer_text;
    bool is_reachable = true;
  };
  void serve(int rank, const Waiting& mine);

  Transport& transport_;
  std::vector<Peer> peers_;
};

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_ROLL_CALL_H_
