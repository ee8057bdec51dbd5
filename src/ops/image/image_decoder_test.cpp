#include "onnxgrad/image_decoder.h"

#include <string_view>

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace image_decoder {

// Decodes the file format of these tests: height, width, then red, green and blue of each pixel.
Tensor decode(const Tensor& encoded, std::string_view pixel_format) {
  const auto bytes = encoded.data<std::uint8_t>();
  const std::int64_t height = bytes.size() < 2 ? 0 : bytes[0];
  const std::int64_t width = bytes.size() < 2 ? 0 : bytes[1];
  const std::int64_t channels = pixel_format == "Grayscale" ? 1 : 3;
  Tensor image = Tensor::empty(DataType::kUint8, {height, width, channels});
  const auto pixels = image.mutable_data<std::uint8_t>();
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const std::size_t pixel = i / static_cast<std::size_t>(channels);
    const std::size_t color = i % static_cast<std::size_t>(channels);
    pixels[i] = bytes[2 + 3 * pixel + (pixel_format == "BGR" ? 2 - color : color)];
  }
  return image;
}

OpCase decoded(std::string name, const std::string& attributes, std::vector<double> expected,
               std::vector<double> file = {1, 2, 10, 20, 30, 40, 50, 60}) {
  const auto size = static_cast<std::int64_t>(file.size());
  return {.name = std::move(name),
          .model = "y = ImageDecoder " + attributes + "(x)",
          .inputs = {values(std::move(file), {size}, DataType::kUint8)},
          .no_gradient = "bytes",
          .expected = {std::move(expected)},
          .no_oracle = "the format is that of this test"};
}

}  // namespace image_decoder

std::vector<OpCase> image_decoder_cases() {
  set_image_decoder(image_decoder::decode);  // decoder for tests that run the cases
  const std::vector<double> rgb = {10, 20, 30, 40, 50, 60};
  return {image_decoder::decoded("default", "", rgb),
          image_decoder::decoded("rgb", "<pixel_format = \"RGB\"> ", rgb),
          image_decoder::decoded("bgr", "<pixel_format = \"BGR\"> ", {30, 20, 10, 60, 50, 40}),
          image_decoder::decoded("gray", "<pixel_format = \"Grayscale\"> ", {10, 40}),
          image_decoder::decoded("empty", "", {}, {}),
          image_decoder::decoded("short", "", {}, {7})};
}

std::vector<ErrorCase> image_decoder_error_cases() {
  return {{.name = "format",
           .model = "[head] y = ImageDecoder <pixel_format = \"CMYK\"> (x)",
           .inputs = {values({1, 1, 1, 2, 3}, {5}, DataType::kUint8)},
           .error = "ModelError",
           .fragments = {"head", "pixel_format"}}};
}

}  // namespace onnxgrad::ops_test
