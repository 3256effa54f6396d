/* A CUDA runtime without a device: it accepts code, and hands every launch to one function.
 *
 * The host half of a compiled CuTe DSL kernel is native code that calls the CUDA runtime through
 * the names below, with an underscore before the public ones. Named alone in CUTE_DSL_LIBS, this
 * library is what it finds. The public names are the same functions, for programs that were linked
 * against a CUDA runtime: they find it where it is loaded globally.
 *
 * Calls that only manage a device succeed and do nothing. Host and device memory are one, so
 * copies are copies.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CUDA runtime API, cudaError_t. */
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, LAUNCH_FAILURE = 719 };
/* CUDA runtime API, cudaLaunchAttributeID. */
enum { CLUSTER_DIMENSION = 4 };
/* More device attributes than CUDA has. */
enum { ATTRIBUTES = 512 };

struct extent {
  uint32_t x, y, z;
};

/* cudaLaunchAttribute: the value is a union of 64 bytes, 8-byte aligned. */
struct attribute {
  int32_t id;
  char padding[4];
  union {
    struct extent cluster;
    char bytes[64];
  } value;
};

/* cudaLaunchConfig_t. */
struct config {
  struct extent grid, block;
  size_t shared_bytes;
  void *stream;
  struct attribute *attributes;
  uint32_t count;
};

/* What a handle of a library or of one of its kernels points to. Handles live as long as the
 * process: code may launch through them at any time. */
struct library {
  const void *image;
};

struct kernel {
  const void *image;
  char name[];
};

/* One launch, as hopwell.emulator.capture.shim reads it. */
struct launch {
  const char *kernel;
  const void *image;
  struct extent grid, block, cluster;
  uint64_t shared_bytes;
  void **arguments;
};

typedef int (*receiver)(const struct launch *);

static receiver on_launch;
static int32_t attributes[ATTRIBUTES];

void hopwell_receive(receiver function) { on_launch = function; }

void hopwell_set_attribute(int attribute, int value) { attributes[attribute] = value; }

/* Both names of a function of the runtime. */
#define RUNTIME(name, parameters, arguments)                                                       \
  int name parameters;                                                                             \
  int _##name parameters { return name arguments; }                                                \
  int name parameters

/* -- code ------------------------------------------------------------------------------------ */

RUNTIME(cudaLibraryLoadData,
        (struct library * *library, const void *code, void *options, void *values, unsigned count,
         void *library_options, void *library_values, unsigned library_count),
        (library, code, options, values, count, library_options, library_values, library_count)) {
  (void)options, (void)values, (void)count;
  (void)library_options, (void)library_values, (void)library_count;
  *library = malloc(sizeof **library);
  if (*library == NULL) return OUT_OF_MEMORY;
  (*library)->image = code;
  return SUCCESS;
}

RUNTIME(cudaLibraryGetKernel, (struct kernel * *kernel, struct library *library, const char *name),
        (kernel, library, name)) {
  *kernel = malloc(sizeof **kernel + strlen(name) + 1);
  if (*kernel == NULL) return OUT_OF_MEMORY;
  (*kernel)->image = library->image;
  strcpy((*kernel)->name, name);
  return SUCCESS;
}

RUNTIME(cudaLibraryUnload, (struct library * library), (library)) {
  (void)library;
  return SUCCESS;
}

RUNTIME(cudaKernelSetAttributeForDevice, (void *kernel, int attribute, int value, int device),
        (kernel, attribute, value, device)) {
  (void)kernel, (void)attribute, (void)value, (void)device;
  return SUCCESS;
}

RUNTIME(cudaFuncSetAttribute, (const void *function, int attribute, int value),
        (function, attribute, value)) {
  (void)function, (void)attribute, (void)value;
  return SUCCESS;
}

RUNTIME(cuKernelGetAttribute, (int *value, int attribute, void *kernel, int device),
        (value, attribute, kernel, device)) {
  (void)attribute, (void)kernel, (void)device;
  *value = 0;
  return SUCCESS;
}

