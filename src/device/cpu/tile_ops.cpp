#include "device/cpu/tile_ops.h"
#include "device/isa.h"

namespace onnxgrad::device {

TileTable make_tile_table(Isa isa, DataType compute) {
  TileTable table;
  if (compute == DataType::kInt64) {
    fill_integers(table);
  } else if (compute == DataType::kUint64) {
    fill_unsigned(table);
  } else if (compute == DataType::kFloat32) {
    fill_float_arithmetic(isa, table);
    fill_functions(isa, table, compute);
  } else {
    fill_double_arithmetic(isa, table);
    fill_functions(isa, table, compute);
  }
  return table;
}

}  // namespace onnxgrad::device
