#ifndef ONNXGRAD_DEVICE_CPU_ELEMENTWISE_CODE_H_
#define ONNXGRAD_DEVICE_CPU_ELEMENTWISE_CODE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/cpu/tile_ops.h"
#include "onnxgrad/dtype.h"
#include "opdef/expr.h"

// A program of opdef/expr.h as instructions over tiles. A value lives in a slot: an entry of the
// table of pointers kept by the run, which points to an operand, an output, a cell (one element)
// or a buffer of one tile. Neither an optimizer's slot nor a cell of opdef::StepCells is meant.
// Values that do not change within a tile are computed once per call or per row.

namespace onnxgrad::device {

/// Frequency with which a value must be computed.
enum class Rate : std::uint8_t { kPlan, kCall, kRow, kTile };

enum class SlotKind : std::uint8_t {
  kConstant,  ///< a cell that is filled at plan time; `index`: its number
  kCell,      ///< an element in the scratch block
  kBuffer,    ///< a tile in the scratch block
  kOperand,   ///< an operand in place
  kOutput     ///< an output in place
};

struct Slot {
  SlotKind kind = SlotKind::kCell;
  std::int32_t index = 0;
};

/// A tile function and its slots.
struct Instruction {
  TileFn fn = nullptr;
  std::int32_t to = 0, a = 0, b = 0, c = 0;  ///< slots
  bool pad = false;                          ///< see TileFn
};

/// Properties of an operand that compile_code() uses.
struct CodeOperand {
  Rate rate = Rate::kTile;  ///< kCall: one element; kRow: one per row; kTile: one per element
  bool in_place = true;     ///< read in place; else the run loads it into a cell or buffer
  bool may_be_overwritten = false;  ///< an output may have its address
};

/// Properties of a result that compile_code() uses.
struct CodeResult {
  std::int32_t value = 0;  ///< instruction of the program
  bool is_stored = true;  ///< has an output; else it only has to exist during the run (a reduction)
  bool in_place = true;   ///< written in place; else the run stores it from the slot
};

/// A compiled program.
struct Code {
  DataType compute = DataType::kUndefined;
  std::vector<Slot> slots;
  /// Cells of constants: 64 bytes each, 64-byte aligned.
  std::shared_ptr<std::byte> constants;
  std::vector<Instruction> per_call, per_row, per_tile;
  std::vector<std::int32_t> operand_slots;  ///< -1: not read
  std::vector<std::int32_t> result_slots;   ///< where the run finds each result after a tile
  std::int32_t num_cells = 0;
  std::int32_t num_buffers = 0;
  double cost = 0;  ///< of one element, in additions
};

inline constexpr std::int64_t kCellBytes = 64;

/// Compiles `program`. `table`: make_tile_table() of `compute`. `operands`: one per input.
/// `results`: in the order of the outputs.
Code compile_code(const opdef::ExprProgram& program, DataType compute, const TileTable& table,
                  std::span<const CodeOperand> operands, std::span<const CodeResult> results);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_ELEMENTWISE_CODE_H_
