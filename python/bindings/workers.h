#ifndef ONNXGRAD_PYTHON_BINDINGS_WORKERS_H_
#define ONNXGRAD_PYTHON_BINDINGS_WORKERS_H_

#include <memory>

#include "onnxgrad/distributed.h"

namespace onnxgrad::python {

struct Workers {
  std::shared_ptr<dist::Communicator> communicator = nullptr;
  WorkersInfo info = {};
};

}  // namespace onnxgrad::python

#endif  // ONNXGRAD_PYTHON_BINDINGS_WORKERS_H_
