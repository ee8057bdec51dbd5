#include "onnxgrad/version.h"

namespace onnxgrad {

const char* version() { return kVersion; }

}  // namespace onnxgrad
