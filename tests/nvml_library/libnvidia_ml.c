/* A loadable libnvidia-ml.so.1: the functions of nvml.h that gputopo calls, for a machine that environment variables
 * describe. The structures and prototypes are those of nvml.h 13, so the C compiler decides sizes and offsets.
 *
 *   NVML_GPUS=8               GPUs
 *   NVML_NAME="NVIDIA ..."    product
 *   NVML_LINKS=18             ports per GPU
 *   NVML_PEERS=switch         switch: all ports lead to an NVSwitch; mesh: evenly to the other GPUs
 *   NVML_FABRIC=1             registered in a multi-node fabric; NVML_HEALTH=0xMASK: health bits of GPU 1
 *   NVML_FAULT="FUNCTION:CODE:GPU;..."   GPU * for all, FUNCTION * for every function after the handle
 *   NVML_DOWN="GPU:PORT;..."  ports that are down
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct gpu *nvmlDevice_t;
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, VERSION_MISMATCH = 25 };

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef union {
    double dVal; int siVal; unsigned int uiVal; unsigned long ulVal; unsigned long long ullVal; signed long long sllVal;
    unsigned short usVal;
} nvmlValue_t;
typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;
typedef struct {
    unsigned int version;
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned int cliqueId;
    unsigned char state;
    unsigned int healthMask;
    unsigned char healthSummary;
} nvmlGpuFabricInfo_v3_t;
typedef struct {
    unsigned int version;
    unsigned char ibGuid[16], chassisSerialNumber[16];
    unsigned char slotNumber, trayIndex, hostId, peerType, moduleId;
} nvmlPlatformInfo_v2_t;

struct gpu { unsigned int index; };
static struct gpu gpus[64];

static unsigned int number(const char *name, unsigned int fallback) {
    const char *text = getenv(name);
    return text ? (unsigned int)strtoul(text, NULL, 0) : fallback;
}
static unsigned int count(void) { return number("NVML_GPUS", 8); }
static unsigned int ports(void) { return number("NVML_LINKS", 18); }
static int meshed(void) { const char *text = getenv("NVML_PEERS"); return text && !strcmp(text, "mesh"); }

/* The error of NVML_FAULT for a call, or SUCCESS. */
static nvmlReturn_t fault(const char *function, int gpu, int after_handle) {
    const char *text = getenv("NVML_FAULT");
    while (text && *text) {
        char name[64], place[8];
        int code, read = 0;
        if (sscanf(text, "%63[^:]:%d:%7[^;]%n", name, &code, place, &read) != 3) return SUCCESS;
        int every = !strcmp(name, "*") && after_handle;
        if ((every || !strcmp(name, function)) && (!strcmp(place, "*") || atoi(place) == gpu)) return code;
        text += read + (text[read] == ';');
    }
    return SUCCESS;
}
static int down(unsigned int gpu, unsigned int port) {
    char wanted[16];
    const char *text = getenv("NVML_DOWN");
    while (text && *text) {
        snprintf(wanted, sizeof wanted, "%u:%u", gpu, port);
        size_t size = strlen(wanted);
        if (!strncmp(text, wanted, size) && (text[size] == ';' || !text[size])) return 1;
        text = strchr(text, ';');
        text = text ? text + 1 : NULL;
    }
    return 0;
}
static void write_bus_id(char *out, size_t size, unsigned int gpu) { snprintf(out, size, "00000000:%02X:00.0", 0x10 + gpu); }

#define FAIL(gpu) do { nvmlReturn_t code = fault(__func__, gpu, 1); if (code) return code; } while (0)
#define GLOBAL(name, ...) nvmlReturn_t name(__VA_ARGS__) { \
    nvmlReturn_t failed = fault(__func__, -1, 0); if (failed) return failed;
#define DEVICE(name, ...) nvmlReturn_t name(nvmlDevice_t device, ##__VA_ARGS__) { FAIL((int)device->index);
#define END return SUCCESS; }
#define ABSENT(name, ...) DEVICE(name, ##__VA_ARGS__) return NOT_SUPPORTED; }

GLOBAL(nvmlInit_v2, void) END
GLOBAL(nvmlInitWithFlags, unsigned int flags) (void)flags; END
GLOBAL(nvmlShutdown, void) END
GLOBAL(nvmlSystemGetDriverVersion, char *out, unsigned int size) snprintf(out, size, "580.95.05"); END
GLOBAL(nvmlSystemGetNVMLVersion, char *out, unsigned int size) snprintf(out, size, "13.580.95.05"); END
GLOBAL(nvmlSystemGetCudaDriverVersion_v2, int *out) *out = 13000; END
GLOBAL(nvmlDeviceGetCount_v2, unsigned int *out) *out = count(); END
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out) {
    nvmlReturn_t failed = fault(__func__, (int)index, 0);
    if (failed) return failed;
    if (index >= count() || index >= 64) return INVALID_ARGUMENT;
    gpus[index].index = index;
    *out = &gpus[index];
    return SUCCESS;
}
DEVICE(nvmlDeviceGetUUID, char *out, unsigned int size)
    snprintf(out, size, "GPU-aabbccdd-0000-0000-0000-%012u", device->index); END
DEVICE(nvmlDeviceGetName, char *out, unsigned int size)
    const char *name = getenv("NVML_NAME"); snprintf(out, size, "%s", name ? name : "NVIDIA H100 80GB HBM3"); END
