#include "device/cpu/elementwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "device/cpu/elementwise_plan.h"

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kTileBytes = 4096;
constexpr std::int64_t kVectorBytes = 64;  // bytes of the longest vector of any instruction set
constexpr std::int64_t kLongRun = 96;      // elements; shorter runs are combined
constexpr std::int64_t kExactTerms = 128;  // this many floats are summed in float
constexpr double kParallelCost = 200e3;    // in additions: about 20 microseconds

std::int64_t bytes_of(DataType dtype) { return size_bits(dtype) / 8; }

bool is_known(DataType dtype, DataType compute) {
  const bool is_int = is_integer(dtype) || dtype == DataType::kBool;
  return is_int || (is_floating(compute) && is_floating(dtype));
}

class Preparer {
 public:
  explicit Preparer(const ElementwiseSpec& spec) : spec_(spec) {}

  opdef::KernelOffer run() {
    if (std::string reason = find_problem(); !reason.empty()) {
      return opdef::KernelOffer::decline(std::move(reason));
    }
    plan_->element_bytes = bytes_of(spec_.compute);
    plan_->flush_denormals = spec_.flush_denormals;
    plan_->isa = spec_.isa;
    plan_->table = make_tile_table(spec_.isa, spec_.compute);
    plan_->scratch_arg = static_cast<std::int32_t>(spec_.inputs.size() + spec_.outputs.size());
    choose_results();
    make_index_space();
    choose_tiles();
    describe_operands();
    plan_->code = compile_code(spec_.program, spec_.compute, plan_->table, operands_, results_);
    choose_threads();
    lay_out_scratch();
    bind_operands();
    bind_results();
    opdef::KernelOffer offer;
    if (!prepare_post(offer)) return offer;
    offer.kernel.fn = plan_->threads > 1 ? run_elementwise_parallel : run_elementwise;
    offer.kernel.scratch_bytes = scratch_.size_bytes();
    offer.kernel.label = label();
    offer.kernel.flops = plan_->code.cost * static_cast<double>(space_dims_.num_elements());
    add_in_place_pairs(offer.kernel);
    if (!plan_->in_blocks && (spec_.folds.empty() || plan_->block_parts > 0)) {
      offer.kernel.by_blocks = block_work();
    }
    offer.kernel.data = plan_;
    return offer;
  }

 private:
  std::size_t num_main() const { return static_cast<std::size_t>(spec_.program.num_inputs); }
  std::size_t num_stored() const { return static_cast<std::size_t>(spec_.stored); }
  std::int32_t arg_of_output(std::size_t i) const {
    return static_cast<std::int32_t>(spec_.inputs.size() + i);
  }

  std::string find_problem() {
    ONNXGRAD_ASSERT(spec_.inputs.size() >= num_main());
    ONNXGRAD_ASSERT(spec_.program.results.size() == num_stored() + spec_.folds.size());
    for (const auto* list : {&spec_.inputs, &spec_.outputs}) {
      for (const opdef::TensorDesc& desc : *list) {
        if (desc.is_present() && !is_known(desc.dtype, spec_.compute)) {
          return fmt::format("no element-wise kernel in {} for {}", dtype_name(spec_.compute),
                             dtype_name(desc.dtype));
        }
        if (desc.dtype == DataType::kUint64 && spec_.compute == DataType::kInt64 &&
            orders_values()) {
          return "uint64 is computed as int64, which orders large numbers differently";
        }
      }
    }
    for (const auto& desc : std::span(spec_.inputs).first(num_main())) {
      space_dims_ = broadcast_dims(space_dims_, desc.dims);
    }
    for (std::size_t i = 0; i < num_stored(); ++i) {
      const opdef::TensorDesc& desc = spec_.outputs[i];
      if (!desc.is_present() || desc.dims.num_elements() == space_dims_.num_elements()) continue;
      return fmt::format("an output of shape {} for operands that span {}", desc.dims.to_string(),
                         space_dims_.to_string());
    }
    return "";
  }

