/* The scenario: a text file that a test may replace while this library runs in another process.
 *
 * Lines are "driver TEXT", "pcie_seconds NUMBER", "fail FUNCTION CODE" and, of one GPU, "gpu N name TEXT",
 * "gpu N uuid TEXT", "gpu N READING NUMBER", "gpu N metric ID NUMBER", "gpu N process PID BYTES|none GI CI",
 * "gpu N part UUID PROFILE GI CI TOTAL USED" and "gpu N fail FUNCTION CODE".
 */
#include "nvml.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

Scenario scenario;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat seen;
/* What grew until `grown_at`, by the rates before the scenario changed. */
static double energy[GPUS], links[GPUS], grown_at;

static const struct {
    const char *name;
    size_t offset;
} READINGS[] = {
#define READING(name) {#name, offsetof(Gpu, name)}
    READING(domain), READING(bus), READING(device), READING(lost), READING(enumerated), READING(privileged),
    READING(utilization), READING(memory_utilization), READING(memory_total), READING(memory_used),
    READING(power_mw), READING(power_limit_mw), READING(temperature), READING(slowdown), READING(margin),
    READING(slowdown_margin), READING(sm_clock), READING(memory_clock), READING(sm_clock_max),
    READING(memory_clock_max), READING(applications_clock), READING(reasons), READING(ecc_corrected),
    READING(ecc_uncorrected), READING(links), READING(link_kib_per_second), READING(pcie_tx_kb),
    READING(pcie_rx_kb), READING(gpm),
};
enum { KNOWN = sizeof READINGS / sizeof *READINGS };

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double rate(double value) { return value == ABSENT ? 0.0 : value; }

double energy_mj(int gpu) {
    return energy[gpu] + rate(scenario.gpu[gpu].power_mw) * (seconds_now() - grown_at);
}

double link_kib(int gpu) {
    return links[gpu] + rate(scenario.gpu[gpu].link_kib_per_second) * (seconds_now() - grown_at);
}

static double *reading(Gpu *gpu, const char *name) {
    for (int each = 0; each < KNOWN; each++)
        if (!strcmp(READINGS[each].name, name)) return (double *)((char *)gpu + READINGS[each].offset);
    return NULL;
}

static void blank(Scenario *fresh) {
    memset(fresh, 0, sizeof *fresh);
    fresh->pcie_seconds = 0.02;
    for (int number = 0; number < GPUS; number++) {
        Gpu *gpu = &fresh->gpu[number];
        for (int each = 0; each < KNOWN; each++) *reading(gpu, READINGS[each].name) = ABSENT;
        for (int metric = 0; metric < GPM_METRICS; metric++) gpu->metrics[metric] = ABSENT;
        gpu->domain = gpu->device = gpu->lost = gpu->links = 0;
        gpu->enumerated = gpu->privileged = 1;
    }
}

/* A scenario that is not understood must not pass for a driver: the test is wrong. */
static void wrong(const char *line) {
    fprintf(stderr, "the NVML scenario has a line that means nothing: %s\n", line);
    abort();
}

static int failure(const char *text, Failure *into, int *count) {
    return *count < FAILURES && sscanf(text, "fail %63s %d", into[*count].function, &into[*count].code) == 2 &&
           ++*count;
}

static int process(const char *text, Gpu *gpu) {
    Process *into = &gpu->process[gpu->processes];
    char bytes[32];
    if (gpu->processes == PROCESSES ||
        sscanf(text, "process %d %31s %u %u", &into->pid, bytes, &into->gpu_instance, &into->compute_instance) != 4)
        return 0;
    into->bytes = strcmp(bytes, "none") ? strtod(bytes, NULL) : ABSENT;
    return ++gpu->processes;
}

static int part(const char *text, Gpu *gpu) {
    Part *into = &gpu->part[gpu->parts];
    return gpu->parts < PARTS &&
           sscanf(text, "part %95s %31s %u %u %lf %lf", into->uuid, into->profile, &into->gpu_instance,
                  &into->compute_instance, &into->memory_total, &into->memory_used) == 6 &&
           ++gpu->parts;
}

static int of_gpu(const char *text, Gpu *gpu) {
    char name[64];
    double value;
    unsigned metric;
    if (sscanf(text, "name %95[^\n]", gpu->name) == 1 || sscanf(text, "uuid %95s", gpu->uuid) == 1) return 1;
    if (sscanf(text, "metric %u %lf", &metric, &value) == 2 && metric < GPM_METRICS) {
        gpu->metrics[metric] = value;
        return 1;
    }
    if (failure(text, gpu->failure, &gpu->failures) || process(text, gpu) || part(text, gpu)) return 1;
    double *into = sscanf(text, "%63s %lf", name, &value) == 2 ? reading(gpu, name) : NULL;
    if (into) *into = value;
    return into != NULL;
}

static void read_line(char *line, Scenario *fresh) {
    int number, after = 0;
    if (sscanf(line, "gpu %d %n", &number, &after) == 1 && after > 0 && number >= 0 && number < GPUS) {
        if (number >= fresh->gpus) fresh->gpus = number + 1;
        if (of_gpu(line + after, &fresh->gpu[number])) return;
    } else if (sscanf(line, "driver %79s", fresh->driver) == 1 ||
               sscanf(line, "pcie_seconds %lf", &fresh->pcie_seconds) == 1 ||
               failure(line, fresh->failure, &fresh->failures)) {
        return;
    }
    wrong(line);
}

static void read_scenario(void) {
    static Scenario fresh;
    const char *path = getenv("NVML_SCENARIO");
    struct stat now;
    if (!path) wrong("(the variable NVML_SCENARIO is not set)");
    if (stat(path, &now)) wrong(path);
    if (now.st_ino == seen.st_ino && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) wrong(path);
    blank(&fresh);
    char line[512];
    while (fgets(line, sizeof line, file))
        if (*line != '\n') read_line(line, &fresh);
    fclose(file);
    for (int gpu = 0; gpu < GPUS; gpu++) {
        energy[gpu] = energy_mj(gpu);
        links[gpu] = link_kib(gpu);
    }
    grown_at = seconds_now();
    scenario = fresh;
    seen = now;
}

int enter(void) {
    pthread_mutex_lock(&lock);
    read_scenario();
    return 1;
}

void leave(int *entered) {
    if (*entered) pthread_mutex_unlock(&lock);
}
