/* What an exported kernel needs of a CUDA runtime, over the public CUDA API alone, and the one
 * function through which it is launched: hopwell_launch, at the end.
 *
 * The exported host function calls the symbols defined here. Those of CUDA are resolved on first
 * use, from the CUDA runtime that the process already carries (PyTorch's, which is globally
 * visible), so that a kernel loads on a machine without CUDA and says what is missing only when it
 * is called.
 *
 * One copy is linked, hidden, into every kernel.so: its statics belong to that one kernel.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__)
/* The versions that every glibc has: a wheel built on a new system runs on an old one. */
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
#endif

#define HIDDEN __attribute__((visibility("hidden")))

/* Not a CUDA error code: the process has no usable CUDA runtime. */
enum { NO_RUNTIME = 1 << 20 };
enum { MAX_DEVICES = 64 };

/* Python raises hopwell.errors.LaunchError for this kind. */
static const char KIND[] = "LaunchError";

typedef int (*init_fn)(void **state);
typedef int (*load_fn)(void **state, int device);
typedef void (*raise_fn)(const char *kind, const char *message);
typedef void (*raise_parts_fn)(const char *kind, const char **parts, int32_t count);

static struct {
  int (*library_load)(void *, const void *, void *, void *, unsigned, void *, void *, unsigned);
  int (*library_kernel)(void *, void *, const char *);
  int (*kernel_set)(void *, int, int, int);
  int (*function_set)(const void *, int, int);
  int (*device_attribute)(int *, int, int);
  int (*get_device)(int *);
  int (*set_device)(int);
  int (*launch)(const void *, const void *, void **);
  const char *(*error_name)(int);
  const char *(*error_text)(int);
  int (*kernel_attribute)(int *, int, void *, int);
} cuda;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int resolved;                 /* guarded by lock, read with acquire */
static uint64_t prepared;            /* devices that know this kernel, one bit each */
static void **library_state;
static load_fn load_to_device;
static _Thread_local const char *failed_call = "";
static char missing[128] = "";       /* written once under lock */

static void *find(const char *name) {
  void *symbol = dlsym(RTLD_DEFAULT, name);
  if (symbol != NULL) return symbol;
  /* Loaded by someone, but not globally visible: reach it by its name, without loading another. */
  static const char *const libraries[] = {"libcudart.so.13", "libcudart.so.12", "libcuda.so.1"};
  for (unsigned i = 0; i < sizeof libraries / sizeof *libraries && symbol == NULL; i++) {
    void *library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
    if (library != NULL) symbol = dlsym(library, name);
  }
  if (symbol == NULL && missing[0] == '\0') snprintf(missing, sizeof missing, "%s", name);
  return symbol;
}

static int resolve(void) {
  missing[0] = '\0';
  *(void **)&cuda.library_load = find("cudaLibraryLoadData");
  *(void **)&cuda.library_kernel = find("cudaLibraryGetKernel");
  *(void **)&cuda.kernel_set = find("cudaKernelSetAttributeForDevice");
  *(void **)&cuda.function_set = find("cudaFuncSetAttribute");
  *(void **)&cuda.device_attribute = find("cudaDeviceGetAttribute");
  *(void **)&cuda.get_device = find("cudaGetDevice");
  *(void **)&cuda.set_device = find("cudaSetDevice");
  *(void **)&cuda.launch = find("cudaLaunchKernelExC");
  *(void **)&cuda.error_name = find("cudaGetErrorName");
  *(void **)&cuda.error_text = find("cudaGetErrorString");
  *(void **)&cuda.kernel_attribute = find("cuKernelGetAttribute");
  return missing[0] == '\0';
}

/* Remembers the call that failed, for the message. */
static int noted(const char *call, int code) {
  if (code != 0) failed_call = call;
  return code;
}

HIDDEN int _cudaLibraryLoadData(void *library, const void *code, void *options, void *values,
                                unsigned count, void *library_options, void *library_values,
                                unsigned library_count) {
  return noted("cudaLibraryLoadData",
               cuda.library_load(library, code, options, values, count, library_options,
                                 library_values, library_count));
}