  /// True if a program depends on which of two values is larger.
  bool orders_values() const {
    using opdef::ExprOp;
    const auto orders = [](const opdef::ExprProgram& program) {
      return std::ranges::any_of(program.instructions, [](const opdef::ExprInstruction& i) {
        switch (i.op) {
          case ExprOp::kDiv:
          case ExprOp::kMod:
          case ExprOp::kFmod:
          case ExprOp::kMin:
          case ExprOp::kMax:
          case ExprOp::kGreater:
          case ExprOp::kGreaterEqual:
          case ExprOp::kLess:
          case ExprOp::kLessEqual:
          case ExprOp::kAbs:
          case ExprOp::kSign:
          case ExprOp::kRelu:
          case ExprOp::kPow:
          case ExprOp::kReciprocal:
            return true;
          default:
            return false;
        }
      });
    };
    return orders(spec_.program) || (spec_.post && orders(*spec_.post)) || !spec_.folds.empty();
  }

  /// Chooses the results that are read.
  void choose_results() {
    for (std::size_t i = 0; i < spec_.program.results.size(); ++i) {
      const bool is_stored = i < num_stored();
      if (is_stored && !spec_.outputs[i].is_present()) continue;
      if (!is_stored && !spec_.post && !spec_.outputs[i].is_present()) continue;
      result_numbers_.push_back(i);
      results_.push_back({.value = spec_.program.results[i],
                          .is_stored = is_stored,
                          .in_place = is_stored && spec_.outputs[i].dtype == spec_.compute});
    }
  }

  void make_index_space() {
    std::vector<Dims> dims;
    for (std::size_t i = 0; i < num_main(); ++i) dims.push_back(spec_.inputs[i].dims);
    std::vector<bool> reduced;
    if (!spec_.folds.empty()) {
      reduced.assign(space_dims_.rank(), false);
      for (const std::int64_t axis : spec_.reduce_axes) {
        reduced[static_cast<std::size_t>(axis)] = true;
      }
      plan_->reduced_size = 1;
      for (std::size_t axis = 0; axis < reduced.size(); ++axis) {
        if (!reduced[axis]) plan_->reduced_size *= space_dims_[axis];
      }
    }
    plan_->space = make_space(space_dims_, dims, reduced);
    plan_->rows = plan_->space.rows();
    plan_->run = plan_->space.run();
  }

  void choose_tiles() {
    ElementwisePlan& plan = *plan_;
    plan.tile = kTileBytes / plan.element_bytes;
    plan.in_blocks = plan.rows > 1 && plan.run < kLongRun;
    if (plan.rows == 0 || plan.run == 0) {
      plan.tiles = 0;
    } else if (plan.in_blocks) {
      plan.rows_per_block = std::min(plan.rows, plan.tile / plan.run);
      plan.tiles = ceil_div(plan.rows, plan.rows_per_block);
    } else {
      plan.tiles_per_row = ceil_div(plan.run, plan.tile);
      plan.tiles = plan.rows * plan.tiles_per_row;
    }
    if (spec_.folds.empty()) return;
    const std::vector<std::int64_t>& strides = plan.space.strides.back();
    plan.run_is_reduced = strides.back() == 0;
    bool outer_is_kept = true;
    bool outer_is_reduced = true;
    std::int64_t terms = 1;  // elements that are added to one total
    for (std::size_t axis = 0; axis + 1 < strides.size(); ++axis) {
      (strides[axis] == 0 ? outer_is_kept : outer_is_reduced) = false;
      if (strides[axis] == 0) terms *= plan.space.dims[axis];
    }
    if (plan.run_is_reduced) terms *= std::max<std::int64_t>(plan.tiles_per_row, 1);
    plan.fold_once = plan.tiles == 1 && (plan.run_is_reduced ? outer_is_kept : outer_is_reduced);
    has_many_terms_ = terms > kExactTerms;
    if (!plan.in_blocks && !plan.run_is_reduced && outer_is_reduced && !spec_.post) {
      plan.block_parts = spec_.block_parts;
    }
  }

