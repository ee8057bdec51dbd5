#include "device/step_kernels.h"

#include <cstring>

#include "device/device.h"

namespace onnxgrad::device {
namespace {

std::int64_t step_of(const SeriesCells& series, const opdef::Launch& launch) {
  return static_cast<std::int64_t>(launch.cells->step - series.first_step);
}

void count_step(const void* /*data*/, opdef::KernelArgs args, const opdef::Launch& /*launch*/) {
  ++args.at<opdef::StepCells>(0)->step;
}

void take_scalar(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  const double value = args.at<double>(1)[step_of(*args.at<SeriesCells>(0), launch)];
  if (static_cast<const ScalarCopy*>(data)->dtype == DataType::kFloat64) {
    *args.at<double>(2) = value;
  } else {
    *args.at<float>(2) = static_cast<float>(value);
  }
}

void keep_scalar(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  const DataType dtype = static_cast<const ScalarCopy*>(data)->dtype;
  args.at<double>(2)[step_of(*args.at<SeriesCells>(0), launch)] =
      host_scalar(args.at<std::byte>(1), dtype);
}

void gather_rows(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  const auto& gather = *static_cast<const RowGather*>(data);
  const auto& series = *args.at<SeriesCells>(0);
  const auto* source = args.at<std::byte>(1);
  const auto* order = args.at<std::int64_t>(2);
  auto* to = args.at<std::byte>(3);
  const std::int64_t first = series.first_place + step_of(series, launch) * gather.batch_rows;
  for (std::int64_t i = 0; i < gather.rows; ++i) {
    const std::int64_t row = order == nullptr ? first + i : order[first + i];
    std::memcpy(to + i * gather.row_bytes, source + row * gather.row_bytes,
                static_cast<std::size_t>(gather.row_bytes));
  }
}

void copy_bytes(const void* data, opdef::KernelArgs args, const opdef::Launch& /*launch*/) {
  std::memcpy(args.at<std::byte>(1), args.at<std::byte>(0),
              static_cast<std::size_t>(static_cast<const ByteCopy*>(data)->bytes));
}

}  // namespace

const StepKernels& host_step_kernels() {
  static constexpr StepKernels kernels{.count_step = count_step,
                                       .take_scalar = take_scalar,
                                       .keep_scalar = keep_scalar,
                                       .gather_rows = gather_rows,
                                       .copy_bytes = copy_bytes};
  return kernels;
}

}  // namespace onnxgrad::device
