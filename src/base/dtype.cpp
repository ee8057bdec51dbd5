#include "onnxgrad/dtype.h"

#include <algorithm>
#include <array>

namespace onnxgrad {
namespace {

struct Row {
  DataType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array kRows = {
    Row{DataType::kFloat32, "float32", 32},
    Row{DataType::kUint8, "uint8", 8},
    Row{DataType::kInt8, "int8", 8},
    Row{DataType::kUint16, "uint16", 16},
    Row{DataType::kInt16, "int16", 16},
    Row{DataType::kInt32, "int32", 32},
    Row{DataType::kInt64, "int64", 64},
    Row{DataType::kString, "string", 0},
    Row{DataType::kBool, "bool", 8},
    Row{DataType::kFloat16, "float16", 16},
    Row{DataType::kFloat64, "float64", 64},
    Row{DataType::kUint32, "uint32", 32},
    Row{DataType::kUint64, "uint64", 64},
    Row{DataType::kComplex64, "complex64", 64},
    Row{DataType::kComplex128, "complex128", 128},
    Row{DataType::kBfloat16, "bfloat16", 16},
    Row{DataType::kFloat8E4M3FN, "float8_e4m3fn", 8},
    Row{DataType::kFloat8E4M3FNUZ, "float8_e4m3fnuz", 8},
    Row{DataType::kFloat8E5M2, "float8_e5m2", 8},
    Row{DataType::kFloat8E5M2FNUZ, "float8_e5m2fnuz", 8},
    Row{DataType::kUint4, "uint4", 4},
    Row{DataType::kInt4, "int4", 4},
    Row{DataType::kFloat4E2M1, "float4_e2m1fn", 4},
    Row{DataType::kFloat8E8M0, "float8_e8m0fnu", 8},
    Row{DataType::kUint2, "uint2", 2},
    Row{DataType::kInt2, "int2", 2},
};

const Row* find_row(DataType dtype) {
  const auto* const row = std::find_if(kRows.begin(), kRows.end(), [dtype](const Row& candidate) {
    return candidate.dtype == dtype;
  });
  return row == kRows.end() ? nullptr : &*row;
}

}  // namespace

int size_bits(DataType dtype) {
  const Row* row = find_row(dtype);
  return row == nullptr ? 0 : row->bits;
}

std::string_view dtype_name(DataType dtype) {
  const Row* row = find_row(dtype);
  return row == nullptr ? "undefined" : row->name;
}

std::optional<DataType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

bool is_f16(DataType dtype) { return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16; }

bool is_floating(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16 ||
         dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

bool is_integer(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kUint16:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUint32:
    case DataType::kUint64:
      return true;
    default:
      return false;
  }
}

}  // namespace onnxgrad
