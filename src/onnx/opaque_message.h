#ifndef ONNXGRAD_ONNX_OPAQUE_MESSAGE_H_
#define ONNXGRAD_ONNX_OPAQUE_MESSAGE_H_

#include <string>
#include <string_view>

#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {

/// The bytes of a message that is passed through unread. protobuf must accept them as a `Message`
/// too, since the files we write contain them. `what` names it. Throws: ModelError.
template <class Message>
std::string opaque(std::string_view bytes, const char* what) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw ModelError({.what = std::string("the bytes of ") + what + " are damaged",
                      .hint = "Fetch or export the model again."});
  }
  return std::string(bytes);
}

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_OPAQUE_MESSAGE_H_