/* -- the device ------------------------------------------------------------------------------ */

RUNTIME(cudaGetDevice, (int *device), (device)) {
  *device = 0;
  return SUCCESS;
}

RUNTIME(cudaGetDeviceCount, (int *count), (count)) {
  *count = 1;
  return SUCCESS;
}

RUNTIME(cudaSetDevice, (int device), (device)) { return device == 0 ? SUCCESS : INVALID_VALUE; }

RUNTIME(cudaDeviceGetAttribute, (int *value, int attribute, int device),
        (value, attribute, device)) {
  if (attribute < 0 || attribute >= ATTRIBUTES || device != 0) return INVALID_VALUE;
  *value = attributes[attribute];
  return SUCCESS;
}

RUNTIME(cudaDeviceSynchronize, (void), ()) { return SUCCESS; }

RUNTIME(cudaStreamSynchronize, (void *stream), (stream)) {
  (void)stream;
  return SUCCESS;
}

/* -- memory ---------------------------------------------------------------------------------- */

RUNTIME(cudaMemsetAsync, (void *memory, int value, size_t size, void *stream),
        (memory, value, size, stream)) {
  (void)stream;
  memset(memory, value, size);
  return SUCCESS;
}

RUNTIME(cudaMemcpyAsync, (void *to, const void *from, size_t size, int kind, void *stream),
        (to, from, size, kind, stream)) {
  (void)kind, (void)stream;
  memmove(to, from, size);
  return SUCCESS;
}

/* -- launches -------------------------------------------------------------------------------- */

RUNTIME(cudaLaunchKernelExC,
        (const struct config *config, const struct kernel *kernel, void **arguments),
        (config, kernel, arguments)) {
  struct launch launch = {
      .kernel = kernel->name,
      .image = kernel->image,
      .grid = config->grid,
      .block = config->block,
      .cluster = {1, 1, 1},
      .shared_bytes = config->shared_bytes,
      .arguments = arguments,
  };
  for (uint32_t i = 0; i < config->count; i++)
    if (config->attributes[i].id == CLUSTER_DIMENSION)
      launch.cluster = config->attributes[i].value.cluster;
  return on_launch == NULL ? LAUNCH_FAILURE : on_launch(&launch);
}

int _cudaLaunchKernelEx(const struct config *config, const struct kernel *kernel,
                        void **arguments) {
  return cudaLaunchKernelExC(config, kernel, arguments);
}

const char *cudaGetErrorName(int code) {
  return code == LAUNCH_FAILURE ? "cudaErrorLaunchFailure" : "cudaError";
}

const char *cudaGetErrorString(int code) {
  return code == LAUNCH_FAILURE ? "the emulated launch failed" : "an emulated call failed";
}

/* -- what the compiler's own runtime adds ---------------------------------------------------- */

typedef int (*init_function)(void **state);
typedef int (*load_function)(void **state, int device);
typedef void (*raise_function)(const char *kind, const char *message);
typedef void (*raise_parts_function)(const char *kind, const char **parts, int32_t count);

/* `state` is where the host function keeps its library: null until it was loaded. */
int cuda_dialect_init_library_once(void **state, init_function init, load_function load,
                                   raise_function raise_error) {
  if (*state != NULL) return SUCCESS;
  int code = init(state);
  if (code == SUCCESS) code = load(state, 0);
  if (code != SUCCESS) raise_error("RuntimeError", cudaGetErrorString(code));
  return code;
}

void cuda_dialect_unload_library_once(void **state) { (void)state; }

void CuteDSLRT_TVMFFISetRaisedCudaError(raise_parts_function raise_error, int code) {
  const char *parts[] = {cudaGetErrorString(code)};
  raise_error("RuntimeError", parts, 1);
}

const char *cuda_dialect_get_error_name(int code) { return cudaGetErrorName(code); }

void cuda_dialect_print_on_error(int code) {
  if (code != SUCCESS) fprintf(stderr, "%s\n", cudaGetErrorString(code));
}
