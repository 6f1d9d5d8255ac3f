/* What is read of a GPU: load, memory, power, clocks, errors, traffic, field values and processes. */
#include "nvml.h"

#include <time.h>

static int is_divided(nvmlDevice_t device) { return device->part < 0 && OF(device)->parts > 0; }

static nvmlReturn_t number(double value, unsigned *into) {
    if (value == ABSENT) return NVML_ERROR_NOT_SUPPORTED;
    *into = (unsigned)value;
    return NVML_SUCCESS;
}

static nvmlReturn_t big(double value, unsigned long long *into) {
    if (value == ABSENT) return NVML_ERROR_NOT_SUPPORTED;
    *into = (unsigned long long)value;
    return NVML_SUCCESS;
}

/* NVML does not tell the load of a GPU that is divided into parts, nor of a part. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    CHECK(device, 1);
    if (device->part >= 0 || is_divided(device)) return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t code = number(OF(device)->utilization, &rates->gpu);
    return code ? code : number(OF(device)->memory_utilization, &rates->memory);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    CHECK(device, 1);
    const Gpu *gpu = OF(device);
    double total = device->part < 0 ? gpu->memory_total : gpu->part[device->part].memory_total;
    double used = device->part < 0 ? gpu->memory_used : gpu->part[device->part].memory_used;
    if (total == ABSENT || used == ABSENT) return NVML_ERROR_NOT_SUPPORTED;
    *memory = (nvmlMemory_t){
        (unsigned long long)total, (unsigned long long)(total - used), (unsigned long long)used};
    return NVML_SUCCESS;
}

#if NVML_DRIVER >= SINCE_PROCESSES_V3
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    CHECK(device, 1);
    if (memory->version != NVML_VERSION(nvmlMemory_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const Gpu *gpu = OF(device);
    memory->total = (unsigned long long)gpu->memory_total;
    memory->reserved = 0;
    memory->used = (unsigned long long)gpu->memory_used;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}
#endif

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    CHECK(device, 0);
    return number(OF(device)->power_mw, milliwatts);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts) {
    CHECK(device, 0);
    return number(OF(device)->power_limit_mw, milliwatts);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    CHECK(device, 0);
    return big(OF(device)->power_mw == ABSENT ? ABSENT : energy_mj(device->gpu), millijoules);
}

#if NVML_DRIVER < WITHOUT_DEPRECATED
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius) {
    CHECK(device, 0);
    return sensor ? NVML_ERROR_INVALID_ARGUMENT : number(OF(device)->temperature, celsius);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    CHECK(device, 0);
    return type > 2 ? NVML_ERROR_INVALID_ARGUMENT : number(OF(device)->applications_clock, mhz);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    CHECK(device, 0);
    return big(OF(device)->reasons, reasons);
}
#endif

#if NVML_DRIVER >= SINCE_EVENT_REASONS
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    CHECK(device, 0);
    return big(OF(device)->reasons, reasons);
}
#endif

#if NVML_DRIVER >= SINCE_TEMPERATURE_V
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *asked) {
    CHECK(device, 0);
    if (asked->version != NVML_VERSION(nvmlTemperature_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return asked->sensorType ? NVML_ERROR_INVALID_ARGUMENT
                             : number(OF(device)->temperature, (unsigned *)&asked->temperature);
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_v1_t *asked) {
    CHECK(device, 0);
    if (asked->version != NVML_VERSION(nvmlMarginTemperature_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (OF(device)->margin == ABSENT) return NVML_ERROR_NOT_SUPPORTED;
    asked->marginTemperature = (int)OF(device)->margin;
    return NVML_SUCCESS;
}
#endif

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned kind, unsigned *celsius) {
    CHECK(device, 0);
    return kind == 1 ? number(OF(device)->slowdown, celsius) : NVML_ERROR_NOT_SUPPORTED;
}

/* Types: 0 graphics, 1 SM, 2 memory, 3 video. */
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    CHECK(device, 0);
    if (type > 3) return NVML_ERROR_INVALID_ARGUMENT;
    return number(type == 2 ? OF(device)->memory_clock : OF(device)->sm_clock, mhz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    CHECK(device, 0);
    if (type > 3) return NVML_ERROR_INVALID_ARGUMENT;
    return number(type == 2 ? OF(device)->memory_clock_max : OF(device)->sm_clock_max, mhz);
}

