#ifndef ONNXGRAD_ONNXGRAD_H_
#define ONNXGRAD_ONNXGRAD_H_

// The whole public interface. Start reading at model.h, then trainer.h.

#if __cplusplus < 202002L
#error "onnxgrad needs C++20: compile with -std=c++20, or target_compile_features(... cxx_std_20)."
#endif

#include "onnxgrad/adapters.h"           // IWYU pragma: export
#include "onnxgrad/amx.h"                // IWYU pragma: export
#include "onnxgrad/augmentation.h"       // IWYU pragma: export
#include "onnxgrad/cuda_libraries.h"     // IWYU pragma: export
#include "onnxgrad/data.h"               // IWYU pragma: export
#include "onnxgrad/description.h"        // IWYU pragma: export
#include "onnxgrad/device_report.h"      // IWYU pragma: export
#include "onnxgrad/device_tensor.h"      // IWYU pragma: export
#include "onnxgrad/devices.h"            // IWYU pragma: export
#include "onnxgrad/dims.h"               // IWYU pragma: export
#include "onnxgrad/distillation.h"       // IWYU pragma: export
#include "onnxgrad/dtype.h"              // IWYU pragma: export
#include "onnxgrad/error.h"              // IWYU pragma: export
#include "onnxgrad/files.h"              // IWYU pragma: export
#include "onnxgrad/forward_backward.h"   // IWYU pragma: export
#include "onnxgrad/gradient.h"           // IWYU pragma: export
#include "onnxgrad/image_decoder.h"      // IWYU pragma: export
#include "onnxgrad/inference_session.h"  // IWYU pragma: export
#include "onnxgrad/interrupt.h"          // IWYU pragma: export
#include "onnxgrad/losses.h"             // IWYU pragma: export
#include "onnxgrad/metrics.h"            // IWYU pragma: export
#include "onnxgrad/model.h"              // IWYU pragma: export
#include "onnxgrad/model_forms.h"        // IWYU pragma: export
#include "onnxgrad/operators.h"          // IWYU pragma: export
#include "onnxgrad/optimizers.h"         // IWYU pragma: export
#include "onnxgrad/option_error.h"       // IWYU pragma: export
#include "onnxgrad/precision.h"          // IWYU pragma: export
#include "onnxgrad/profile.h"            // IWYU pragma: export
#include "onnxgrad/quantization.h"       // IWYU pragma: export
#include "onnxgrad/quantized_weights.h"  // IWYU pragma: export
#include "onnxgrad/report.h"             // IWYU pragma: export
#include "onnxgrad/schedules.h"          // IWYU pragma: export
#include "onnxgrad/tables.h"             // IWYU pragma: export
#include "onnxgrad/tensor.h"             // IWYU pragma: export
#include "onnxgrad/trainer.h"            // IWYU pragma: export
#include "onnxgrad/training_info.h"      // IWYU pragma: export
#include "onnxgrad/training_mode.h"      // IWYU pragma: export
#include "onnxgrad/training_session.h"   // IWYU pragma: export
#include "onnxgrad/transfer.h"           // IWYU pragma: export
#include "onnxgrad/version.h"            // IWYU pragma: export
#include "onnxgrad/weights.h"            // IWYU pragma: export

#endif  // ONNXGRAD_ONNXGRAD_H_
