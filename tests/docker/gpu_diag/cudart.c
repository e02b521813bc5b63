/* The functions of the CUDA runtime that the probes use, on the processor: two devices whose memory is the heap.
 * CUDART_FAULT names what goes wrong: dropped, mirror (the source sees what the owner does not), lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 1, LOST = 46, ALREADY = 704, DEVICES = 2 };

static int current, enabled[DEVICES][DEVICES], copies;
static char *mirrored_at, *mirror;
static size_t mirror_size;

static int fault(const char *name) {
    const char *given = getenv("CUDART_FAULT");
    return given && !strcmp(given, name);
}

int cudaGetDeviceCount(int *count) { *count = fault("none_there") ? 0 : DEVICES; return OK; }
int cudaSetDevice(int device) { current = device; return device < DEVICES ? OK : INVALID; }
const char *cudaGetErrorString(int error) { return error == LOST ? "the device is gone" : "invalid value"; }
int cudaDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, length, "0000:%02X:00.0", 0x3d + device);
    return OK;
}
int cudaDeviceCanAccessPeer(int *can, int from, int to) { *can = from != to; return OK; }
int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    if (flags || peer == current) return INVALID;
    if (enabled[current][peer]) return ALREADY;
    enabled[current][peer] = 1;
    return OK;
}
int cudaStreamCreate(void **stream) { *stream = malloc(sizeof(int)); *(int *)*stream = current; return OK; }
int cudaMemGetInfo(size_t *free_, size_t *total) { *free_ = *total = (size_t)8 << 30; return OK; }
int cudaMalloc(void **pointer, size_t size) { *pointer = malloc(size); return *pointer ? OK : INVALID; }
int cudaHostAlloc(void **pointer, size_t size, unsigned flags) { return flags ? INVALID : cudaMalloc(pointer, size); }
int cudaDeviceSynchronize(void) { return fault("lost") && copies > 0 ? LOST : OK; }
int cudaMemcpy(void *to, const void *from, size_t size, int direction) {
    if (direction != 1 && direction != 2) return INVALID;
    memcpy(to, from, size);
    return OK;
}
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, void *stream) {
    if (to_device == from_device || !stream || *(int *)stream != current) return INVALID;
    if (!enabled[to_device][from_device] || !enabled[from_device][to_device]) return INVALID;
    copies++;
    if (fault("dropped")) return OK;
    if (fault("mirror")) {
        if (mirror && (const char *)from == mirrored_at) {
            memcpy(to, mirror, size < mirror_size ? size : mirror_size);
            return OK;
        }
        mirrored_at = to;
        mirror = realloc(mirror, mirror_size = size);
        memcpy(mirror, from, size);
        return OK;
    }
    memcpy(to, from, size);
    return OK;
}
