// Included behind kernel_machine.h where races are looked for: the compiler calls these functions
// before each access (-fsanitize=thread), which tell the stand-in of the driver.

extern "C" {
void (*og_record_access)(const void* at, size_t bytes, bool writes);

#define OG_UNWATCHED __attribute__((no_sanitize_thread))
#define OG_ACCESS(bytes)                                                                           \
  OG_UNWATCHED void __tsan_read##bytes(void* at) { og_record_access(at, bytes, false); }           \
  OG_UNWATCHED void __tsan_write##bytes(void* at) { og_record_access(at, bytes, true); }           \
  OG_UNWATCHED void __tsan_unaligned_read##bytes(void* at) { og_record_access(at, bytes, false); } \
  OG_UNWATCHED void __tsan_unaligned_write##bytes(void* at) { og_record_access(at, bytes, true); }
OG_ACCESS(1)
OG_ACCESS(2)
OG_ACCESS(4)
OG_ACCESS(8)
OG_ACCESS(16)
#undef OG_ACCESS
OG_UNWATCHED void __tsan_read_range(void* at, size_t bytes) { og_record_access(at, bytes, false); }
OG_UNWATCHED void __tsan_write_range(void* at, size_t bytes) { og_record_access(at, bytes, true); }
OG_UNWATCHED void __tsan_func_entry(void*) {}
OG_UNWATCHED void __tsan_func_exit() {}
OG_UNWATCHED void __tsan_init() {}
}
