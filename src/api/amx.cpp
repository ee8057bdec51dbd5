#include "onnxgrad/amx.h"

#include "device/amx.h"

namespace onnxgrad {

void use_amx_for_float32(bool on) { device::use_amx_for_float32(on); }
bool amx_computes_float32() { return device::uses_amx_for_float32(); }

}  // namespace onnxgrad
