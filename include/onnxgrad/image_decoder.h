#ifndef ONNXGRAD_IMAGE_DECODER_H_
#define ONNXGRAD_IMAGE_DECODER_H_

#include <functional>
#include <string_view>

#include "onnxgrad/tensor.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// Decodes an image file `encoded`, uint8 [n], for operator ImageDecoder: returns uint8 [H, W, C]
/// with C = 3 for the pixel formats "RGB" and "BGR", C = 1 for "Grayscale". An exception ends the
/// run.
using ImageDecoder = std::function<Tensor(const Tensor& encoded, std::string_view pixel_format)>;

/// Sets the decoder of this process; an empty one removes it. This library has none of its own:
/// formats of images are the business of image libraries. The Python package sets one that uses
/// Pillow. Thread-safe; a run that has begun keeps the decoder that was set before.
void set_image_decoder(ImageDecoder decoder);

}  // namespace onnxgrad

#endif  // ONNXGRAD_IMAGE_DECODER_H_
