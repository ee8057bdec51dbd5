#ifndef ONNXGRAD_VERSION_H_
#define ONNXGRAD_VERSION_H_

namespace [[gnu::visibility("default")]] onnxgrad {

/// The version of these headers. The only definition: CMake, the wheel and the Python
/// package read this line.
inline constexpr const char* kVersion = "0.1.0";

/// The version of the library that the program is linked against. Never throws; thread-safe.
const char* version();

}  // namespace onnxgrad

#endif  // ONNXGRAD_VERSION_H_
