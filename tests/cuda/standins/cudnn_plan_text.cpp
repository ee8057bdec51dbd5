#include "cudnn_plan_text.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace onnxgrad::cuda_standin {
namespace {

constexpr const char* kBegin = "plan";
constexpr const char* kEnd = "end";
constexpr std::size_t kMost = 1000;  // elements of a list

/// Writes members as words.
class Writer {
 public:
  void one(const int& value) { words_ << value << ' '; }
  void one(const std::int64_t& value) { words_ << value << ' '; }
  void one(const bool& value) { words_ << (value ? 1 : 0) << ' '; }
  void one(const double& value) {
    char text[64];
    std::snprintf(text, sizeof text, "%a ", value);
    words_ << text;
  }
  template <class T>
  std::size_t size(const std::vector<T>& list) {
    one(static_cast<std::int64_t>(list.size()));
    return list.size();
  }
  std::string text() const { return words_.str(); }

 private:
  std::ostringstream words_;
};

/// Reads them again.
class Reader {
 public:
  explicit Reader(const std::string& text) : words_(text) {}
  void one(int& value) { words_ >> value; }
  void one(std::int64_t& value) { words_ >> value; }
  void one(bool& value) { words_ >> value; }
  void one(double& value) {
    std::string word;
    words_ >> word;
    value = std::strtod(word.c_str(), nullptr);
  }
  template <class T>
  std::size_t size(std::vector<T>& list) {
    std::size_t size = 0;
    words_ >> size;
    if (size > kMost) words_.setstate(std::ios::failbit);
    list.resize(words_ ? size : 0);
    return list.size();
  }
  bool has(const std::string& expected) {
    std::string word;
    return words_ >> word && word == expected;
  }

 private:
  std::istringstream words_;
};

template <class Visitor, class List>
void visit_list(Visitor& visitor, List& list) {
  visitor.size(list);
  for (auto& value : list) visitor.one(value);
}

template <class Visitor, class Tensor>
void visit_tensor(Visitor& visitor, Tensor& tensor) {
  visitor.one(tensor.uid);
  visit_list(visitor, tensor.dims);
  visit_list(visitor, tensor.strides);
  visitor.one(tensor.type);
  visitor.one(tensor.is_virtual);
  visitor.one(tensor.is_by_value);
}

template <class Visitor, class Plan>
void visit(Visitor& visitor, Plan& plan) {
  visitor.one(plan.engine);
  visitor.size(plan.operations);
  for (auto& op : plan.operations) {
    visitor.one(op.type);
    for (auto* tensor : {&op.x, &op.b, &op.y, &op.condition}) visit_tensor(visitor, *tensor);
    visitor.one(op.has_b);
    visitor.one(op.mode);
    visitor.one(op.axis);
    visitor.one(op.low);
    visitor.one(op.high);
    for (auto* list : {&op.strides, &op.dilations, &op.begins, &op.ends, &op.window}) {
      visit_list(visitor, *list);
    }
  }
}

}  // namespace

std::string to_text(const DnnPlanText& plan) {
  Writer writer;
  visit(writer, plan);
  return std::string(kBegin) + " " + writer.text() + kEnd;
}

std::optional<DnnPlanText> plan_from(const std::string& text) {
  Reader reader(text);
  DnnPlanText plan;
  if (!reader.has(kBegin)) return std::nullopt;
  visit(reader, plan);
  if (!reader.has(kEnd)) return std::nullopt;
  return plan;
}

}  // namespace onnxgrad::cuda_standin
