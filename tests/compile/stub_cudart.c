/* A CUDA runtime for tests on machines without one: it records what it is asked for, on stdout,
 * and fails the call that STUB_FAIL names with error 700. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  unsigned grid[3], block[3];
  size_t shared;
  void *stream, *attributes;
  unsigned count;
} Config;

static int device = 0;

static int answer(const char *call) {
  const char *fail = getenv("STUB_FAIL");
  return fail != NULL && strcmp(fail, call) == 0 ? 700 : 0;
}

static int say(const char *call) {
  printf("%s\n", call);
  fflush(stdout);
  return answer(call);
}

int cudaLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d,
                        void *e, unsigned f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  *library = (void *)0x1000;
  uint32_t magic;
  memcpy(&magic, code, sizeof magic);
  printf("image %x\n", magic);
  return say("cudaLibraryLoadData");
}
int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  *kernel = (void *)0x2000;
  printf("kernel %s\n", library == (void *)0x1000 ? name : "of no library");
  return say("cudaLibraryGetKernel");
}
int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int dev) {
  (void)kernel;
  printf("attribute %d %d device %d\n", attribute, value, dev);
  return answer("cudaKernelSetAttributeForDevice");
}
int cudaFuncSetAttribute(const void *function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return say("cudaFuncSetAttribute");
}
int cudaDeviceGetAttribute(int *value, int attribute, int dev) {
  (void)attribute, (void)dev;
  *value = 232448;
  return answer("cudaDeviceGetAttribute");
}
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int dev) {
  (void)attribute, (void)kernel, (void)dev;
  *value = 0;
  return 0;
}
int cudaGetDevice(int *found) {
  *found = device;
  return answer("cudaGetDevice");
}
int cudaSetDevice(int wanted) {
  device = wanted;
  return answer("cudaSetDevice");
}
int cudaLaunchKernelExC(const Config *c, const void *kernel, void **arguments) {
  (void)arguments;
  printf("launch %u %u %u / %u %u %u / %zu / stream %p / kernel %p / device %d\n", c->grid[0],
         c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream,
         (void *)kernel, device);
  return say("cudaLaunchKernelExC");
}
const char *cudaGetErrorName(int code) { return code == 700 ? "cudaErrorIllegalAddress" : "other"; }
const char *cudaGetErrorString(int code) {
  return code == 700 ? "an illegal memory access was encountered" : "something else";
}
