#include <cstring>
#include <iostream>

#include "onnxgrad/version.h"

int main() {
  std::cout << onnxgrad::version() << '\n';
  return std::strcmp(onnxgrad::version(), onnxgrad::kVersion) == 0 ? 0 : 1;
}
