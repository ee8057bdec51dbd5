#ifndef ONNXGRAD_OPS_COLLECTIVE_EXCHANGE_TASK_H_
#define ONNXGRAD_OPS_COLLECTIVE_EXCHANGE_TASK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "opdef/collectives.h"
#include "opdef/kernel.h"

// StartExchange and FinishExchange (opdef/collectives.h) as kernels run them, for all devices.

namespace onnxgrad::ops {

/// A part of the exchange buffer that is an argument.
struct ExchangePart {
  std::size_t arg = 0;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

/// Range of bytes in the exchange buffer.
struct ExchangeGap {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct ExchangeTask {
  std::vector<ExchangePart> parts = {};      ///< layout in the buffer if the exchange is sent
  std::vector<ExchangePart> old_parts = {};  ///< layout if it is not sent
  std::vector<ExchangeGap> gaps = {};        ///< ranges in no part, sent as well
  std::size_t buffer = 0;                    ///< argument index
  bool is_conditional = false;               ///< the first argument decides
  opdef::Collective::Kind kind = opdef::Collective::Kind::kAllReduce;
  opdef::Collective::Route route = opdef::Collective::Route::kDirect;
  std::size_t number = 0;
  std::int64_t count = 0;                ///< elements of the buffer; only of a start
  std::vector<std::int64_t> owned = {};  ///< elements owned by each worker
  DataType dtype = DataType::kFloat32;
  bool as_bfloat16 = false;

  /// "3: 4 parts".
  std::string label() const;
};

/// nullopt: values of a type that is not exchanged.
std::optional<ExchangeTask> start_task(const opdef::KernelRequest& request);
ExchangeTask finish_task(const opdef::KernelRequest& request);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_COLLECTIVE_EXCHANGE_TASK_H_
