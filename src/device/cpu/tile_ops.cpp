#include "device/cpu/tile_ops.h"

namespace onnxgrad::device {

TileTable make_tile_table(DataType compute) {
  TileTable table;
  if (compute == DataType::kInt64) {
    fill_integers(table);
  } else if (compute == DataType::kUint64) {
    fill_unsigned(table);
  } else if (compute == DataType::kFloat32) {
    fill_float_arithmetic(table);
    fill_functions(table, compute);
  } else {
    fill_double_arithmetic(table);
    fill_functions(table, compute);
  }
  return table;
}

}  // namespace onnxgrad::device
