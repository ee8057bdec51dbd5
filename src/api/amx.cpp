#include "onnxgrad/amx.h"

#include "train/tools/engine.h"

namespace onnxgrad {

void use_amx_for_float32(bool on) { train::use_amx_for_float32(on); }
bool amx_computes_float32() { return train::amx_computes_float32(); }

}  // namespace onnxgrad
