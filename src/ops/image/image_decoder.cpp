#include "opdef/registry.h"
#include "ops/rules.h"

// ImageDecoder (ai.onnx 20): decodes an image file to a uint8 tensor. Its size depends on the file.

namespace onnxgrad::ops::image_decoder_op {

void register_image_decoder(opdef::OpRegistry& registry) {
  registry.add({.op_type = "ImageDecoder",
                .since_version = 20,
                .attributes = {choice_attribute("pixel_format", {"RGB", "BGR", "Grayscale"})},
                .zero_gradient = true});
}

}  // namespace onnxgrad::ops::image_decoder_op