  void describe_operands() {
    const ElementwisePlan& plan = *plan_;
    for (std::size_t i = 0; i < num_main(); ++i) {
      const opdef::TensorDesc& desc = spec_.inputs[i];
      const bool same_type = desc.dtype == spec_.compute;
      CodeOperand operand{.in_place = same_type};
      if (plan.space.is_single(i)) {
        operand.rate = Rate::kCall;
      } else if (plan.in_blocks) {
        operand.in_place = same_type && plan.space.is_dense(i);
      } else if (!plan.space.moves_along_run(i)) {
        operand.rate = Rate::kRow;
      }
      operand.may_be_overwritten =
          same_type && operand.rate == Rate::kTile && plan.space.is_dense(i);
      operands_.push_back(operand);
    }
  }

  void choose_threads() {
    ElementwisePlan& plan = *plan_;
    const double cost = (plan.code.cost + 1 + static_cast<double>(num_main())) *
                        static_cast<double>(space_dims_.num_elements());
    const auto useful = static_cast<std::int64_t>(cost / kParallelCost);
    plan.threads = static_cast<int>(
        std::clamp<std::int64_t>(std::min<std::int64_t>(useful, plan.tiles), 1, spec_.threads));
    if (plan.threads > 1 || plan.block_parts > 0) plan.fold_once = false;
  }

  Mover mover_of(std::int32_t slot, std::int32_t arg, DataType dtype,
                 std::vector<std::int64_t> strides) const {
    return {
        .slot = slot, .arg = arg, .element_bytes = bytes_of(dtype), .strides = std::move(strides)};
  }

  std::vector<std::int64_t> dense_strides() const {
    std::vector<std::int64_t> strides(plan_->space.dims.size(), 1);
    for (std::size_t axis = strides.size() - 1; axis-- > 0;) {
      strides[axis] = strides[axis + 1] * plan_->space.dims[axis + 1];
    }
    return strides;
  }

  /// Lays out the scratch block: table of slots, cells, buffers, totals and folds of each thread;
  /// then arguments and scratch of the second program.
  void lay_out_scratch() {
    ElementwisePlan& plan = *plan_;
    const Code& code = plan.code;
    ScratchLayout own, of_chunk;
    own.reserve<void*>(static_cast<std::int64_t>(code.slots.size()));
    const std::int64_t cells = own.reserve<std::byte>(code.num_cells * kCellBytes).offset;
    const std::int64_t tile =
        plan.in_blocks ? plan.rows_per_block * plan.run : std::min(plan.tile, plan.run);
    const std::int64_t buffer_bytes =
        aligned_bytes<std::byte>(tile * plan.element_bytes) + kVectorBytes;
    const std::int64_t buffers = own.reserve<std::byte>(code.num_buffers * buffer_bytes).offset;
    for (const Slot& slot : code.slots) {
      switch (slot.kind) {
        case SlotKind::kConstant:
          plan.slots.push_back({SlotBase::kConstants, slot.index * kCellBytes});
          break;
        case SlotKind::kCell:
          plan.slots.push_back({plan.scratch_arg, cells + slot.index * kCellBytes});
          break;
        case SlotKind::kBuffer:
          plan.slots.push_back({plan.scratch_arg, buffers + slot.index * buffer_bytes});
          break;
        case SlotKind::kOperand:
          plan.slots.push_back({slot.index, 0});
          break;
        case SlotKind::kOutput:
          plan.slots.push_back(
              {arg_of_output(result_numbers_[static_cast<std::size_t>(slot.index)]), 0});
          break;
      }
    }
    for (std::size_t r = 0; r < results_.size(); ++r) {
      if (results_[r].is_stored) continue;
      const Fold fold = spec_.folds[result_numbers_[r] - num_stored()];
      Reduction reduction{.fold = fold, .slot = code.result_slots[r]};
      reduction.is_wide = spec_.compute == DataType::kFloat32 && fold == Fold::kSum &&
                          !plan.fold_once &&
                          (has_many_terms_ || plan.threads > 1 || plan.block_parts > 0);
      const std::int64_t bytes = plan.reduced_size * (reduction.is_wide ? 8 : plan.element_bytes);
      reduction.totals = of_chunk.reserve<std::byte>(bytes + kVectorBytes);
      plan.reductions.push_back(reduction);
    }
    if (!plan.reductions.empty()) {
      const std::int64_t bytes = std::max(plan.run, plan.rows_per_block) * plan.element_bytes;
      plan.folds = own.reserve<std::byte>(bytes + kVectorBytes);
    }
    plan.thread_scratch = scratch_.reserve_blocks(std::max(plan.threads, spec_.block_threads), own);
    plan.chunk_scratch =
        scratch_.reserve_blocks(std::max<std::int64_t>(plan.threads, plan.block_parts), of_chunk);
  }

