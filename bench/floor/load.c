/*
 * A lean closed-loop client of the reference frames: its own cost is so low that it hides little of the cost of the
 * server.
 *
 * Each connection keeps PIPELINE requests in flight. After each read, the answered requests are replaced with
 * one send. Every answer is checked; a connection that violates the protocol is counted as an error, reported
 * and closed, and the exit status is 1.
 */
#define _GNU_SOURCE
#include "frame.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum {
    READ_BYTES = 256 * 1024,
    EVENTS = 512,
    OPCODE = 1,
    /* One answer in this number is timed: a prime, so that each position in a batch is covered. */
    ANSWERS_A_SAMPLE = 7,
    /* Maximum time for answers that are outstanding when the time has elapsed. */
    GRACE_SECONDS = 5,
    /* Maximum number of errors that are described; the others are only counted. */
    ERRORS_TOLD = 10,
    /* The width of a bucket is 1/128 of its power of two. */
    PART_BITS = 7,
    PARTS = 1 << PART_BITS,
    BUCKETS = (65 - PART_BITS) * PARTS,
};

static const uint64_t SECOND = 1000000000;

/* Arguments of the command line, shared by all threads. Read-only after the threads have started. */
static struct {
    struct place place;
    size_t connections;
    size_t pipeline;
    size_t payload;
    double seconds;
    size_t threads;
    /* Body bytes of every answer, or -1 for any number. */
    long response;
    size_t frame_bytes;
} plan;

static pthread_barrier_t begin;
/* Set by main between the two waits at the barrier, in nanoseconds of the clock below. */
static uint64_t started, deadline;
static _Atomic uint64_t errors;

struct connection {
    int fd;
    uint64_t next_to_send;
    /* Id of the next answer: answers arrive in the order of the requests. */
    uint64_t next_to_come;
    /* Time at which request `id` was sent, at `id % pipeline`. */
    uint64_t *sent_at;
    /* Received part of an answer's header, and the remaining length of its body. */
    uint8_t header[HEADER_BYTES];
    size_t header_bytes;
    size_t body_left;
    bool in_body;
    /* Requests that the socket did not accept. They are in flight, so at most PIPELINE. */
    uint8_t *out;
    size_t out_bytes;
    size_t out_sent;
    bool watches_out;
};

struct client {
    pthread_t thread;
    size_t connections;
    /* Number of connections that still have requests in flight. */
    size_t open;
    int epoll;
    uint8_t *in;
    /* PIPELINE requests without their ids. */
    uint8_t *batch;
    /* Answers until the deadline, all answers, and the CPU time of the former. */
    uint64_t answers;
    uint64_t answers_in_all;
    double cpu_seconds;
    uint64_t samples;
    uint64_t max;
    uint64_t histogram[BUCKETS];
};

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

static double cpu_seconds(int who)
{
    struct rusage usage;
    getrusage(who, &usage);
    return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

static size_t bucket_of(uint64_t value)
{
    if (value < PARTS)
        return value;
    unsigned shift = 63 - PART_BITS - (unsigned)__builtin_clzll(value);
    return ((size_t)shift << PART_BITS) + (value >> shift);
}

/* Returns the middle of a bucket. */
static double value_of(size_t bucket)
{
    if (bucket < 2 * PARTS)
        return (double)bucket;
    unsigned shift = (unsigned)(bucket >> PART_BITS) - 1;
    uint64_t low = (uint64_t)(PARTS + bucket % PARTS) << shift;
    return (double)low + (double)(UINT64_C(1) << shift) / 2;
}

static void sample(struct client *client, uint64_t nanoseconds)
{
    client->samples += 1;
    client->histogram[bucket_of(nanoseconds)] += 1;
    if (nanoseconds > client->max)
        client->max = nanoseconds;
}

/* Reports why a connection is unusable. Returns false, for the callers to return. */
__attribute__((format(printf, 1, 2))) static bool wrong(const char *format, ...)
{
    if (atomic_fetch_add(&errors, 1) < ERRORS_TOLD) {
        va_list arguments;
        va_start(arguments, format);
        char text[256];
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        fprintf(stderr, "load: %s\n", text);
    }
    return false;
}

static void watch(struct client *client, struct connection *c, int operation, bool also_out)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (also_out)
        event.events |= EPOLLOUT;
    if (epoll_ctl(client->epoll, operation, c->fd, &event) != 0)
        die("epoll_ctl");
    c->watches_out = also_out;
}

