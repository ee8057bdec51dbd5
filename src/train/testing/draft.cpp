#include "train/testing/draft.h"

#include <fstream>

namespace onnxgrad::train_test {

const nlohmann::json& training_values() {
  static const nlohmann::json values = [] {
    const std::string path = source_dir() + "/tests/data/training_values.json";
    std::ifstream file(path);
    if (!file) throw InternalError("cannot read " + path);
    return nlohmann::json::parse(file);
  }();
  return values;
}

}  // namespace onnxgrad::train_test