  void bind_operands() {
    ElementwisePlan& plan = *plan_;
    for (std::size_t i = 0; i < num_main(); ++i) {
      const std::int32_t slot = plan.code.operand_slots[i];
      if (slot < 0) continue;
      const DataType dtype = spec_.inputs[i].dtype;
      const CodeOperand& operand = operands_[i];
      const Mover memory =
          mover_of(slot, static_cast<std::int32_t>(i), dtype, plan.space.strides[i]);
      if (operand.in_place) {
        if (operand.rate != Rate::kCall) plan.movers.push_back(memory);
        continue;
      }
      Transfer load{.slot = slot, .memory = memory};
      if (dtype != spec_.compute) load.convert = find_conversion(spec_.isa, dtype, spec_.compute);
      if (operand.rate == Rate::kCall) {
        plan.call_loads.push_back(load);
      } else if (operand.rate == Rate::kRow) {
        plan.row_loads.push_back(load);
      } else {
        load.is_dense = plan.space.is_dense(i);
        load.once = plan.in_blocks && !load.is_dense &&
                    std::ranges::all_of(memory.strides.begin(), memory.strides.end() - 1,
                                        [](std::int64_t stride) { return stride == 0; });
        plan.tile_loads.push_back(load);
      }
    }
  }

  void bind_results() {
    ElementwisePlan& plan = *plan_;
    for (std::size_t r = 0; r < results_.size(); ++r) {
      const std::size_t number = result_numbers_[r];
      if (!results_[r].is_stored) continue;
      const DataType dtype = spec_.outputs[number].dtype;
      const Mover memory =
          mover_of(plan.code.result_slots[r], arg_of_output(number), dtype, dense_strides());
      if (results_[r].in_place) {
        plan.movers.push_back(memory);
      } else {
        plan.stores.push_back({.convert = find_conversion(spec_.isa, spec_.compute, dtype),
                               .slot = memory.slot,
                               .memory = memory,
                               .is_dense = true});
      }
    }
    if (spec_.post) return;
    std::size_t next = 0;
    for (std::size_t r = 0; r < results_.size(); ++r) {
      if (results_[r].is_stored) continue;
      Reduction& reduction = plan.reductions[next++];
      reduction.arg = arg_of_output(result_numbers_[r]);
      reduction.convert =
          find_conversion(spec_.isa, spec_.compute, spec_.outputs[result_numbers_[r]].dtype);
    }
  }

