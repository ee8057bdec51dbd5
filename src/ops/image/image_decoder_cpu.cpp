#include "onnxgrad/image_decoder.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "onnxgrad/error.h"
#include "ops/kernel_support.h"

namespace onnxgrad {
namespace {

// Image decoder of the process: a plugin, like a linked library. Nothing else depends on it.
struct Installed {
  std::mutex mutex;
  std::shared_ptr<const ImageDecoder> decoder;
};

Installed& installed() {
  static auto* const one = new Installed;  // threads may decode until the process ends
  return *one;
}

std::shared_ptr<const ImageDecoder> installed_decoder() {
  const std::scoped_lock lock(installed().mutex);
  return installed().decoder;
}

}  // namespace

void set_image_decoder(ImageDecoder decoder) {
  auto next = decoder ? std::make_shared<const ImageDecoder>(std::move(decoder)) : nullptr;
  const std::scoped_lock lock(installed().mutex);
  std::swap(installed().decoder, next);
}

namespace ops::image_decoder_cpu {
namespace {

std::vector<Tensor> run_image_decoder(const DynamicCall& call) {
  const Place where{.node = call.node.name, .op_type = "ImageDecoder"};
  const auto decoder = installed_decoder();
  if (decoder == nullptr) {
    throw UnsupportedOperatorError({.what = "no image decoder is installed",
                                    .where = where,
                                    .hint = "Call set_image_decoder() first, or decode the images "
                                            "before they are fed."});
  }
  const std::string format = call.node.string_attribute("pixel_format", "RGB");
  Tensor image = (*decoder)(call.inputs.at(0), format);
  const std::int64_t channels = format == "Grayscale" ? 1 : 3;
  const Dims& dims = image.dims();
  if (image.dtype() != DataType::kUint8 || dims.rank() != 3 || dims[2] != channels) {
    throw DataError({.what = "the image decoder returned " +
                             std::string(dtype_name(image.dtype())) + " " + dims.to_string() +
                             ", expected uint8 [height, width, " + std::to_string(channels) + "]",
                     .where = where,
                     .hint = "Correct the function given to set_image_decoder()."});
  }
  return {std::move(image)};
}

}  // namespace

void register_image_decoder_cpu(opdef::KernelRegistry& registry) {
  registry.add_dynamic("", "ImageDecoder", run_image_decoder);
}

}  // namespace ops::image_decoder_cpu
}  // namespace onnxgrad
