/* The functions of the CUDA runtime that the probes use, on the processor: two devices whose memory are files, so
 * that another process can open it. CUDART_FAULT names what goes wrong: dropped, mirror (the source sees what the
 * owner does not), lost, ipc_dropped (only copies by another process), ipc_refused, ipc_dies. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, LOST = 46, REFUSED = 801, ALREADY = 704, DEVICES = 2, ALLOCATIONS = 16 };

typedef struct { char path[48]; size_t size; int device; char rest[4]; } handle_t; /* 64 bytes, as CUDA's */
static struct { char *at; handle_t handle; } allocations[ALLOCATIONS];
static int allocated;

static int current, enabled[DEVICES][DEVICES], copies;
static char *mirrored_at, *mirror;
static size_t mirror_size;

static int fault(const char *name) {
    const char *given = getenv("CUDART_FAULT");
    return given && !strcmp(given, name);
}

int cudaGetDeviceCount(int *count) { *count = fault("none_there") ? 0 : DEVICES; return OK; }
int cudaSetDevice(int device) { current = device; return device < DEVICES ? OK : INVALID; }
const char *cudaGetErrorString(int error) {
    return error == LOST ? "the device is gone" : error == REFUSED ? "operation not supported" : "invalid value";
}
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
static void *map(const char *path, size_t size, int flags) {
    int file = open(path, flags, 0600);
    if (file < 0 || ((flags & O_CREAT) && ftruncate(file, size))) return NULL;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return at == MAP_FAILED ? NULL : at;
}
int cudaMalloc(void **pointer, size_t size) {
    if (allocated == ALLOCATIONS) return INVALID;
    handle_t *handle = &allocations[allocated].handle;
    const char *folder = getenv("TMPDIR");
    snprintf(handle->path, sizeof handle->path, "%s/cudart-%d-%d", folder ? folder : "/tmp", getpid(), allocated);
    handle->size = size;
    handle->device = current;
    *pointer = allocations[allocated].at = map(handle->path, size, O_RDWR | O_CREAT | O_EXCL);
    if (!*pointer) return INVALID;
    allocated++;
    return OK;
}
int cudaIpcGetMemHandle(handle_t *handle, void *pointer) {
    if (fault("ipc_refused")) return REFUSED;
    for (int i = 0; i < allocated; i++)
        if (allocations[i].at == pointer) {
            *handle = allocations[i].handle;
            return OK;
        }
    return INVALID;
}
int cudaIpcOpenMemHandle(void **pointer, handle_t handle, unsigned flags) {
    char own[16];
    snprintf(own, sizeof own, "-%d-", getpid());
    if (flags != 1 || strstr(handle.path, own)) return INVALID; /* not in the process that exported it */
    return (*pointer = map(handle.path, handle.size, O_RDWR)) ? OK : INVALID;
}
int cudaMemcpyAsync(void *to, const void *from, size_t size, int direction, void *stream) {
    if (direction != 4 || !stream || *(int *)stream != current) return INVALID;
    copies++;
    if (fault("ipc_dies")) _exit(1);
    if (!fault("dropped") && !fault("mirror") && !fault("ipc_dropped")) memcpy(to, from, size);
    return OK;
}
int cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    if (flags) return INVALID;
    *pointer = malloc(size);
    return *pointer ? OK : INVALID;
}
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
