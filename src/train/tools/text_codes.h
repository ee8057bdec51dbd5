#ifndef ONNXGRAD_TRAIN_TEXT_CODES_H_
#define ONNXGRAD_TRAIN_TEXT_CODES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/data.h"

// Numbers for the strings of a model, since plans compute with numbers. In a model that reads
// strings (columns of a table that an encoder looks up), each known string has a number, and feeds
// are converted when they are read: no step ever sees a string.

namespace onnxgrad::train {

class TextCodes {
 public:
  static constexpr std::int64_t kUnknown = -1;

  /// Returns the number of `text`; gives it a new one if it has none.
  std::int64_t add(const std::string& text);
  /// Returns the number of `text`; kUnknown if it has none.
  std::int64_t find(const std::string& text) const;
  /// Numbers of `texts`, int64 of the same shape. Unknown texts are kUnknown or, with `grow`, get
  /// numbers.
  Tensor encode(const Tensor& texts) const;
  Tensor encode_growing(const Tensor& texts);
  /// All texts by number, [size].
  Tensor table() const;

 private:
  std::unordered_map<std::string, std::int64_t> codes_;
  std::vector<std::string> texts_;
};

struct NumberedModel {
  std::shared_ptr<const ir::Model> model;
  std::shared_ptr<const TextCodes> texts;  ///< nullptr: the model reads no texts
};

/// `model` with numbers (int64) for the strings that it reads and values computed from them; itself
/// if it reads none, or if a node computes with the texts themselves (StringNormalizer). Outputs
/// that are texts become the numbers of these.
NumberedModel number_texts(std::shared_ptr<const ir::Model> model);

/// `feeds` with arrays of strings replaced by their numbers.
NamedTensors encode_texts(const TextCodes* texts, const NamedTensors& feeds);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TEXT_CODES_H_
