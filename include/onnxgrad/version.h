#ifndef ONNXGRAD_VERSION_H_
#define ONNXGRAD_VERSION_H_

// The one place that holds the version: CMake and the Python package read these three numbers.
#define ONNXGRAD_VERSION_MAJOR 0
#define ONNXGRAD_VERSION_MINOR 1
#define ONNXGRAD_VERSION_PATCH 0

#define ONNXGRAD_STRINGIFY_IMPL(x) #x
#define ONNXGRAD_STRINGIFY(x) ONNXGRAD_STRINGIFY_IMPL(x)
#define ONNXGRAD_VERSION                                                      \
  ONNXGRAD_STRINGIFY(ONNXGRAD_VERSION_MAJOR)                                  \
  "." ONNXGRAD_STRINGIFY(ONNXGRAD_VERSION_MINOR) "." ONNXGRAD_STRINGIFY( \
      ONNXGRAD_VERSION_PATCH)

namespace onnxgrad {

/// The version of these headers as text, e.g. "0.1.0".
inline constexpr const char* kVersion = ONNXGRAD_VERSION;

/// The version of the library that the program is linked with. Never throws; thread-safe.
const char* version();

}  // namespace onnxgrad

#endif  // ONNXGRAD_VERSION_H_
