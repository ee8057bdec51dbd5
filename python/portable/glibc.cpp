// Functions of glibc in the versions of 2.17 and before, for the wheel, which is to run with 2.28.
//
// Objects that are compiled with the headers of a newer glibc refer to these functions by name; the
// linker would bind them to the newest version of its own libc.so.6. Here each is defined, hidden,
// and calls the old version. Declarations are repeated because the C library's own have default
// visibility.
//
// Sources: the version nodes of glibc's Versions files; wait until a time of another clock:
// libstdc++'s std::condition_variable where the C library has no pthread_cond_clockwait.

#include <time.h>

#define ONNXGRAD_HIDDEN extern "C" __attribute__((visibility("hidden")))
#define ONNXGRAD_OLD(name, version) __asm__(".symver old_" #name "," #name "@GLIBC_" version)

ONNXGRAD_OLD(exp, "2.2.5");
ONNXGRAD_OLD(log, "2.2.5");
ONNXGRAD_OLD(log2, "2.2.5");
ONNXGRAD_OLD(pow, "2.2.5");
extern "C" double old_exp(double x);
extern "C" double old_log(double x);
extern "C" double old_log2(double x);
extern "C" double old_pow(double x, double y);
ONNXGRAD_HIDDEN double exp(double x) { return old_exp(x); }
ONNXGRAD_HIDDEN double log(double x) { return old_log(x); }
ONNXGRAD_HIDDEN double log2(double x) { return old_log2(x); }
ONNXGRAD_HIDDEN double pow(double x, double y) { return old_pow(x, y); }

ONNXGRAD_OLD(dlopen, "2.2.5");
ONNXGRAD_OLD(dlsym, "2.2.5");
ONNXGRAD_OLD(dlclose, "2.2.5");
ONNXGRAD_OLD(dlerror, "2.2.5");
extern "C" void* old_dlopen(const char* path, int mode);
extern "C" void* old_dlsym(void* library, const char* name);
extern "C" int old_dlclose(void* library);
extern "C" char* old_dlerror();
ONNXGRAD_HIDDEN void* dlopen(const char* path, int mode) { return old_dlopen(path, mode); }
ONNXGRAD_HIDDEN void* dlsym(void* library, const char* name) { return old_dlsym(library, name); }
ONNXGRAD_HIDDEN int dlclose(void* library) { return old_dlclose(library); }
ONNXGRAD_HIDDEN char* dlerror() { return old_dlerror(); }

// The first argument of the old functions is the layout of struct stat: 1 on x86-64.
struct stat;
ONNXGRAD_OLD(__xstat, "2.2.5");
ONNXGRAD_OLD(__lxstat, "2.2.5");
ONNXGRAD_OLD(__fxstat, "2.2.5");
ONNXGRAD_OLD(__fxstatat, "2.4");
extern "C" int old___xstat(int layout, const char* path, struct stat* result);
extern "C" int old___lxstat(int layout, const char* path, struct stat* result);
extern "C" int old___fxstat(int layout, int file, struct stat* result);
extern "C" int old___fxstatat(int layout, int folder, const char* path, struct stat* result,
                              int flags);
ONNXGRAD_HIDDEN int stat(const char* path, struct stat* result) {
  return old___xstat(1, path, result);
}
ONNXGRAD_HIDDEN int lstat(const char* path, struct stat* result) {
  return old___lxstat(1, path, result);
}
ONNXGRAD_HIDDEN int fstat(int file, struct stat* result) { return old___fxstat(1, file, result); }
ONNXGRAD_HIDDEN int fstatat(int folder, const char* path, struct stat* result, int flags) {
  return old___fxstatat(1, folder, path, result, flags);
}

#define ONNXGRAD_PASS(name, parameters, arguments) \
  ONNXGRAD_OLD(name, "2.2.5");                     \
  extern "C" int old_##name parameters;            \
  ONNXGRAD_HIDDEN int name parameters { return old_##name arguments; }
ONNXGRAD_PASS(pthread_once, (int* once, void (*initialise)()), (once, initialise))
ONNXGRAD_PASS(pthread_key_create, (unsigned* key, void (*destroy)(void*)), (key, destroy))
ONNXGRAD_PASS(pthread_key_delete, (unsigned key), (key))
ONNXGRAD_PASS(pthread_setspecific, (unsigned key, const void* value), (key, value))
ONNXGRAD_PASS(pthread_rwlock_init, (void* lock, const void* attributes), (lock, attributes))
ONNXGRAD_PASS(pthread_rwlock_destroy, (void* lock), (lock))
ONNXGRAD_PASS(pthread_rwlock_rdlock, (void* lock), (lock))
ONNXGRAD_PASS(pthread_rwlock_wrlock, (void* lock), (lock))
ONNXGRAD_PASS(pthread_rwlock_unlock, (void* lock), (lock))
ONNXGRAD_OLD(pthread_getspecific, "2.2.5");
extern "C" void* old_pthread_getspecific(unsigned key);
ONNXGRAD_HIDDEN void* pthread_getspecific(unsigned key) { return old_pthread_getspecific(key); }

// Reference counts are atomic whatever the number of threads.
ONNXGRAD_HIDDEN char __libc_single_threaded;
char __libc_single_threaded = 0;

ONNXGRAD_OLD(pthread_cond_timedwait, "2.3.2");
extern "C" int old_pthread_cond_timedwait(void* condition, void* mutex, const timespec* end);

// Waits until `end` of `clock`; a change of the system's time meanwhile moves the end.
ONNXGRAD_HIDDEN int pthread_cond_clockwait(void* condition, void* mutex, clockid_t clock,
                                           const timespec* end) {
  constexpr long kSecond = 1'000'000'000;
  timespec now{};
  timespec real{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  real.tv_sec += end->tv_sec - now.tv_sec;
  real.tv_nsec += end->tv_nsec - now.tv_nsec;
  if (real.tv_nsec < 0) {
    real.tv_nsec += kSecond;
    --real.tv_sec;
  } else if (real.tv_nsec >= kSecond) {
    real.tv_nsec -= kSecond;
    ++real.tv_sec;
  }
  return old_pthread_cond_timedwait(condition, mutex, &real);
}
