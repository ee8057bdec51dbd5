#ifndef ONNXGRAD_RUNTIME_PLANNED_BODY_H_
#define ONNXGRAD_RUNTIME_PLANNED_BODY_H_

#include <cstdint>
#include <vector>

#include "opdef/body.h"
#include "runtime/plan.h"

namespace onnxgrad::runtime {

/// A plan that is run again and again on the CPU. Of its graph, the inputs are states (by number)
/// and feeds; the outputs are those that are no states, each in the block of its number, then the
/// states' new values, in the blocks that follow, which the plan commits.
class PlannedBody final : public opdef::CompiledBody {
 public:
  PlannedBody(Plan plan, std::vector<opdef::TensorDesc> states);

  const std::vector<opdef::TensorDesc>& outputs() const override { return outputs_; }
  std::int64_t workspace_bytes() const override { return workspace_bytes_; }
  bool may_throw() const override { return plan_.may_throw(); }
  double flops() const override { return flops_; }
  std::int64_t run(const opdef::BodyRun& run, const opdef::Launch& launch) const override;

 private:
  class Runner;

  struct Call {
    opdef::KernelFn fn = nullptr;
    const void* data = nullptr;
    std::size_t first_arg = 0;
  };
  /// An argument whose place is fixed for the whole run.
  struct FixedArg {
    std::size_t arg = 0;
    std::int64_t offset = 0;        // offset in the arena
    std::byte* constant = nullptr;  // or a constant
  };
  /// Arguments whose place changes with the iteration.
  using Args = std::vector<std::size_t>;

  struct State {
    std::int64_t bytes = 0;
    bool swaps = false;              // new and old value are in two areas that change roles
    Args reads = {};                 // arguments that are the current value
    Args writes = {};                // arguments that are the new value, if it swaps
    std::int64_t areas[2] = {0, 0};  // offsets in the workspace
  };

  void sort_arguments();
  void sort_copies();
  void lay_out();
  bool is_in_own_block(std::size_t output) const;

  Plan plan_;
  std::vector<opdef::TensorDesc> outputs_;
  std::vector<Call> calls_;  // by step
  std::size_t num_args_ = 0;
  std::vector<FixedArg> fixed_;
  std::vector<Args> feeds_;    // arguments of each feed
  std::vector<Args> results_;  // arguments of the outputs that are no states
  std::vector<State> states_;
  std::vector<Copy> preserved_;      // first of all
  std::vector<Copy> result_copies_;  // `to.at`: the output that does not lie in its block
  std::vector<Copy> commits_;        // last
  std::int64_t args_offset_ = 0;     // in the workspace, which begins with the arena
  std::int64_t followers_offset_ = 0;
  std::int64_t feeds_offset_ = 0;
  std::int64_t results_offset_ = 0;
  std::int64_t states_offset_ = 0;
  std::int64_t workspace_bytes_ = 0;
  double flops_ = 0;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_PLANNED_BODY_H_
