#include "device/cuda/compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "device/cuda/image_cache.h"
#include "device/cuda/libraries.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {
namespace {

// --fmad=false: products and sums are rounded one by one, as on the CPU.
constexpr const char* kOptions[] = {"--std=c++17",      "--fmad=false", "--prec-div=true",
                                    "--prec-sqrt=true", "--ftz=false",  "-diag-suppress=177"};

void succeed(int result, const char* call) {
  if (result == kSuccess) return;
  throw DeviceError({.what = fmt::format("{}: {}", call, nvrtc().GetErrorString(result)),
                     .hint = "Install the version of nvidia-cuda-nvrtc that fits the driver."});
}

// A card to compile for ("sm_90"), or one whose PTX the driver translates ("compute_90").
struct Target {
  std::string name;
  bool is_ptx = false;
};

Target target_of(int capability) {
  int count = 0;
  succeed(nvrtc().GetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> known(static_cast<std::size_t>(count));
  succeed(nvrtc().GetSupportedArchs(known.data()), "nvrtcGetSupportedArchs");
  std::erase_if(known, [&](int one) { return one > capability; });
  if (known.empty()) {
    throw DeviceError({.what = fmt::format("CUDA's run-time compiler knows no cards of compute "
                                           "capability {}.{}",
                                           capability / 10, capability % 10),
                       .hint = "Install an older version of it, or use device='cpu'."});
  }
  const int newest = std::ranges::max(known);
  if (newest == capability) return {.name = fmt::format("sm_{}", capability)};
  return {.name = fmt::format("compute_{}", newest), .is_ptx = true};
}

std::string log_of(Handle program) {
  std::size_t bytes = 0;
  if (nvrtc().GetLogSize(program, &bytes) != kSuccess || bytes < 2) return {};
  std::string log(bytes, '\0');
  nvrtc().GetLog(program, log.data());
  return log.substr(0, std::min<std::size_t>(log.find('\0'), 600));
}

std::string compile(const std::string& source, const Target& target) {
  Handle program = nullptr;
  succeed(nvrtc().CreateProgram(&program, source.c_str(), "onnxgrad.cu", 0, nullptr, nullptr),
          "nvrtcCreateProgram");
  struct Destroyer {
    Handle program;
    ~Destroyer() { nvrtc().DestroyProgram(&program); }
  } const destroyer{program};
  const std::string architecture = "--gpu-architecture=" + target.name;
  std::vector<const char*> options{architecture.c_str()};
  options.insert(options.end(), std::begin(kOptions), std::end(kOptions));
  const int result =
      nvrtc().CompileProgram(program, static_cast<int>(options.size()), options.data());
  if (result != kSuccess) {
    throw DeviceError({.what = "a kernel cannot be compiled for the card",
                       .detail = log_of(program),
                       .hint = "Report this as a bug, with the model."});
  }
  const auto size_of = target.is_ptx ? nvrtc().GetPtxSize : nvrtc().GetCubinSize;
  const auto read = target.is_ptx ? nvrtc().GetPtx : nvrtc().GetCubin;
  std::size_t bytes = 0;
  succeed(size_of(program, &bytes), target.is_ptx ? "nvrtcGetPTXSize" : "nvrtcGetCUBINSize");
  std::string image(bytes, '\0');
  succeed(read(program, image.data()), target.is_ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN");
  return image;
}

std::string image_of(const std::string& source, int capability) {
  int major = 0;
  int minor = 0;
  succeed(nvrtc().Version(&major, &minor), "nvrtcVersion");
  const Target target = target_of(capability);
  std::string key = fmt::format("nvrtc {}.{} {}", major, minor, target.name);
  for (const char* option : kOptions) key += fmt::format(" {}", option);
  key += "\n" + source;
  if (auto image = find_image(key)) return *std::move(image);
  std::string image = compile(source, target);
  keep_image(key, image);
  return image;
}

// Threads that compile, as many as there are processors. It is made after NVRTC has been loaded, so
// that its threads end before NVRTC does when the process ends.
class Compilers {
 public:
  static Compilers& all() {
    static Compilers made;
    return made;
  }

  Compilers() = default;
  Compilers(const Compilers&) = delete;
  Compilers& operator=(const Compilers&) = delete;
  ~Compilers() {
    {
      const std::scoped_lock lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::shared_future<std::string> add(std::string source, int capability) {
    std::packaged_task<std::string()> task(
        [source = std::move(source), capability] { return image_of(source, capability); });
    std::shared_future<std::string> image = task.get_future().share();
    const std::scoped_lock lock(mutex_);
    waiting_.push_back(std::move(task));
    const unsigned most = std::max(1U, std::thread::hardware_concurrency());
    if (num_idle_ < waiting_.size() && threads_.size() < most) {
      threads_.emplace_back([this] { run(); });
    }
    changed_.notify_one();
    return image;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++num_idle_;
      changed_.wait(lock, [this] { return is_ending_ || !waiting_.empty(); });
      --num_idle_;
      if (is_ending_) return;
      std::packaged_task<std::string()> task = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<std::string()>> waiting_;
  std::vector<std::thread> threads_;
  std::size_t num_idle_ = 0;
  bool is_ending_ = false;
};

}  // namespace

std::shared_future<std::string> compile_text(std::string source, int capability) {
  nvrtc();  // one that is absent is said at once
  return Compilers::all().add(std::move(source), capability);
}

}  // namespace onnxgrad::device::cuda
