#ifndef ONNXGRAD_DIST_HOST_NAME_H_
#define ONNXGRAD_DIST_HOST_NAME_H_

#include <unistd.h>

#include <array>
#include <string>

namespace onnxgrad::dist {

/// Name of this machine.
inline std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_HOST_NAME_H_
