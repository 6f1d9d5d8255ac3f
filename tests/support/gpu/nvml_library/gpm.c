/* GPU performance monitoring: samples of counters, and metrics between two of them. Hopper and later. */
#include "nvml.h"

#include <stdlib.h>

#if NVML_DRIVER >= SINCE_GPM
struct nvmlGpmSample_st {
    int filled, gpu;
    double seconds;
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    CHECK(device, 0);
    if (support->version != 1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = OF(device)->gpm == 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    CHECK(NULL, 0);
    *sample = calloc(1, sizeof **sample);
    return *sample ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    CHECK(NULL, 0);
    free(sample);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    CHECK(device, 0);
    if (OF(device)->gpm != 1) return NVML_ERROR_NOT_SUPPORTED;
    *sample = (struct nvmlGpmSample_st){1, device->gpu, seconds_now()};
    return NVML_SUCCESS;
}

/* The first sample must be the older one, and both must be of one GPU. */
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked) {
    CHECK(NULL, 0);
    if (asked->version != 1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct nvmlGpmSample_st *before = asked->sample1, *now = asked->sample2;
    if (!before || !now || !before->filled || !now->filled || before->gpu != now->gpu ||
        before->seconds >= now->seconds)
        return NVML_ERROR_INVALID_ARGUMENT;
    const Gpu *gpu = &scenario.gpu[now->gpu];
    for (unsigned each = 0; each < asked->numMetrics; each++) {
        nvmlGpmMetric_t *metric = &asked->metrics[each];
        double value = metric->metricId < GPM_METRICS ? gpu->metrics[metric->metricId] : ABSENT;
        metric->nvmlReturn = value == ABSENT ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
        metric->value = value == ABSENT ? 0.0 : value;
    }
    return NVML_SUCCESS;
}
#endif
