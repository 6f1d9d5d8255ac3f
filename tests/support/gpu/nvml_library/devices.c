/* Opening and closing, and which GPUs there are: handles by number and by UUID, parts of a GPU (MIG). */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

static struct nvmlDevice_st whole[GPUS], parts[GPUS][PARTS];
static int opened; /* as often as nvmlInit was called without nvmlShutdown */
static unsigned life;
/* The GPUs that were there when the library was opened, in the bus's order. */
static int order[GPUS], count;

static nvmlReturn_t failing(const Failure *failures, int many, const char *function) {
    for (int each = 0; each < many; each++)
        if (!strcmp(failures[each].function, function)) return (nvmlReturn_t)failures[each].code;
    return NVML_SUCCESS;
}

nvmlReturn_t refuse(const char *function, nvmlDevice_t device, int parts_too) {
    if (!opened) return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t code = failing(scenario.failure, scenario.failures, function);
    if (code != NVML_SUCCESS || !device) return code;
    if (device->life != life) return NVML_ERROR_INVALID_ARGUMENT;
    const Gpu *gpu = OF(device);
    if (gpu->lost) return (nvmlReturn_t)gpu->lost;
    if (device->part >= 0 && (!parts_too || device->part >= gpu->parts)) return NVML_ERROR_INVALID_ARGUMENT;
    return failing(gpu->failure, gpu->failures, function);
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    ENTER;
    nvmlReturn_t code = failing(scenario.failure, scenario.failures, __func__);
    if (code != NVML_SUCCESS || flags) return code ? code : NVML_ERROR_INVALID_ARGUMENT;
    if (opened++) return NVML_SUCCESS;
    life++;
    count = 0;
    for (int gpu = 0; gpu < scenario.gpus; gpu++)
        if (scenario.gpu[gpu].enumerated) order[count++] = gpu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) {
    ENTER;
    if (!opened) return NVML_ERROR_UNINITIALIZED;
    opened--;
    return NVML_SUCCESS;
}

static nvmlReturn_t text(char *into, unsigned length, const char *value) {
    if (!*value) return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(value) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(into, value);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    default: return "Unknown Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    CHECK(NULL, 0);
    return text(version, length, scenario.driver);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *many) {
    CHECK(NULL, 0);
    *many = (unsigned)count;
    return NVML_SUCCESS;
}

static nvmlReturn_t handle(int gpu, int part, nvmlDevice_t *device) {
    nvmlDevice_t found = part < 0 ? &whole[gpu] : &parts[gpu][part];
    *found = (struct nvmlDevice_st){gpu, part, life};
    if (scenario.gpu[gpu].lost) return (nvmlReturn_t)scenario.gpu[gpu].lost;
    *device = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    CHECK(NULL, 0);
    return index < (unsigned)count ? handle(order[index], -1, device) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    CHECK(NULL, 0);
    for (int each = 0; each < count; each++) {
        const Gpu *gpu = &scenario.gpu[order[each]];
        if (!strcmp(gpu->uuid, uuid)) return handle(order[each], -1, device);
        for (int part = 0; part < gpu->parts; part++)
            if (!strcmp(gpu->part[part].uuid, uuid)) return handle(order[each], part, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    CHECK(device, 1);
    char full[160];
    const Gpu *gpu = OF(device);
    if (device->part < 0) return text(name, length, gpu->name);
    snprintf(full, sizeof full, "%s MIG %s", gpu->name, gpu->part[device->part].profile);
    return text(name, length, full);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    CHECK(device, 1);
    return text(uuid, length, device->part < 0 ? OF(device)->uuid : OF(device)->part[device->part].uuid);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    CHECK(device, 0);
    for (int each = 0; each < count; each++)
        if (order[each] == device->gpu) *index = (unsigned)each;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    CHECK(device, 0);
    const Gpu *gpu = OF(device);
    unsigned domain = (unsigned)gpu->domain, bus = (unsigned)gpu->bus, place = (unsigned)gpu->device;
    *info = (nvmlPciInfo_t){.domain = domain, .bus = bus, .device = place, .pciDeviceId = 0x233010de};
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff, place & 0xff);
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", domain, bus, place);
    return NVML_SUCCESS;
}

#if NVML_DRIVER >= SINCE_MIG
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now, unsigned *pending) {
    CHECK(device, 0);
    *now = *pending = OF(device)->parts > 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *many) {
    CHECK(device, 0);
    *many = OF(device)->parts > 0 ? PARTS : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *found) {
    CHECK(device, 0);
    if (index >= (unsigned)OF(device)->parts) return NVML_ERROR_NOT_FOUND;
    return handle(device->gpu, (int)index, found);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_part) {
    CHECK(device, 1);
    *is_part = device->part >= 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *found) {
    CHECK(device, 1);
    return device->part < 0 ? NVML_ERROR_INVALID_ARGUMENT : handle(device->gpu, -1, found);
}
#endif