/* Sends from `bytes + *done` on while the socket accepts bytes, and advances `*done`. */
static bool send_from(struct connection *c, const uint8_t *bytes, size_t count, size_t *done)
{
    while (*done < count) {
        ssize_t n = send(c->fd, bytes + *done, count - *done, MSG_NOSIGNAL);
        if (n >= 0)
            *done += (size_t)n;
        else if (errno == EAGAIN)
            return true;
        else if (errno != EINTR)
            return wrong("send: %s", strerror(errno));
    }
    return true;
}

/* Appends bytes to the pending ones. */
static void keep(struct connection *c, const uint8_t *bytes, size_t count)
{
    if (c->out == NULL)
        c->out = need(malloc(plan.pipeline * plan.frame_bytes));
    if (c->out_sent > 0) {
        c->out_bytes -= c->out_sent;
        memmove(c->out, c->out + c->out_sent, c->out_bytes);
        c->out_sent = 0;
    }
    memcpy(c->out + c->out_bytes, bytes, count);
    c->out_bytes += count;
}

static bool send_kept(struct connection *c)
{
    if (!send_from(c, c->out, c->out_bytes, &c->out_sent))
        return false;
    if (c->out_sent == c->out_bytes)
        c->out_bytes = c->out_sent = 0;
    return true;
}

static bool send_requests(struct client *client, struct connection *c, size_t count, uint64_t time)
{
    for (size_t i = 0; i < count; i++) {
        memcpy(client->batch + i * plan.frame_bytes + ID_AT, &c->next_to_send, sizeof c->next_to_send);
        c->sent_at[c->next_to_send % plan.pipeline] = time;
        c->next_to_send += 1;
    }
    size_t done = 0;
    size_t bytes = count * plan.frame_bytes;
    if (c->out_bytes == 0 && !send_from(c, client->batch, bytes, &done))
        return false;
    if (done < bytes)
        keep(c, client->batch + done, bytes - done);
    return true;
}

/* Checks the header of the expected answer, and records the length of its body. */
static bool begin_answer(struct connection *c, const uint8_t *header)
{
    uint32_t length = get_u32(header + LENGTH_AT), flags = get_u32(header + FLAGS_AT);
    uint64_t id = get_u64(header + ID_AT), opcode = get_u64(header + OPCODE_AT);
    if (length < LENGTH_OVER_BODY)
        return wrong("an answer of length %u is too short", length);
    if (flags & FLAG_ERROR)
        return wrong("the answer to %llu is an error", (unsigned long long)id);
    if (flags != (FLAG_START | FLAG_END))
        return wrong("the answer to %llu has flags %u", (unsigned long long)id, flags);
    if (c->next_to_come == c->next_to_send)
        return wrong("an answer to %llu, with nothing in flight", (unsigned long long)id);
    if (id != c->next_to_come)
        return wrong("an answer to %llu instead of %llu", (unsigned long long)id,
                     (unsigned long long)c->next_to_come);
    if (opcode != OPCODE)
        return wrong("the answer to %llu has opcode %llu", (unsigned long long)id, (unsigned long long)opcode);
    c->body_left = length - LENGTH_OVER_BODY;
    if (plan.response >= 0 && c->body_left != (size_t)plan.response)
        return wrong("the answer to %llu has %zu bytes, not %ld", (unsigned long long)id, c->body_left,
                     plan.response);
    c->in_body = true;
    return true;
}

static void end_answer(struct client *client, struct connection *c, uint64_t time)
{
    c->in_body = false;
    client->answers_in_all += 1;
    if (client->answers_in_all % ANSWERS_A_SAMPLE == 0 && time < deadline)
        sample(client, time - c->sent_at[c->next_to_come % plan.pipeline]);
    c->next_to_come += 1;
}

/* Parses the answers in `client->in`. */
static bool take_answers(struct client *client, struct connection *c, size_t count, uint64_t time)
{
    const uint8_t *in = client->in, *end = in + count;
    while (in < end) {
        if (!c->in_body) {
            size_t left = (size_t)(end - in);
            const uint8_t *header = in;
            if (c->header_bytes == 0 && left >= HEADER_BYTES) {
                in += HEADER_BYTES;
            } else {
                size_t part = HEADER_BYTES - c->header_bytes < left ? HEADER_BYTES - c->header_bytes : left;
                memcpy(c->header + c->header_bytes, in, part);
                in += part;
                c->header_bytes += part;
                if (c->header_bytes < HEADER_BYTES)
                    return true;
                header = c->header;
                c->header_bytes = 0;
            }
            if (!begin_answer(c, header))
                return false;
        }
        size_t left = (size_t)(end - in);
        size_t part = c->body_left < left ? c->body_left : left;
        in += part;
        c->body_left -= part;
        if (c->body_left == 0)
            end_answer(client, c, time);
    }
    return true;
}