HIDDEN int _cudaLibraryGetKernel(void *kernel, void *library, const char *name) {
  return noted("cudaLibraryGetKernel", cuda.library_kernel(kernel, library, name));
}

HIDDEN int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) {
  return noted("cudaKernelSetAttributeForDevice",
               cuda.kernel_set(kernel, attribute, value, device));
}

HIDDEN int _cudaFuncSetAttribute(const void *function, int attribute, int value) {
  return noted("cudaFuncSetAttribute", cuda.function_set(function, attribute, value));
}

HIDDEN int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  return noted("cuKernelGetAttribute", cuda.kernel_attribute(value, attribute, kernel, device));
}

HIDDEN int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
  return noted("cudaDeviceGetAttribute", cuda.device_attribute(value, attribute, device));
}

HIDDEN int _cudaGetDevice(int *device) { return noted("cudaGetDevice", cuda.get_device(device)); }

HIDDEN int _cudaSetDevice(int device) { return noted("cudaSetDevice", cuda.set_device(device)); }

/* Attributes such as the shared-memory limit belong to a device: set them on each device's first
 * launch, so that no context appears on a device that the caller never uses. */
static int prepare(int device) {
  if (device < 0 || device >= MAX_DEVICES) return load_to_device(library_state, device);
  uint64_t bit = UINT64_C(1) << device;
  if (__atomic_load_n(&prepared, __ATOMIC_ACQUIRE) & bit) return 0;
  pthread_mutex_lock(&lock);
  int code = 0;
  if (!(prepared & bit)) {
    code = load_to_device(library_state, device);
    if (code == 0) __atomic_fetch_or(&prepared, bit, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return code;
}

HIDDEN int _cudaLaunchKernelEx(const void *config, const void *kernel, void **arguments) {
  int device = 0;
  int code = _cudaGetDevice(&device);
  if (code == 0) code = prepare(device);
  if (code == 0) code = noted("cudaLaunchKernelExC", cuda.launch(config, kernel, arguments));
  return code;
}

static void describe(int code, char *text, size_t size) {
  const char *name = cuda.error_name != NULL ? cuda.error_name(code) : "unknown";
  const char *message = cuda.error_text != NULL ? cuda.error_text(code) : "unknown";
  snprintf(text, size, "%s|%d|%s|%s", failed_call, code, name, message);
}

/* First call: loads the library for the process, and the kernel for the current device. The kernel
 * handle that `load` stores is the same for every device. */
HIDDEN int cuda_dialect_init_library_once(void **state, init_fn init, load_fn load,
                                          raise_fn raise_error) {
  if (__atomic_load_n(&resolved, __ATOMIC_ACQUIRE)) return 0;
  pthread_mutex_lock(&lock);
  int code = 0;
  if (!resolved) {
    code = resolve() ? 0 : NO_RUNTIME;
    int device = 0;
    if (code == 0) code = _cudaGetDevice(&device);
    if (code == 0 && *state == NULL) code = init(state);
    if (code == 0) code = load(state, device);
    if (code == 0) {
      library_state = state;
      load_to_device = load;
      if (device >= 0 && device < MAX_DEVICES) prepared |= UINT64_C(1) << device;
      __atomic_store_n(&resolved, 1, __ATOMIC_RELEASE);
    }
  }
  pthread_mutex_unlock(&lock);
  if (code != 0) {
    char text[512];
    if (code == NO_RUNTIME)
      snprintf(text, sizeof text, "%s|%d|no CUDA runtime|symbol not found", missing, code);
    else
      describe(code, text, sizeof text);
    raise_error(KIND, text);
  }
  return code;
}

/* The process ends: the driver may be gone already, and it frees modules itself. */
HIDDEN void cuda_dialect_unload_library_once(void **state) { (void)state; }

HIDDEN void CuteDSLRT_TVMFFISetRaisedCudaError(raise_parts_fn raise_error, int code) {
  char text[512];
  describe(code, text, sizeof text);
  const char *parts[] = {text};
  raise_error(KIND, parts, 1);
}

/* -- the call ------------------------------------------------------------------------------------
 *
 * The exported entry speaks TVM's C calling convention (tvm/ffi/c_api.h, dlpack.h). It is all that
 * is used of TVM, so what the entry needs of that library is defined here instead. */

#ifndef HOPWELL_ENTRY
#error "HOPWELL_ENTRY is the name of the exported function"
#endif
#define EXPORTED __attribute__((visibility("default")))

enum { TENSORS = 5, RANK = 4 };
enum { ANY_INT = 1, ANY_FLOAT = 3, ANY_TENSOR = 7 };

struct dl_tensor {
  void *data;
  int32_t device_type, device;
  int32_t rank;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct any {
  int32_t type;
  uint32_t padding;
  union {
    int64_t integer;
    double real;
    void *pointer;
  } value;
};

int HOPWELL_ENTRY(void *self, const struct any *arguments, int32_t count, struct any *result);

/* What launches have in common, as hopwell.compile.kernel packs it: q, k, v, o, lse. */
struct description {
  struct {
    int64_t device_type, device, code, bits, rank, shape[RANK], strides[RANK];
  } tensors[TENSORS];
  double scale;
  int64_t num_sms;
};

/* What each launch adds. Unless `load` is set, nothing is loaded into CUDA. */
struct call {
  uint64_t addresses[TENSORS];
  uint64_t stream;
  uint64_t load;
};

/* What hopwell_launch returns. */
enum { LAUNCHED, FAILED, NOT_LOADED };

static _Thread_local void *current_stream;
static _Thread_local char failure[2048];

HIDDEN void *TVMFFIEnvGetStream(int32_t device_type, int32_t device) {
  (void)device_type, (void)device;
  return current_stream;
}

HIDDEN void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts,
                                              int32_t count) {
  size_t used = (size_t)snprintf(failure, sizeof failure, "%s: ", kind);
  for (int32_t i = 0; i < count && used < sizeof failure; i++)
    used += (size_t)snprintf(failure + used, sizeof failure - used, "%s", parts[i]);
}

HIDDEN void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}

static int loaded_on(int64_t device) {
  if (device < 0 || device >= MAX_DEVICES) return 0;
  return (__atomic_load_n(&prepared, __ATOMIC_ACQUIRE) >> device) & 1;
}

/* Launches the kernel on a stream, without waiting for it. */
EXPORTED int hopwell_launch(const struct description *d, const struct call *call) {
  if (!call->load && !loaded_on(d->tensors[0].device)) return NOT_LOADED;
  struct dl_tensor tensors[TENSORS];
  struct any arguments[TENSORS + 2], result = {0};
  memset(arguments, 0, sizeof arguments);
  for (int i = 0; i < TENSORS; i++) {
    tensors[i] = (struct dl_tensor){
        .data = (void *)call->addresses[i],
        .device_type = (int32_t)d->tensors[i].device_type,
        .device = (int32_t)d->tensors[i].device,
        .rank = (int32_t)d->tensors[i].rank,
        .code = (uint8_t)d->tensors[i].code,
        .bits = (uint8_t)d->tensors[i].bits,
        .lanes = 1,
        .shape = d->tensors[i].shape,
        .strides = d->tensors[i].strides,
    };
    arguments[i].type = ANY_TENSOR;
    arguments[i].value.pointer = &tensors[i];
  }
  arguments[TENSORS].type = ANY_FLOAT;
  arguments[TENSORS].value.real = d->scale;
  arguments[TENSORS + 1].type = ANY_INT;
  arguments[TENSORS + 1].value.integer = d->num_sms;
  current_stream = (void *)call->stream;
  failure[0] = '\0';
  return HOPWELL_ENTRY(NULL, arguments, TENSORS + 2, &result) == 0 ? LAUNCHED : FAILED;
}

/* Why this thread's last launch failed, as "kind: message". */
EXPORTED const char *hopwell_failure(void) { return failure; }