/* Error type 0 corrected, 1 uncorrected; counter type 0 since the driver was loaded. */
nvmlReturn_t nvmlDeviceGetTotalEccErrors(
    nvmlDevice_t device, unsigned error, unsigned counter, unsigned long long *many) {
    CHECK(device, 0);
    if (error > 1 || counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
    return big(error ? OF(device)->ecc_uncorrected : OF(device)->ecc_corrected, many);
}

/* Watches the bus for a while, as the driver does. Counter 0 sent, 1 received, in KB a second. */
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kb) {
    CHECK(device, 0);
    if (counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
    double seconds = scenario.pcie_seconds;
    struct timespec rest = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&rest, NULL);
    return number(counter ? OF(device)->pcie_rx_kb : OF(device)->pcie_tx_kb, kb);
}

/* 91: NVLinks. 138 and 139: payload sent and received in KiB, of one link or, with all bits set, of all. 194: distance
 * to the slowdown at which it begins. */
static nvmlReturn_t field(nvmlDevice_t device, nvmlFieldValue_t *asked) {
    const Gpu *gpu = OF(device);
    int all = asked->scopeId == UINT32_MAX;
    switch (asked->fieldId) {
    case 91:
        asked->valueType = TYPE_UNSIGNED_INT;
        asked->value.uiVal = (unsigned)gpu->links;
        return NVML_SUCCESS;
    case 138:
    case 139:
        if (!gpu->links || gpu->link_kib_per_second == ABSENT) return NVML_ERROR_NOT_SUPPORTED;
        if (!all && asked->scopeId >= (unsigned)gpu->links) return NVML_ERROR_INVALID_ARGUMENT;
        asked->valueType = TYPE_UNSIGNED_LONG_LONG;
        asked->value.ullVal = (unsigned long long)(link_kib(device->gpu) / (all ? 1 : gpu->links));
        return NVML_SUCCESS;
    case 194:
        if (gpu->slowdown_margin == ABSENT) return NVML_ERROR_NOT_SUPPORTED;
        asked->valueType = TYPE_SIGNED_INT;
        asked->value.siVal = (int)gpu->slowdown_margin;
        return NVML_SUCCESS;
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

/* Each value has a return code of its own; the call succeeds although none of them does. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int many, nvmlFieldValue_t *values) {
    CHECK(device, 0);
    if (many < 1 || !values) return NVML_ERROR_INVALID_ARGUMENT;
    for (int each = 0; each < many; each++) {
        values[each].nvmlReturn = field(device, &values[each]);
        values[each].timestamp = (long long)(1e6 * seconds_now());
    }
    return NVML_SUCCESS;
}

#if NVML_DRIVER >= SINCE_PROCESSES_V3
/* Of a divided GPU as a whole only privileged users are told; of a part everybody is told its own. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(
    nvmlDevice_t device, unsigned *many, nvmlProcessInfo_v2_t *infos) {
    CHECK(device, 1);
    const Gpu *gpu = OF(device);
    if (is_divided(device) && !gpu->privileged) return NVML_ERROR_NO_PERMISSION;
    unsigned found = 0, room = *many;
    for (int each = 0; each < gpu->processes; each++) {
        const Process *process = &gpu->process[each];
        if (device->part >= 0 && process->gpu_instance != gpu->part[device->part].gpu_instance) continue;
        if (infos && found < room)
            infos[found] = (nvmlProcessInfo_v2_t){
                (unsigned)process->pid,
                process->bytes == ABSENT ? UINT64_MAX : (unsigned long long)process->bytes,
                gpu->parts ? process->gpu_instance : UINT32_MAX,
                gpu->parts ? process->compute_instance : UINT32_MAX,
            };
        found++;
    }
    *many = found;
    return found > room || (found && !infos) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
#endif
