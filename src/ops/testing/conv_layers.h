#ifndef ONNXGRAD_OPS_TESTING_CONV_LAYERS_H_
#define ONNXGRAD_OPS_TESTING_CONV_LAYERS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "onnxgrad/dims.h"
#include "ops/testing/kernel_run.h"

// Convolution layers on which kernels are compared.

namespace onnxgrad::ops_test::conv {

struct Layer {
  Dims x;
  Dims w;
  Dims y;
  std::vector<std::int64_t> strides;
  std::vector<std::int64_t> pads;
  std::vector<std::int64_t> dilations;
  std::int64_t group = 1;
};

/// Returns a call of Conv or of one of its gradients with the layer's attributes.
KernelCall call_of(const Layer& layer, std::string_view op_type, std::vector<Tensor> inputs,
                   const Dims& result, std::string_view domain);

/// Returns random sizes and attributes with about `work` multiply-adds at most.
Layer random_layer(base::PhiloxStream& stream, std::int64_t work);

}  // namespace onnxgrad::ops_test::conv

#endif  // ONNXGRAD_OPS_TESTING_CONV_LAYERS_H_
