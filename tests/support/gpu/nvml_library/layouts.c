/* Sizes and places of the fields of each structure here, as text: "name size field place field place ...", a line each. */
#include "nvml.h"

#include <stdio.h>

#define TYPE(type) used += snprintf(text + used, sizeof text - (size_t)used, "\n%s %zu", #type, sizeof(type))
#define FIELD(type, field)                                                                                             \
    used += snprintf(text + used, sizeof text - (size_t)used, " %s %zu", #field, offsetof(type, field))

const char *library_layouts(void) {
    static char text[4096];
    int used = 0;
    TYPE(nvmlPciInfo_t);
    FIELD(nvmlPciInfo_t, busIdLegacy), FIELD(nvmlPciInfo_t, domain), FIELD(nvmlPciInfo_t, bus);
    FIELD(nvmlPciInfo_t, device), FIELD(nvmlPciInfo_t, pciDeviceId), FIELD(nvmlPciInfo_t, pciSubSystemId);
    FIELD(nvmlPciInfo_t, busId);
    TYPE(nvmlUtilization_t);
    FIELD(nvmlUtilization_t, gpu), FIELD(nvmlUtilization_t, memory);
    TYPE(nvmlMemory_t);
    FIELD(nvmlMemory_t, total), FIELD(nvmlMemory_t, free), FIELD(nvmlMemory_t, used);
    TYPE(nvmlMemory_v2_t);
    FIELD(nvmlMemory_v2_t, version), FIELD(nvmlMemory_v2_t, total), FIELD(nvmlMemory_v2_t, reserved);
    FIELD(nvmlMemory_v2_t, free), FIELD(nvmlMemory_v2_t, used);
    TYPE(nvmlMarginTemperature_v1_t);
    FIELD(nvmlMarginTemperature_v1_t, version), FIELD(nvmlMarginTemperature_v1_t, marginTemperature);
    TYPE(nvmlTemperature_v1_t);
    FIELD(nvmlTemperature_v1_t, version), FIELD(nvmlTemperature_v1_t, sensorType);
    FIELD(nvmlTemperature_v1_t, temperature);
    TYPE(nvmlProcessInfo_v2_t);
    FIELD(nvmlProcessInfo_v2_t, pid), FIELD(nvmlProcessInfo_v2_t, usedGpuMemory);
    FIELD(nvmlProcessInfo_v2_t, gpuInstanceId), FIELD(nvmlProcessInfo_v2_t, computeInstanceId);
    TYPE(nvmlFieldValue_t);
    FIELD(nvmlFieldValue_t, fieldId), FIELD(nvmlFieldValue_t, scopeId), FIELD(nvmlFieldValue_t, timestamp);
    FIELD(nvmlFieldValue_t, latencyUsec), FIELD(nvmlFieldValue_t, valueType), FIELD(nvmlFieldValue_t, nvmlReturn);
    FIELD(nvmlFieldValue_t, value);
    TYPE(nvmlGpmSupport_t);
    FIELD(nvmlGpmSupport_t, version), FIELD(nvmlGpmSupport_t, isSupportedDevice);
    TYPE(nvmlGpmMetric_t);
    FIELD(nvmlGpmMetric_t, metricId), FIELD(nvmlGpmMetric_t, nvmlReturn), FIELD(nvmlGpmMetric_t, value);
    FIELD(nvmlGpmMetric_t, metricInfo);
    TYPE(nvmlGpmMetricsGet_t);
    FIELD(nvmlGpmMetricsGet_t, version), FIELD(nvmlGpmMetricsGet_t, numMetrics);
    FIELD(nvmlGpmMetricsGet_t, sample1), FIELD(nvmlGpmMetricsGet_t, sample2), FIELD(nvmlGpmMetricsGet_t, metrics);
    return text;
}
