/*
 * The floor of a replicated log: the number of records per second, and the time of one, if a record is acknowledged
 * when a majority of NODES processes has synced it. No consensus, no encryption, no checksum.
 *
 * One process leads. Its log thread takes all pending records as one block, sends the block to each other process over
 * TCP, writes it with one pwrite and syncs with one fdatasync, while the others do the same. They answer with the
 * number of the last block that they have synced. The clients are threads of one more process: each submits IN_FLIGHT
 * records together over TCP and waits for their acknowledgement. Files were filled before, as in group_commit.
 */

#define _GNU_SOURCE
#include "frame.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    BLOCK = 4096,
    BUFFER_BYTES = 4 << 20,
    FILE_BYTES = 256 << 20,
    CHUNK_BYTES = 1 << 20,
    SAMPLES_MAX = 1 << 22,
    CLIENTS_MAX = 256,
    NODES_MAX = 7,
    /* Blocks that are not committed yet; the log thread waits at this number. */
    BLOCKS_MAX = 64,
};

/* Head of a block on its way to another process. */
struct head {
    uint32_t bytes;
    uint32_t padding;
    uint64_t number;
};

static struct {
    int nodes, clients;
    size_t records_at_once, record_bytes;
    double seconds;
} plan;

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, BLOCK, bytes) != 0)
        die("memory");
    /* Touches the pages, so that they are present. */
    memset(memory, 'x', bytes);
    return memory;
}

static void write_all(int file, const char *bytes, size_t count, off_t at)
{
    while (count > 0) {
        ssize_t written = pwrite(file, bytes, count, at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            die("cannot write");
        bytes += written, count -= written, at += written;
    }
}

static void send_all(int socket, const void *from, size_t count, int flags)
{
    const char *bytes = from;
    while (count > 0) {
        ssize_t sent = send(socket, bytes, count, MSG_NOSIGNAL | flags);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            exit(0);
        bytes += sent, count -= sent;
    }
}

/* Receives exactly `count` bytes. The process ends with the connection. */
static void receive_all(int socket, void *to, size_t count)
{
    char *bytes = to;
    while (count > 0) {
        ssize_t received = recv(socket, bytes, count, 0);
        if (received < 0 && errno == EINTR)
            continue;
        if (received <= 0)
            exit(0);
        bytes += received, count -= received;
    }
}

static int prepare(const char *directory, int node)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/replicate.%d.data", directory, node);
    int file = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    /* The file is deleted when the last process exits that has it. */
    if (file < 0 || unlink(path) != 0)
        die(path);
    char *chunk = allocate(CHUNK_BYTES);
    for (off_t at = 0; at < FILE_BYTES; at += CHUNK_BYTES)
        write_all(file, chunk, CHUNK_BYTES, at);
    if (fsync(file) != 0)
        die("cannot sync");
    free(chunk);
    return file;
}

static size_t rounded(size_t bytes)
{
    return (bytes + BLOCK - 1) / BLOCK * BLOCK;
}

/* Writes a block at the next place in the file, and syncs. */
static void store(int file, off_t *at, const char *block, size_t bytes)
{
    bytes = rounded(bytes);
    if (*at + (off_t)bytes > FILE_BYTES)
        *at = 0;
    write_all(file, block, bytes, *at);
    if (fdatasync(file) != 0)
        die("cannot sync");
    *at += bytes;
}

static int connect_to(const struct place *place)
{
    union address address;
    socklen_t size = address_of(place, &address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, &address.any, size) != 0)
        die("cannot connect");
    set_no_delay(fd, place);
    return fd;
}

static int accept_one(int listener, const struct place *place)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        die("cannot accept");
    set_no_delay(fd, place);
    return fd;
}

/* A process that stores the blocks of the leader: those that have arrived with one write and one sync. */
static void follow(int leader, int file)
{
    char *buffer = allocate(2 * BUFFER_BYTES);
    off_t at = 0;
    for (;;) {
        size_t filled = 0;
        struct head head;
        for (;;) {
            receive_all(leader, &head, sizeof head);
            receive_all(leader, buffer + filled, head.bytes);
            filled = rounded(filled + head.bytes);
            struct head next;
            ssize_t peeked = recv(leader, &next, sizeof next, MSG_PEEK | MSG_DONTWAIT);
            if (peeked < (ssize_t)sizeof next || filled + next.bytes > 2 * BUFFER_BYTES)
                break;
        }
        store(file, &at, buffer, filled);
        send_all(leader, &head.number, sizeof head.number, 0);
    }
}