DEVICE(nvmlDeviceGetPciInfo_v3, nvmlPciInfo_t *out)
    memset(out, 0, sizeof *out);
    out->bus = 0x10 + device->index;
    write_bus_id(out->busId, sizeof out->busId, device->index); END
DEVICE(nvmlDeviceGetMinorNumber, unsigned int *out) *out = device->index; END
DEVICE(nvmlDeviceGetMemoryInfo, nvmlMemory_t *out) out->total = 81559ULL << 20; out->free = out->total; out->used = 0; END
DEVICE(nvmlDeviceGetUtilizationRates, nvmlUtilization_t *out) out->gpu = out->memory = 0; END
DEVICE(nvmlDeviceGetArchitecture, unsigned int *out) *out = 9; END
DEVICE(nvmlDeviceGetCudaComputeCapability, int *major, int *minor) *major = 9; *minor = 0; END
DEVICE(nvmlDeviceGetCpuAffinityWithinScope, unsigned int words, unsigned long *out, unsigned int scope)
    (void)scope; memset(out, 0, words * sizeof *out); out[0] = 3; END
DEVICE(nvmlDeviceGetMemoryAffinity, unsigned int words, unsigned long *out, unsigned int scope)
    (void)scope; memset(out, 0, words * sizeof *out); out[0] = device->index < count() / 2 ? 1 : 2; END
DEVICE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int *out) *out = 5; END
DEVICE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int *out) *out = 5; END
DEVICE(nvmlDeviceGetCurrPcieLinkWidth, unsigned int *out) *out = 16; END
DEVICE(nvmlDeviceGetMaxPcieLinkWidth, unsigned int *out) *out = 16; END
DEVICE(nvmlDeviceGetPerformanceState, unsigned int *out) *out = 0; END
DEVICE(nvmlDeviceGetMigMode, unsigned int *now, unsigned int *pending) *now = *pending = 0; END
DEVICE(nvmlDeviceGetEccMode, unsigned int *now, unsigned int *pending) *now = *pending = 1; END
DEVICE(nvmlDeviceGetTotalEccErrors, int kind, int counter, unsigned long long *out) (void)kind; (void)counter; *out = 0; END
DEVICE(nvmlDeviceGetRemappedRows, unsigned int *correctable, unsigned int *uncorrectable, unsigned int *pending,
       unsigned int *failed)
    *correctable = *uncorrectable = *pending = *failed = 0; END
DEVICE(nvmlDeviceGetPlatformInfo, nvmlPlatformInfo_v2_t *out)
    if (out->version != (sizeof *out | 2 << 24)) return VERSION_MISMATCH;
    memcpy(out->chassisSerialNumber, "1820325190001", 14);
    out->slotNumber = 24; out->trayIndex = 5; out->hostId = 0; out->moduleId = (unsigned char)(device->index + 1); END
DEVICE(nvmlDeviceGetGpuFabricInfoV, nvmlGpuFabricInfo_v3_t *out)
    if (out->version != (sizeof *out | 3 << 24)) return VERSION_MISMATCH;
    memset(out->clusterUuid, 0, 16);
    out->state = 0; out->status = SUCCESS; out->cliqueId = 0; out->healthMask = 0; out->healthSummary = 1;
    if (number("NVML_FABRIC", 0)) {
        memset(out->clusterUuid, 0x7b, 16);
        out->state = 3; out->cliqueId = 2;
        if (device->index == 1) {
            out->healthMask = number("NVML_HEALTH", 0);
            out->healthSummary = out->healthMask ? 2 : 1;
        }
    } END
DEVICE(nvmlDeviceGetNvLinkState, unsigned int link, unsigned int *out)
    if (!ports()) return NOT_SUPPORTED;
    if (link >= ports()) return INVALID_ARGUMENT;
    *out = !down(device->index, link); END
DEVICE(nvmlDeviceGetNvLinkVersion, unsigned int link, unsigned int *out) (void)link; *out = 6; END
DEVICE(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned int link, unsigned int *out) (void)link; *out = meshed() ? 0 : 2; END
DEVICE(nvmlDeviceGetNvLinkRemotePciInfo_v2, unsigned int link, nvmlPciInfo_t *out)
    memset(out, 0, sizeof *out);
    if (meshed()) {
        unsigned int peer = link * (count() - 1) / ports();
        write_bus_id(out->busId, sizeof out->busId, peer + (peer >= device->index));
    } else snprintf(out->busId, sizeof out->busId, "00000000:C%X:00.0", link % 4);
    END
DEVICE(nvmlDeviceGetFieldValues, int wanted, nvmlFieldValue_t *values)
    for (int at = 0; at < wanted; at++) {
        nvmlFieldValue_t *value = &values[at];
        value->nvmlReturn = SUCCESS;
        value->valueType = 1;
        value->value.ullVal = 0;
        switch (value->fieldId) {
        case 90: case 164: value->value.uiVal = 26562; break;
        case 91: value->value.uiVal = ports(); break;
        case 161: case 162: case 163: value->value.uiVal = 0; break;
        default: value->nvmlReturn = NOT_SUPPORTED;
        }
    } END
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned int *out) {
    FAIL((int)a->index);
    *out = (a->index < count() / 2) == (b->index < count() / 2) ? 40 : 50;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, unsigned int kind, unsigned int *out) {
    FAIL((int)a->index);
    (void)b;
    *out = kind == 2 && ports() ? 0 : 5;
    return SUCCESS;
}
ABSENT(nvmlDeviceGetNumaNodeId, unsigned int *out)

