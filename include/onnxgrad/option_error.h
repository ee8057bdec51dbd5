#ifndef ONNXGRAD_OPTION_ERROR_H_
#define ONNXGRAD_OPTION_ERROR_H_

#include <string_view>

#include "onnxgrad/error.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// An invalid option: an unknown loss name, a negative learning rate, a batch of
/// no rows. For errors in the calling code, not in models or data.
class OptionError : public Error {
 public:
  using Error::Error;
  ~OptionError() override;
  std::string_view kind() const override { return "OptionError"; }
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_OPTION_ERROR_H_