/* Reads and refills until there is nothing to read. Returns false if the connection is unusable. */
static bool serve(struct client *client, struct connection *c, bool server_is_done)
{
    if (c->out_bytes > 0 && !send_kept(c))
        return false;
    for (;;) {
        ssize_t n = recv(c->fd, client->in, READ_BYTES, 0);
        if (n == 0)
            return wrong("the server closed a connection with %llu requests in flight",
                         (unsigned long long)(c->next_to_send - c->next_to_come));
        if (n < 0) {
            if (errno == EAGAIN)
                return true;
            if (errno == EINTR)
                continue;
            return wrong("recv: %s", strerror(errno));
        }
        uint64_t time = now();
        uint64_t before = c->next_to_come;
        if (!take_answers(client, c, (size_t)n, time))
            return false;
        size_t answers = c->next_to_come - before;
        if (time < deadline) {
            client->answers += answers;
            if (answers > 0 && !send_requests(client, c, answers, time))
                return false;
        } else if (c->next_to_come == c->next_to_send) {
            return false;
        }
        /* Later input is reported, but an end that was already reported is not reported again. */
        if (n < READ_BYTES && !server_is_done)
            return true;
    }
}

static void close_connection(struct client *client, struct connection *c)
{
    close(c->fd);
    c->fd = -1;
    client->open -= 1;
}

static struct connection *open_connections(struct client *client)
{
    struct connection *all = need(calloc(client->connections, sizeof *all));
    union address address;
    socklen_t size = address_of(&plan.place, &address);
    for (size_t i = 0; i < client->connections; i++) {
        struct connection *c = &all[i];
        c->sent_at = need(calloc(plan.pipeline, sizeof *c->sent_at));
        c->fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->fd < 0)
            die("socket");
        if (connect(c->fd, &address.any, size) != 0)
            die("connect");
        set_no_delay(c->fd, &plan.place);
        if (fcntl(c->fd, F_SETFL, O_NONBLOCK) != 0)
            die("O_NONBLOCK");
        watch(client, c, EPOLL_CTL_ADD, false);
    }
    client->open = client->connections;
    return all;
}

static void *work(void *argument)
{
    struct client *client = argument;
    struct epoll_event events[EVENTS];
    client->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (client->epoll < 0)
        die("epoll_create1");
    client->in = need(malloc(READ_BYTES));
    client->batch = need(calloc(plan.pipeline, plan.frame_bytes));
    for (size_t i = 0; i < plan.pipeline; i++)
        put_header(client->batch + i * plan.frame_bytes, (uint32_t)plan.payload, 0, OPCODE, FLAG_START | FLAG_END);
    struct connection *all = open_connections(client);

    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&begin);
    double cpu_before = cpu_seconds(RUSAGE_THREAD);
    bool is_timed = true;
    for (size_t i = 0; i < client->connections; i++) {
        struct connection *c = &all[i];
        if (!send_requests(client, c, plan.pipeline, now()))
            close_connection(client, c);
        else if (c->out_bytes > 0)
            watch(client, c, EPOLL_CTL_MOD, true);
    }
    while (client->open > 0) {
        int count = epoll_wait(client->epoll, events, EVENTS, 100);
        if (count < 0 && errno != EINTR)
            die("epoll_wait");
        uint64_t time = now();
        if (is_timed && time >= deadline) {
            client->cpu_seconds = cpu_seconds(RUSAGE_THREAD) - cpu_before;
            is_timed = false;
        }
        if (time >= deadline + GRACE_SECONDS * SECOND)
            break;
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (!serve(client, c, (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0))
                close_connection(client, c);
            else if ((c->out_bytes > 0) != c->watches_out)
                watch(client, c, EPOLL_CTL_MOD, c->out_bytes > 0);
        }
    }
    if (is_timed)
        client->cpu_seconds = cpu_seconds(RUSAGE_THREAD) - cpu_before;
    for (size_t i = 0; i < client->connections; i++) {
        struct connection *c = &all[i];
        if (c->fd >= 0)
            wrong("%llu answers did not arrive", (unsigned long long)(c->next_to_send - c->next_to_come));
    }
    return NULL;
}

