// Stands in for libcuda.so.1 where cuDNN makes plans without a card: kernels that it compiles are
// loaded as handles that nothing runs. Other functions that it looks up fail.

namespace {

constexpr int kOk = 0;
constexpr int kNoDevice = 100;
int loaded = 0;  // for handles to point to

}  // namespace

#define FAILS(function) \
  int function() { return kNoDevice; }

extern "C" {

int cuLibraryLoadData(void** library, const void* /*code*/, const void* /*options*/,
                      const void* /*values*/, unsigned /*num_options*/,
                      const void* /*library_options*/, const void* /*library_values*/,
                      unsigned /*num_library_options*/) {
  *library = &loaded;
  return kOk;
}
int cuLibraryGetKernel(void** kernel, void* /*library*/, const char* /*name*/) {
  *kernel = &loaded;
  return kOk;
}
int cuLibraryUnload(void* /*library*/) { return kOk; }

FAILS(cuInit)
FAILS(cuGetExportTable)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetCount)
FAILS(cuDriverGetVersion)
FAILS(cuKernelGetAttribute)
FAILS(cuKernelSetAttribute)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkDestroy)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)

}  // extern "C"
