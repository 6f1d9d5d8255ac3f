/* The part of NVML's interface that nvidia-ml-py uses of it here, and the driver that stands behind it.
 *
 * Layouts and numbers are those of NVIDIA's public header; the Python side checks them against nvidia-ml-py's. A driver of
 * another generation is another build: NVML_DRIVER is its branch, and functions that it does not have are not in the
 * library, so that nvidia-ml-py does not find their symbols.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifndef NVML_DRIVER
#define NVML_DRIVER 570
#endif
/* Branches in which functions came, and the first that leaves out what NVIDIA deprecated for CUDA 14. */
#define SINCE_MIG 450
#define SINCE_PROCESSES_V3 510
#define SINCE_GPM 525
#define SINCE_EVENT_REASONS 535
#define SINCE_TEMPERATURE_V 560
#define WITHOUT_DEPRECATED 700

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

/* Versioned structures carry their size and their version. */
#define NVML_VERSION(type, number) ((unsigned)(sizeof(type) | ((unsigned)(number) << 24)))

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlGpmSample_st *nvmlGpmSample_t;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned version;
    int marginTemperature;
} nvmlMarginTemperature_v1_t;

typedef struct {
    unsigned version, sensorType;
    int temperature;
} nvmlTemperature_v1_t;

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t; /* v3 has the same layout */

typedef union {
    double dVal;
    unsigned uiVal;
    unsigned long ulVal;
    unsigned long long ullVal;
    long long sllVal;
    int siVal;
    unsigned short usVal;
} nvmlValue_t;

enum { TYPE_UNSIGNED_INT = 1, TYPE_UNSIGNED_LONG_LONG = 3, TYPE_SIGNED_INT = 5 };

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
    unsigned version, isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct {
    unsigned metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct {
        char *shortName, *longName, *unit;
    } metricInfo;
} nvmlGpmMetric_t;

/* Newer headers only make the array longer, without a new version: no more than numMetrics of it may be touched. */
typedef struct {
    unsigned version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[];
} nvmlGpmMetricsGet_t;

_Static_assert(sizeof(nvmlPciInfo_t) == 68 && offsetof(nvmlPciInfo_t, busId) == 36, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(nvmlProcessInfo_v2_t) == 24, "nvmlProcessInfo_v2_t");
_Static_assert(sizeof(nvmlFieldValue_t) == 40 && offsetof(nvmlFieldValue_t, value) == 32, "nvmlFieldValue_t");
_Static_assert(sizeof(nvmlGpmMetric_t) == 40 && sizeof(nvmlGpmMetricsGet_t) == 24, "nvmlGpmMetricsGet_t");

/* ---- the driver behind it, which the scenario file describes ---- */

enum { GPUS = 16, PARTS = 7, PROCESSES = 64, FAILURES = 32, GPM_METRICS = 512 };

/* What a reading is when the scenario does not name it: the function answers "not supported". */
#define ABSENT (-1e300)

typedef struct {
    int pid;
    double bytes; /* ABSENT: the driver cannot tell */
    unsigned gpu_instance, compute_instance;
} Process;

/* A part of a GPU (MIG): an instance with a UUID of its own. */
typedef struct {
    char uuid[96], profile[32];
    unsigned gpu_instance, compute_instance;
    double memory_total, memory_used;
} Part;

typedef struct {
    char function[64];
    int code;
} Failure;

typedef struct {
    char name[96], uuid[96];
    /* By the names of scenario.c; numbers in NVML's own units. */
    double domain, bus, device, lost, enumerated, privileged, utilization, memory_utilization, memory_total,
        memory_used, power_mw, power_limit_mw, temperature, slowdown, margin, slowdown_margin, sm_clock,
        memory_clock, sm_clock_max, memory_clock_max, applications_clock, reasons, ecc_corrected, ecc_uncorrected,
        links, link_kib_per_second, pcie_tx_kb, pcie_rx_kb, gpm;
    double metrics[GPM_METRICS];
    int parts, processes, failures;
    Part part[PARTS];
    Process process[PROCESSES];
    Failure failure[FAILURES];
} Gpu;

typedef struct {
    char driver[80];
    int gpus, failures;
    double pcie_seconds; /* how long the driver watches the bus for one counter */
    Failure failure[FAILURES];
    Gpu gpu[GPUS];
} Scenario;

/* A handle. It holds for one life of the library, from nvmlInit to nvmlShutdown. */
struct nvmlDevice_st {
    int gpu, part; /* part -1: the whole GPU */
    unsigned life;
};

extern Scenario scenario;

/* Reads the scenario again if its file has changed, under a lock that `leave` gives back. */
int enter(void);
void leave(int *entered);
/* Counters of a GPU that grow with time at the scenario's rates. */
double energy_mj(int gpu);
double link_kib(int gpu);
double seconds_now(void);
/* Whether the library is open, the handle is of this life, the GPU is there and the scenario lets it answer. */
nvmlReturn_t refuse(const char *function, nvmlDevice_t device, int parts_too);

#define ENTER int entered __attribute__((cleanup(leave), unused)) = enter()
#define CHECK(device, parts_too)                                                                                       \
    ENTER;                                                                                                             \
    nvmlReturn_t refused = refuse(__func__, device, parts_too);                                                        \
    if (refused != NVML_SUCCESS) return refused
#define OF(device) (&scenario.gpu[(device)->gpu])
