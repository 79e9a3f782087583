/*
 * The disk floor: the number of records per second that can be made durable before they are acknowledged, by group
 * commit alone: no network, no protocol, no checksum.
 *
 * One thread owns a file that was filled before, so that a sync waits for data and not for the file system. The thread
 * takes all pending records, writes them with one pwrite, syncs with one fdatasync and acknowledges them. Each client
 * submits IN_FLIGHT records together and waits for their acknowledgement.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    BLOCK = 4096,
    BUFFER_BYTES = 8 << 20,
    FILE_BYTES = 256 << 20,
    CHUNK_BYTES = 1 << 20,
    SAMPLES_MAX = 1 << 22,
    CLIENTS_MAX = 1024,
};

struct client {
    pthread_t thread;
    uint64_t records;
};

static struct {
    size_t records_at_once;
    size_t record_bytes;
} plan;

/* State that clients and the log share. Commits are numbered in the order in which their buffers are filled. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t has_records;
    pthread_cond_t is_committed;
    char *buffer;
    size_t filled;
    uint64_t filling;
    uint64_t committed;
    bool stopped;
    float *samples_us;
    size_t samples;
} shared = {
    .mutex = PTHREAD_MUTEX_INITIALIZER,
    .has_records = PTHREAD_COND_INITIALIZER,
    .is_committed = PTHREAD_COND_INITIALIZER,
    .filling = 1,
};

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("group_commit: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, BLOCK, bytes) != 0) fail("no memory for %zu bytes", bytes);
    /* Touches the pages, so that they are present. */
    memset(memory, 'x', bytes);
    return memory;
}

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void write_all(int file, const char *bytes, size_t count, off_t at) {
    while (count > 0) {
        ssize_t written = pwrite(file, bytes, count, at);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) fail("cannot write: %s", strerror(errno));
        bytes += written, count -= written, at += written;
    }
}

static void sync_data(int file) {
    if (fdatasync(file) != 0) fail("cannot sync: %s", strerror(errno));
}

static void *run_client(void *argument) {
    struct client *client = argument;
    size_t bytes = plan.records_at_once * plan.record_bytes;
    char *records = allocate(bytes);
    pthread_mutex_lock(&shared.mutex);
    for (;;) {
        double begin = now_us();
        while (!shared.stopped && shared.filled + bytes > BUFFER_BYTES) {
            pthread_cond_wait(&shared.is_committed, &shared.mutex);
        }
        if (shared.stopped) break;
        memcpy(shared.buffer + shared.filled, records, bytes);
        shared.filled += bytes;
        uint64_t mine = shared.filling;
        pthread_cond_signal(&shared.has_records);
        while (!shared.stopped && shared.committed < mine) {
            pthread_cond_wait(&shared.is_committed, &shared.mutex);
        }
        if (shared.committed < mine) break;
        client->records += plan.records_at_once;
        if (shared.samples < SAMPLES_MAX) shared.samples_us[shared.samples++] = now_us() - begin;
    }
    pthread_mutex_unlock(&shared.mutex);
    free(records);
    return NULL;
}

/* Commits until the time has elapsed. Returns the number of syncs. */
static uint64_t run_log(int file, double until_us) {
    char *spare = allocate(BUFFER_BYTES);
    uint64_t syncs = 0;
    off_t at = 0;
    pthread_mutex_lock(&shared.mutex);
    while (now_us() < until_us) {
        while (shared.filled == 0) pthread_cond_wait(&shared.has_records, &shared.mutex);
        char *full = shared.buffer;
        size_t bytes = (shared.filled + BLOCK - 1) / BLOCK * BLOCK;
        shared.buffer = spare;
        shared.filled = 0;
        uint64_t this_one = shared.filling++;
        pthread_mutex_unlock(&shared.mutex);

        if (at + (off_t)bytes > FILE_BYTES) at = 0;
        write_all(file, full, bytes, at);
        sync_data(file);
        at += bytes;
        syncs++;

        pthread_mutex_lock(&shared.mutex);
        spare = full;
        shared.committed = this_one;
        pthread_cond_broadcast(&shared.is_committed);
    }
    shared.stopped = true;
    pthread_cond_broadcast(&shared.is_committed);
    pthread_mutex_unlock(&shared.mutex);
    free(spare);
    return syncs;
}