/* State of the leader. Blocks are numbered from 1 in the order in which their buffers are filled. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t has_records, has_room;
    char *buffer;
    size_t filled;
    uint64_t filling, committed, syncs;
    uint64_t stored[NODES_MAX];
    /* Records of each client in the blocks that are not committed. */
    uint32_t records[BLOCKS_MAX][CLIENTS_MAX];
    int clients[CLIENTS_MAX], followers[NODES_MAX];
    int file;
} leader = {
    .mutex = PTHREAD_MUTEX_INITIALIZER,
    .has_records = PTHREAD_COND_INITIALIZER,
    .has_room = PTHREAD_COND_INITIALIZER,
    .filling = 1,
};

/* Notes what a process has stored, and answers the clients of blocks that a majority has. */
static void note_stored(int node, uint64_t number)
{
    leader.stored[node] = number;
    uint64_t sorted[NODES_MAX];
    for (int i = 0; i < plan.nodes; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] < leader.stored[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = leader.stored[i];
    }
    uint64_t on_majority = sorted[plan.nodes / 2];
    while (leader.committed < on_majority) {
        uint32_t *records = leader.records[++leader.committed % BLOCKS_MAX];
        for (int client = 0; client < plan.clients; client++) {
            if (records[client] > 0)
                send_all(leader.clients[client], &records[client], sizeof records[client], 0);
            records[client] = 0;
        }
    }
    pthread_cond_broadcast(&leader.has_room);
}

static void *run_log(void *unused)
{
    char *spare = allocate(BUFFER_BYTES);
    off_t at = 0;
    pthread_mutex_lock(&leader.mutex);
    for (;;) {
        while (leader.filled == 0 || leader.filling - leader.committed >= BLOCKS_MAX - 1)
            pthread_cond_wait(leader.filled == 0 ? &leader.has_records : &leader.has_room, &leader.mutex);
        char *full = leader.buffer;
        struct head head = {.bytes = leader.filled, .number = leader.filling++};
        leader.buffer = spare;
        leader.filled = 0;
        leader.syncs++;
        pthread_cond_broadcast(&leader.has_room);
        pthread_mutex_unlock(&leader.mutex);

        for (int node = 1; node < plan.nodes; node++) {
            send_all(leader.followers[node], &head, sizeof head, MSG_MORE);
            send_all(leader.followers[node], full, head.bytes, 0);
        }
        store(leader.file, &at, full, head.bytes);

        pthread_mutex_lock(&leader.mutex);
        spare = full;
        note_stored(0, head.number);
    }
    return unused;
}

/* The process that leads: its first thread receives records of clients and answers of the others. */
static void lead(void)
{
    leader.buffer = allocate(BUFFER_BYTES);
    pthread_t log;
    if (pthread_create(&log, NULL, run_log, NULL) != 0)
        die("thread");
    int poll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < plan.clients + plan.nodes - 1; i++) {
        int is_client = i < plan.clients;
        int fd = is_client ? leader.clients[i] : leader.followers[i - plan.clients + 1];
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) != 0)
            die("epoll");
    }
    size_t bytes = plan.records_at_once * plan.record_bytes;
    char *records = allocate(rounded(bytes));
    for (;;) {
        struct epoll_event events[64];
        int count = epoll_wait(poll, events, 64, -1);
        for (int i = 0; i < count; i++) {
            int of = events[i].data.u32;
            if (of >= plan.clients) {
                uint64_t number;
                int node = of - plan.clients + 1;
                receive_all(leader.followers[node], &number, sizeof number);
                pthread_mutex_lock(&leader.mutex);
                note_stored(node, number);
                pthread_mutex_unlock(&leader.mutex);
                continue;
            }
            receive_all(leader.clients[of], records, bytes);
            pthread_mutex_lock(&leader.mutex);
            while (leader.filled + bytes > BUFFER_BYTES)
                pthread_cond_wait(&leader.has_room, &leader.mutex);
            memcpy(leader.buffer + leader.filled, records, bytes);
            leader.filled += bytes;
            leader.records[leader.filling % BLOCKS_MAX][of] += plan.records_at_once;
            pthread_cond_signal(&leader.has_records);
            pthread_mutex_unlock(&leader.mutex);
        }
    }
}