  /// Prepares the second program; returns false, with the reason in `offer`, if it has no kernel.
  bool prepare_post(opdef::KernelOffer& offer) {
    if (!spec_.post) return true;
    const auto operands = std::span(spec_.inputs).subspan(num_main());
    // Operands of the result's size, or of one element, are traversed flat with it.
    const bool is_flat = std::ranges::all_of(operands, [&](const opdef::TensorDesc& desc) {
      const std::int64_t size = desc.dims.num_elements();
      return size == 1 || size == plan_->reduced_size;
    });
    Dims reduced{plan_->reduced_size};
    if (!is_flat) {
      std::vector<std::int64_t> kept(space_dims_.begin(), space_dims_.end());
      for (const std::int64_t axis : spec_.reduce_axes) kept[static_cast<std::size_t>(axis)] = 1;
      reduced = Dims(std::move(kept));
    }
    ElementwiseSpec post{.program = *spec_.post,
                         .compute = spec_.compute,
                         .threads = spec_.threads,
                         .isa = spec_.isa};
    for (std::size_t i = 0; i < spec_.folds.size(); ++i)
      post.inputs.push_back({spec_.compute, reduced});
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const std::int64_t size = operands[i].dims.num_elements();
      const Dims flat = size == 1 ? Dims{} : Dims{size};
      post.inputs.push_back({operands[i].dtype, is_flat ? flat : operands[i].dims});
      plan_->post_args.push_back(static_cast<std::int32_t>(num_main() + i));
    }
    for (std::size_t i = num_stored(); i < spec_.outputs.size(); ++i) {
      post.outputs.push_back(spec_.outputs[i]);
      plan_->post_args.push_back(arg_of_output(i));
    }
    post.stored = static_cast<std::int64_t>(post.outputs.size());
    offer = prepare_elementwise(post);
    if (offer.kernel.fn == nullptr) return false;
    const auto count = static_cast<std::int64_t>(spec_.folds.size() + plan_->post_args.size() + 1);
    plan_->post_table = scratch_.reserve<std::byte*>(count);
    plan_->post_scratch = scratch_.reserve<std::byte>(offer.kernel.scratch_bytes);
    plan_->post = std::move(offer.kernel);
    offer = {};
    return true;
  }

  opdef::BlockWork block_work() const {
    opdef::BlockWork work{.fn = run_elementwise_block, .cut = opdef::BlockCut::kAny};
    if (!spec_.folds.empty()) work.finish = finish_elementwise_blocks;
    for (std::size_t i = 0; i < num_main(); ++i) {
      if (plan_->space.is_dense(i)) work.inputs.push_back(static_cast<int>(i));
    }
    work.threads = plan_->threads;
    work.most_threads = std::max(plan_->threads, spec_.block_threads);
    return work;
  }

  void add_in_place_pairs(opdef::PreparedKernel& kernel) const {
    for (std::size_t i = 0; i < num_main(); ++i) {
      if (!plan_->space.is_dense(i)) continue;
      for (std::size_t o = 0; o < num_stored(); ++o) {
        const opdef::TensorDesc& output = spec_.outputs[o];
        if (!output.is_present() || output.dtype != spec_.inputs[i].dtype) continue;
        if (output.dims.num_elements() != spec_.inputs[i].dims.num_elements()) continue;
        if (is_other_operand(o, i)) continue;
        kernel.in_place.emplace_back(static_cast<int>(i), static_cast<int>(o));
      }
    }
    // All operands have been read when the second program writes.
    for (std::size_t i = 0; i < num_main(); ++i) {
      for (std::size_t o = num_stored(); spec_.post && o < spec_.outputs.size(); ++o) {
        const opdef::TensorDesc& output = spec_.outputs[o];
        const opdef::TensorDesc& input = spec_.inputs[i];
        if (output.is_present() && output.dtype == input.dtype &&
            output.dims.num_elements() == input.dims.num_elements()) {
          kernel.in_place.emplace_back(static_cast<int>(i), static_cast<int>(o));
        }
      }
    }
    const auto folds = static_cast<int>(spec_.folds.size());
    for (const auto& [from, to] : plan_->post.in_place) {
      if (from < folds) continue;
      kernel.in_place.emplace_back(from - folds + static_cast<int>(num_main()),
                                   to + static_cast<int>(num_stored()));
    }
  }

  /// True if output `o` is a mere copy of an operand other than `i`: two of these could swap
  /// places.
  bool is_other_operand(std::size_t o, std::size_t i) const {
    const auto& value =
        spec_.program.instructions[static_cast<std::size_t>(spec_.program.results[o])];
    return value.op == opdef::ExprOp::kInput && value.a != static_cast<std::int32_t>(i);
  }

  std::string label() const {
    std::string text = spec_.program.to_short_string();
    if (!spec_.folds.empty()) text += fmt::format(" -> [{}]", plan_->reduced_size);
    return fmt::format("{} {}", text, space_dims_.to_string());
  }

  const ElementwiseSpec& spec_;
  std::shared_ptr<ElementwisePlan> plan_ = std::make_shared<ElementwisePlan>();
  Dims space_dims_;
  std::vector<CodeOperand> operands_;
  std::vector<CodeResult> results_;
  std::vector<std::size_t> result_numbers_;  // indices of results_ in the program
  bool has_many_terms_ = false;
  ScratchLayout scratch_;
};

}  // namespace

opdef::KernelOffer prepare_elementwise(const ElementwiseSpec& spec) { return Preparer(spec).run(); }

}  // namespace onnxgrad::device
