// Stands in for NVRTC: texts are compiled by the C++ compiler into shared libraries, which the
// stand-in of the driver loads. kernel_machine.h is what a text sees of a card. Each text is also
// written to the folder ONNXGRAD_STANDIN_TEXTS, behind a line with its options, for
// scripts/cuda_texts.py, which compiles it with the real NVRTC. In a build with sanitizers texts
// have them too: kernels that leave their buffers are found.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

enum Result : int { kOk = 0, kInvalidOption = 5, kCompilation = 6 };

struct Program {
  std::string text;
  std::string image;
  std::string log;
  bool is_virtual = false;  ///< for no card: there is no machine code
};

// Compute capabilities that are known: ONNXGRAD_STANDIN_ARCHITECTURES, or those of version 13.0.
std::vector<int> architectures() {
  const char* wanted = std::getenv("ONNXGRAD_STANDIN_ARCHITECTURES");
  if (wanted == nullptr) wanted = "75 80 86 87 88 89 90 100 103 110 120 121";
  std::istringstream text(wanted);
  return {std::istream_iterator<int>(text), {}};
}

// The capability that options name, if it is known; else 0.
int architecture_of(int num_options, const char* const* options, bool& is_virtual) {
  for (int i = 0; i < num_options; ++i) {
    const std::string option = options[i];
    for (const char* kind : {"sm_", "compute_"}) {
      const std::string begin = std::string("--gpu-architecture=") + kind;
      if (!option.starts_with(begin)) continue;
      is_virtual = *kind == 'c';
      const int wanted = std::atoi(option.c_str() + begin.size());
      for (const int known : architectures()) {
        if (known == wanted) return known;
      }
    }
  }
  return 0;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void keep_text(const std::string& text, int num_options, const char* const* options) {
  const char* folder = std::getenv("ONNXGRAD_STANDIN_TEXTS");
  if (folder == nullptr) return;
  std::string whole = "//";
  for (int i = 0; i < num_options; ++i) {
    const std::string option = options[i];
    if (!option.starts_with("--gpu-architecture")) whole += " " + option;
  }
  whole += "\n" + text;
  std::error_code error;
  fs::create_directories(folder, error);
  const fs::path path =
      fs::path(folder) / (std::to_string(std::hash<std::string>()(whole)) + ".cu");
  const fs::path part = path.string() + "." + std::to_string(::getpid());
  std::ofstream(part, std::ios::binary) << whole;
  fs::rename(part, path, error);
}

// A folder of this process alone, removed at the end of a compilation.
struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "onnxgrad_nvrtc_XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code error;
    fs::remove_all(path, error);
  }
  fs::path path;
};

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return kOk;
}

const char* nvrtcGetErrorString(int result) {
  return result == kCompilation ? "NVRTC_ERROR_COMPILATION" : "NVRTC_SUCCESS";
}

int nvrtcCreateProgram(void** program, const char* text, const char* /*name*/, int /*headers*/,
                       const char* const* /*sources*/, const char* const* /*names*/) {
  *program = new Program{.text = text};
  return kOk;
}

int nvrtcCompileProgram(void* handle, int num_options, const char* const* options) {
  auto& program = *static_cast<Program*>(handle);
  if (architecture_of(num_options, options, program.is_virtual) == 0) return kInvalidOption;
  keep_text(program.text, num_options, options);
  const Folder folder;
  const fs::path source = folder.path / "kernel.cpp";
  const bool records = std::getenv("ONNXGRAD_STANDIN_RACES") != nullptr;
  std::ofstream(source) << "#include \"" ONNXGRAD_KERNEL_MACHINE "\"\n"
                        << (records ? "#include \"" ONNXGRAD_KERNEL_RACES "\"\n" : "")
                        << program.text << "\nextern \"C\" { int og_has_barriers = "
                        << (program.text.find("__syncthreads") != std::string::npos) << "; }\n";
  const fs::path image = folder.path / "kernel.so";
  const fs::path log = folder.path / "log";
  // Only what kernels call: the linker would spend more time on other libraries than on the kernel.
  const std::string command = ONNXGRAD_KERNEL_COMPILER +
                              std::string(records ? " -fsanitize=thread" : "") +
                              " -shared -nostdlib -o " + image.string() + " " + source.string() +
                              " -lm -lc -lgcc 2> " + log.string();
  const bool is_compiled = std::system(command.c_str()) == 0;
  program.log = contents(log);
  if (!is_compiled) return kCompilation;
  program.image = contents(image);
  // The driver takes an image without its size: it comes first.
  const std::size_t bytes = program.image.size();
  program.image.insert(0, reinterpret_cast<const char*>(&bytes), sizeof bytes);
  return kOk;
}

int nvrtcGetCUBINSize(void* handle, std::size_t* bytes) {
  const auto& program = *static_cast<Program*>(handle);
  *bytes = program.is_virtual ? 0 : program.image.size();
  return kOk;
}
int nvrtcGetCUBIN(void* handle, char* to) {
  const auto& program = *static_cast<Program*>(handle);
  if (!program.is_virtual) std::memcpy(to, program.image.data(), program.image.size());
  return kOk;
}
int nvrtcGetPTXSize(void* handle, std::size_t* bytes) {
  *bytes = static_cast<Program*>(handle)->image.size();
  return kOk;
}
int nvrtcGetPTX(void* handle, char* to) {
  const std::string& image = static_cast<Program*>(handle)->image;
  std::memcpy(to, image.data(), image.size());
  return kOk;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(architectures().size());
  return kOk;
}
int nvrtcGetSupportedArchs(int* to) {
  const std::vector<int> known = architectures();
  std::copy(known.begin(), known.end(), to);
  return kOk;
}
int nvrtcGetProgramLogSize(void* handle, std::size_t* bytes) {
  *bytes = static_cast<Program*>(handle)->log.size() + 1;
  return kOk;
}
int nvrtcGetProgramLog(void* handle, char* to) {
  const std::string& log = static_cast<Program*>(handle)->log;
  std::memcpy(to, log.c_str(), log.size() + 1);
  return kOk;
}
int nvrtcDestroyProgram(void** handle) {
  delete static_cast<Program*>(*handle);
  *handle = nullptr;
  return kOk;
}

}  // extern "C"