static struct {
    pthread_mutex_t mutex;
    double until_us;
    uint64_t records;
    size_t samples;
    float *samples_us;
} load = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void *run_client(void *argument)
{
    int server = *(int *)argument;
    size_t bytes = plan.records_at_once * plan.record_bytes;
    char *records = allocate(rounded(bytes));
    for (double begin = now_us(); begin < load.until_us;) {
        send_all(server, records, bytes, 0);
        for (uint32_t waiting = plan.records_at_once, answered; waiting > 0; waiting -= answered)
            receive_all(server, &answered, sizeof answered);
        double end = now_us();
        pthread_mutex_lock(&load.mutex);
        load.records += plan.records_at_once;
        if (load.samples < SAMPLES_MAX)
            load.samples_us[load.samples++] = end - begin;
        pthread_mutex_unlock(&load.mutex);
        begin = end;
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

static void report(double seconds)
{
    size_t count = load.samples;
    if (count == 0) {
        fprintf(stderr, "replicate: nothing was committed\n");
        exit(1);
    }
    qsort(load.samples_us, count, sizeof *load.samples_us, by_value);
    double sum = 0, per_s = load.records / seconds;
    for (size_t i = 0; i < count; i++)
        sum += load.samples_us[i];
    printf("{\"system\":\"floor\",\"nodes\":%d,\"clients\":%d,\"in_flight\":%zu,\"record_bytes\":%zu,\"produced\":%llu,"
           "\"produced_seconds\":%.6f,\"produced_per_s\":%.1f,\"produced_mb_per_s\":%.3f,"
           "\"producer_us\":{\"count\":%zu,\"mean\":%.1f",
           plan.nodes, plan.clients, plan.records_at_once, plan.record_bytes, (unsigned long long)load.records,
           seconds, per_s, per_s * plan.record_bytes / 1e6, count, sum / count);
    const struct {
        const char *name;
        double quantile;
    } quantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}, {"max", 1}};
    for (size_t i = 0; i < sizeof quantiles / sizeof *quantiles; i++)
        printf(",\"%s\":%.1f", quantiles[i].name, load.samples_us[(size_t)(quantiles[i].quantile * (count - 1))]);
    puts("}}");
}

static void run_clients(const struct place *place)
{
    int sockets[CLIENTS_MAX];
    pthread_t threads[CLIENTS_MAX];
    for (int i = 0; i < plan.clients; i++)
        sockets[i] = connect_to(place);
    load.samples_us = allocate(SAMPLES_MAX * sizeof *load.samples_us);
    double begin = now_us();
    load.until_us = begin + plan.seconds * 1e6;
    for (int i = 0; i < plan.clients; i++)
        if (pthread_create(&threads[i], NULL, run_client, &sockets[i]) != 0)
            die("thread");
    for (int i = 0; i < plan.clients; i++)
        pthread_join(threads[i], NULL);
    report((now_us() - begin) / 1e6);
}

/* Forks a process that ends with this one; returns true in it. */
static bool is_child(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid == 0;
}

int main(int argc, char **argv)
{
    if (argc < 6 || argc > 7) {
        fprintf(stderr, "usage: replicate NODES CLIENTS IN_FLIGHT BYTES SECONDS [DIRECTORY]\n");
        return 2;
    }
    plan.nodes = number(argv[1], "NODES", 1, NODES_MAX);
    plan.clients = number(argv[2], "CLIENTS", 1, CLIENTS_MAX);
    plan.records_at_once = number(argv[3], "IN_FLIGHT", 1, 1 << 20);
    plan.record_bytes = number(argv[4], "BYTES", 1, 1 << 20);
    plan.seconds = number(argv[5], "SECONDS", 1, 86400);
    if (plan.records_at_once * plan.record_bytes > BUFFER_BYTES) {
        fprintf(stderr, "replicate: one client would have over 4 MiB in flight\n");
        return 2;
    }

    struct place place = {.port = 0};
    union address address;
    socklen_t size = address_of(&place, &address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, &address.any, size) != 0 || listen(listener, CLIENTS_MAX) != 0 ||
        getsockname(listener, &address.any, &size) != 0)
        die("cannot listen");
    place.port = ntohs(address.ip.sin_port);

    int files[NODES_MAX];
    for (int node = 0; node < plan.nodes; node++)
        files[node] = prepare(argc == 7 ? argv[6] : ".", node);
    for (int node = 1; node < plan.nodes; node++) {
        if (is_child())
            follow(connect_to(&place), files[node]);
        leader.followers[node] = accept_one(listener, &place);
    }
    leader.file = files[0];
    if (is_child()) {
        for (int i = 0; i < plan.clients; i++)
            leader.clients[i] = accept_one(listener, &place);
        lead();
    }
    run_clients(&place);
    return 0;
}
