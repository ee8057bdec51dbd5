#ifndef ONNXGRAD_OPTION_ERROR_H_
#define ONNXGRAD_OPTION_ERROR_H_

#include <string_view>

#include "onnxgrad/error.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// An option that has no meaning: an unknown name of a loss, a negative learning rate, a batch of
/// no rows. Of errors in the code that calls, not in models or data.
class OptionError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const override { return "OptionError"; }
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_OPTION_ERROR_H_