static int prepare(const char *path) {
    int file = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) fail("%s: %s", path, strerror(errno));
    /* The file is deleted when this process exits. */
    if (unlink(path) != 0) fail("%s: %s", path, strerror(errno));
    char *chunk = allocate(CHUNK_BYTES);
    for (off_t at = 0; at < FILE_BYTES; at += CHUNK_BYTES) write_all(file, chunk, CHUNK_BYTES, at);
    if (fsync(file) != 0) fail("cannot sync: %s", strerror(errno));
    free(chunk);
    return file;
}

static int by_value(const void *a, const void *b) {
    float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

static double number(const char *text, double min, double max) {
    char *end;
    double value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(value >= min && value <= max)) {
        fail("%s is not a number from %g to %g", text, min, max);
    }
    return value;
}

static void report(int clients, uint64_t records, double seconds, uint64_t syncs) {
    float *sorted = shared.samples_us;
    size_t count = shared.samples;
    if (count == 0) fail("nothing was committed");
    qsort(sorted, count, sizeof *sorted, by_value);
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += sorted[i];
    double per_s = records / seconds;
    printf("{\"system\":\"floor\",\"clients\":%d,\"in_flight\":%zu,\"record_bytes\":%zu,\"produced\":%llu,"
           "\"produced_seconds\":%.6f,\"produced_per_s\":%.1f,\"produced_mb_per_s\":%.3f,\"syncs_per_s\":%.1f,"
           "\"producer_us\":{\"count\":%zu,\"mean\":%.1f",
           clients, plan.records_at_once, plan.record_bytes, (unsigned long long)records, seconds, per_s,
           per_s * plan.record_bytes / 1e6, syncs / seconds, count, sum / count);
    const struct { const char *name; double quantile; } quantiles[] = {
        {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}, {"max", 1},
    };
    for (size_t i = 0; i < sizeof quantiles / sizeof *quantiles; i++) {
        size_t rank = quantiles[i].quantile * (count - 1);
        printf(",\"%s\":%.1f", quantiles[i].name, sorted[rank]);
    }
    puts("}}");
}

int main(int argc, char **argv) {
    if (argc < 5 || argc > 6) {
        fprintf(stderr, "usage: group_commit CLIENTS IN_FLIGHT BYTES SECONDS [FILE]\n");
        return 2;
    }
    int clients = number(argv[1], 1, CLIENTS_MAX);
    plan.records_at_once = number(argv[2], 1, 1 << 20);
    plan.record_bytes = number(argv[3], 1, 1 << 20);
    double seconds = number(argv[4], 0.01, 86400);
    if (plan.records_at_once * plan.record_bytes > BUFFER_BYTES) fail("one client would have over 8 MiB in flight");

    int file = prepare(argc == 6 ? argv[5] : "group_commit.data");
    shared.buffer = allocate(BUFFER_BYTES);
    shared.samples_us = allocate(SAMPLES_MAX * sizeof *shared.samples_us);
    struct client *all = calloc(clients, sizeof *all);
    if (all == NULL) fail("no memory for %d clients", clients);
    for (int i = 0; i < clients; i++) {
        int error = pthread_create(&all[i].thread, NULL, run_client, &all[i]);
        if (error != 0) fail("cannot start client %d: %s", i, strerror(error));
    }
    double begin = now_us();
    uint64_t syncs = run_log(file, begin + seconds * 1e6);
    double took = (now_us() - begin) / 1e6;
    uint64_t records = 0;
    for (int i = 0; i < clients; i++) {
        pthread_join(all[i].thread, NULL);
        records += all[i].records;
    }
    report(clients, records, took, syncs);
    return 0;
}