static double percentile(const struct client *sum, double part)
{
    uint64_t below = 0, rank = (uint64_t)(part * (double)sum->samples);
    for (size_t bucket = 0; bucket < BUCKETS; bucket++) {
        below += sum->histogram[bucket];
        if (below > rank)
            return value_of(bucket) / 1e3;
    }
    return (double)sum->max / 1e3;
}

static void add(struct client *sum, const struct client *client)
{
    sum->answers += client->answers;
    sum->cpu_seconds += client->cpu_seconds;
    sum->samples += client->samples;
    if (client->max > sum->max)
        sum->max = client->max;
    for (size_t bucket = 0; bucket < BUCKETS; bucket++)
        sum->histogram[bucket] += client->histogram[bucket];
}

static void read_arguments(int argc, char **argv)
{
    const size_t batch_max = 256 << 20;
    argv += 1;
    argc = take_place(argc - 1, &argv, &plan.place);
    if (argc != 5 && argc != 6) {
        fprintf(stderr,
                "usage: load PORT|--unix PATH CONNECTIONS PIPELINE PAYLOAD SECONDS THREADS [RESPONSE_BYTES]\n");
        exit(2);
    }
    plan.connections = (size_t)number(argv[0], "CONNECTIONS", 1, 1000000);
    plan.pipeline = (size_t)number(argv[1], "PIPELINE", 1, 65536);
    plan.payload = (size_t)number(argv[2], "PAYLOAD", 0, 16 << 20);
    char *end;
    plan.seconds = strtod(argv[3], &end);
    if (*end != '\0' || !(plan.seconds > 0 && plan.seconds <= 3600)) {
        fprintf(stderr, "SECONDS is %s: it must be more than 0 and at most 3600\n", argv[3]);
        exit(2);
    }
    plan.threads = (size_t)number(argv[4], "THREADS", 1, (long)plan.connections);
    plan.response = argc == 6 ? number(argv[5], "RESPONSE_BYTES", 0, 16 << 20) : -1;
    plan.frame_bytes = HEADER_BYTES + plan.payload;
    if (plan.pipeline * plan.frame_bytes > batch_max) {
        fprintf(stderr, "PIPELINE requests of PAYLOAD bytes are more than %zu bytes\n", batch_max);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    read_arguments(argc, argv);
    raise_open_files();
    pthread_barrier_init(&begin, NULL, (unsigned)plan.threads + 1);
    struct client *clients = need(calloc(plan.threads, sizeof *clients));
    for (size_t i = 0; i < plan.threads; i++) {
        clients[i].connections = plan.connections / plan.threads + (i < plan.connections % plan.threads);
        if (pthread_create(&clients[i].thread, NULL, work, &clients[i]) != 0)
            die("pthread_create");
    }
    pthread_barrier_wait(&begin);
    started = now();
    deadline = started + (uint64_t)(plan.seconds * (double)SECOND);
    pthread_barrier_wait(&begin);

    static struct client sum;
    for (size_t i = 0; i < plan.threads; i++) {
        pthread_join(clients[i].thread, NULL);
        add(&sum, &clients[i]);
    }
    uint64_t failed = atomic_load(&errors);
    printf("{\"connections\":%zu,\"pipeline\":%zu,\"payload\":%zu,\"threads\":%zu,"
           "\"requests\":%llu,\"seconds\":%.3f,\"rps\":%.0f,"
           "\"p50_us\":%.1f,\"p90_us\":%.1f,\"p99_us\":%.1f,\"p99_9_us\":%.1f,\"max_us\":%.1f,"
           "\"client_cpu_us_per_request\":%.3f,\"errors\":%llu}\n",
           plan.connections, plan.pipeline, plan.payload, plan.threads, (unsigned long long)sum.answers,
           plan.seconds, (double)sum.answers / plan.seconds, percentile(&sum, 0.5), percentile(&sum, 0.9),
           percentile(&sum, 0.99), percentile(&sum, 0.999), (double)sum.max / 1e3,
           sum.answers > 0 ? sum.cpu_seconds * 1e6 / (double)sum.answers : 0.0, (unsigned long long)failed);
    return failed > 0 || sum.answers == 0;
}
