#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "base/files.h"
#include "onnx/model_io.h"
#include "onnxgrad/error.h"
#include "opdef/registry.h"

// Test support: tests/python compares its output in other runtimes. Reads one job per line,
// "<what> <in> <out>", and prints one line each: "ok", or the class and the message of the error.
//   same         import and export
//   internal     to_internal, with an empty registry: functions are expanded, nothing is lowered
//   target:<n>   that, then to_target_opset(n) with functions inlined

namespace {

using onnxgrad::onnx_io::FileModel;

std::string run_job(const std::string& what, const std::string& in, const std::string& out) {
  const onnxgrad::opdef::OpRegistry registry;
  const FileModel file = onnxgrad::onnx_io::load_file(in);
  if (what == "same") {
    onnxgrad::onnx_io::save_file(*file.model, out);
    return "ok";
  }
  onnxgrad::ir::Model model = onnxgrad::onnx_io::to_internal(file, registry);
  if (what.starts_with("target:")) {
    model = onnxgrad::onnx_io::to_target_opset(model, std::stoll(what.substr(7)), true);
  } else if (what != "internal") {
    return "usage: unknown job '" + what + "'";
  }
  onnxgrad::onnx_io::save_file(model, out);
  return "ok";
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what;
    std::string in;
    std::string out;
    words >> what >> in >> out;
    std::string result;
    try {
      result = run_job(what, in, out);
    } catch (const onnxgrad::Error& error) {
      result = std::string(error.kind()) + ": " + error.what();
    } catch (const std::exception& error) {
      result = std::string("foreign exception: ") + error.what();
    }
    std::cout << one_line(result) << std::endl;
  }
  return 0;
}
