/*
 * The floor: the minimum work of a server of the reference frames on this machine.
 *
 * Each thread has its own epoll and its own connections. A readable connection is read into the buffer of its
 * thread, all complete frames in the buffer are answered, and the answers are sent with one send. An idle
 * connection owns no buffer.
 */
#define _GNU_SOURCE
#include "frame.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    /* Also the maximum length of a frame: a longer one closes its connection. */
    READ_BYTES = 1 << 20,
    READ_AT_ONCE = 256 * 1024,
    WRITE_BYTES = 1 << 20,
    EVENTS = 512,
};

/* State that a connection keeps until its next event. Both buffers are empty most of the time. */
struct connection {
    int fd;
    /* Unanswered input: a part of a frame, or complete frames that wait until `out` is sent. */
    uint8_t *in;
    size_t in_bytes;
    /* Answers that the socket did not accept, at most WRITE_BYTES. Until they are sent, nothing is read. */
    uint8_t *out;
    size_t out_bytes;
    size_t out_sent;
    /* True if epoll reports when the socket is writable. */
    bool watches_out;
};

struct worker {
    pthread_t thread;
    const struct place *place;
    int epoll;
    int listener;
    /* A complete answer, except for its id and opcode. */
    const uint8_t *answer;
    size_t answer_bytes;
    uint8_t *in;
    uint8_t *out;
    size_t out_bytes;
    /* Written by this worker alone, read by main at the end. */
    _Atomic uint64_t served;
};

static uint8_t *copy_of(const uint8_t *bytes, size_t count)
{
    return memcpy(need(malloc(count)), bytes, count);
}

static void close_connection(struct connection *c)
{
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

static void watch(struct worker *w, struct connection *c, int operation, bool also_out)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (also_out)
        event.events |= EPOLLOUT;
    if (epoll_ctl(w->epoll, operation, c->fd, &event) != 0)
        die("epoll_ctl");
    c->watches_out = also_out;
}

static void accept_all(struct worker *w)
{
    for (;;) {
        int fd = accept4(w->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EAGAIN)
                return;
            if (errno == EINTR || errno == ECONNABORTED)
                continue;
            die("accept");
        }
        set_no_delay(fd, w->place);
        struct connection *c = need(calloc(1, sizeof *c));
        c->fd = fd;
        watch(w, c, EPOLL_CTL_ADD, false);
    }
}

enum sent { SENT_ALL, SENT_PART, SENT_TO_NOBODY };

/* Sends from `bytes + *done` on, and advances `*done`. */
static enum sent send_from(int fd, const uint8_t *bytes, size_t count, size_t *done)
{
    while (*done < count) {
        ssize_t n = send(fd, bytes + *done, count - *done, MSG_NOSIGNAL);
        if (n >= 0)
            *done += (size_t)n;
        else if (errno == EAGAIN)
            return SENT_PART;
        else if (errno != EINTR)
            return SENT_TO_NOBODY;
    }
    return SENT_ALL;
}

/* Sends the answers in the buffer of the worker; the connection keeps those that the socket does not accept. */
static enum sent send_answers(struct worker *w, struct connection *c)
{
    size_t done = 0;
    enum sent sent = send_from(c->fd, w->out, w->out_bytes, &done);
    if (sent == SENT_PART) {
        c->out_bytes = w->out_bytes - done;
        c->out = copy_of(w->out + done, c->out_bytes);
    }
    w->out_bytes = 0;
    return sent;
}

/* Sends the answers that an earlier event could not send. */
static enum sent send_kept(struct connection *c)
{
    enum sent sent = send_from(c->fd, c->out, c->out_bytes, &c->out_sent);
    if (sent == SENT_ALL) {
        free(c->out);
        c->out = NULL;
        c->out_bytes = c->out_sent = 0;
    }
    return sent;
}

/*
 * Answers the complete frames of `in` until none is left or the buffer for answers is full. Returns the number of
 * answered bytes, or -1 if the input violates the protocol.
 */
static ssize_t answer_frames(struct worker *w, const uint8_t *in, size_t count)
{
    size_t at = 0;
    uint64_t answers = 0;
    while (count - at >= HEADER_BYTES && WRITE_BYTES - w->out_bytes >= w->answer_bytes) {
        size_t length = get_u32(in + at + LENGTH_AT);
        if (length < LENGTH_OVER_BODY || length > READ_BYTES - sizeof(uint32_t))
            return -1;
        if (count - at < sizeof(uint32_t) + length)
            break;
        uint8_t *out = w->out + w->out_bytes;
        memcpy(out, w->answer, w->answer_bytes);
        memcpy(out + ID_AT, in + at + ID_AT, FLAGS_AT - ID_AT);
        w->out_bytes += w->answer_bytes;
        at += sizeof(uint32_t) + length;
        answers += 1;
    }
    atomic_store_explicit(&w->served, atomic_load_explicit(&w->served, memory_order_relaxed) + answers,
                          memory_order_relaxed);
    return (ssize_t)at;
}

/* Answers all received frames of a connection while its socket accepts answers. Returns false if it must be closed. */
static bool serve(struct worker *w, struct connection *c, bool peer_is_done)
{
    if (c->out_bytes > 0) {
        enum sent sent = send_kept(c);
        if (sent != SENT_ALL)
            return sent == SENT_PART;
    }
    size_t have = c->in_bytes;
    if (have > 0) {
        memcpy(w->in, c->in, have);
        free(c->in);
        c->in = NULL;
        c->in_bytes = 0;
    }
    /* After a read of less than the requested length, epoll reports later input. An end that it has already
       reported is not reported again. */
    bool has_more = true;
    for (;;) {
        size_t at = 0;
        do {
            ssize_t answered = answer_frames(w, w->in + at, have - at);
            if (answered < 0)
                return false;
            at += (size_t)answered;
            if (w->out_bytes == 0)
                break;
            enum sent sent = send_answers(w, c);
            if (sent == SENT_TO_NOBODY)
                return false;
            if (sent == SENT_PART)
                has_more = false;
        } while (c->out_bytes == 0);
        have -= at;
        if (!has_more) {
            if (have > 0) {
                c->in = copy_of(w->in + at, have);
                c->in_bytes = have;
            }
            return true;
        }
        if (at > 0 && have > 0)
            memmove(w->in, w->in + at, have);

        size_t room = READ_BYTES - have < READ_AT_ONCE ? READ_BYTES - have : READ_AT_ONCE;
        ssize_t n = recv(c->fd, w->in + have, room, 0);
        if (n == 0)
            return false;
        if (n > 0)
            have += (size_t)n;
        else if (errno == EAGAIN)
            has_more = false;
        else if (errno != EINTR)
            return false;
        if (n > 0 && (size_t)n < room && !peer_is_done)
            has_more = false;
    }
}

static void *work(void *argument)
{
    struct worker *w = argument;
    struct epoll_event events[EVENTS];
    for (;;) {
        int count = epoll_wait(w->epoll, events, EVENTS, -1);
        if (count < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (c == NULL)
                accept_all(w);
            else if (!serve(w, c, (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0))
                close_connection(c);
            else if ((c->out_bytes > 0) != c->watches_out)
                watch(w, c, EPOLL_CTL_MOD, c->out_bytes > 0);
        }
    }
    return NULL;
}

/* Opens a listener whose port other listeners of this process may share. Port 0 selects a free port. */
static int listen_at(struct place *place)
{
    union address address;
    socklen_t size = address_of(place, &address);
    int one = 1;
    int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    if (place->path == NULL && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0)
        die("SO_REUSEPORT");
    if (bind(fd, &address.any, size) != 0 || listen(fd, 4096) != 0)
        die("listen");
    if (place->path == NULL) {
        if (getsockname(fd, &address.any, &size) != 0)
            die("getsockname");
        place->port = ntohs(address.ip.sin_port);
    }
    return fd;
}

static void start(struct worker *w)
{
    w->in = need(malloc(READ_BYTES));
    w->out = need(malloc(WRITE_BYTES));
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (w->epoll < 0)
        die("epoll_create1");
    /* Threads that share a listener are woken one at a time. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.ptr = NULL};
    if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->listener, &event) != 0)
        die("epoll_ctl");
    if (pthread_create(&w->thread, NULL, work, w) != 0)
        die("pthread_create");
}

int main(int argc, char **argv)
{
    struct place place = {0};
    argv += 1;
    argc = take_place(argc - 1, &argv, &place);
    if (argc < 0 || argc > 2) {
        fprintf(stderr, "usage: echo_server PORT|--unix PATH [THREADS [RESPONSE_BYTES]]\n");
        return 2;
    }
    long threads = argc > 0 ? number(argv[0], "THREADS", 1, 1024) : 1;
    long response = argc > 1 ? number(argv[1], "RESPONSE_BYTES", 0, WRITE_BYTES - HEADER_BYTES) : 64;

    /* Every thread inherits the mask, so that only the wait below takes these signals. */
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    raise_open_files();

    size_t answer_bytes = HEADER_BYTES + (size_t)response;
    uint8_t *answer = need(malloc(answer_bytes));
    memset(answer, 'a', answer_bytes);
    put_header(answer, (uint32_t)response, 0, 0, FLAG_START | FLAG_END);

    struct worker *workers = need(calloc((size_t)threads, sizeof *workers));
    for (long i = 0; i < threads; i++) {
        struct worker *w = &workers[i];
        w->place = &place;
        w->answer = answer;
        w->answer_bytes = answer_bytes;
        w->listener = place.path != NULL && i > 0 ? workers[0].listener : listen_at(&place);
    }
    for (long i = 0; i < threads; i++)
        start(&workers[i]);
    if (place.path != NULL)
        printf("listening %s\n", place.path);
    else
        printf("listening %u\n", (unsigned)place.port);
    fflush(stdout);

    int signal;
    sigwait(&stop, &signal);
    uint64_t served = 0;
    for (long i = 0; i < threads; i++)
        served += atomic_load_explicit(&workers[i].served, memory_order_relaxed);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"server\":\"floor\",\"threads\":%ld,\"requests\":%llu,\"user_seconds\":%.6f,\"sys_seconds\":%.6f}\n",
           threads, (unsigned long long)served, seconds_of(usage.ru_utime), seconds_of(usage.ru_stime));
    fflush(stdout);
    if (place.path != NULL)
        unlink(place.path);
    /* The workers are still running, so nothing is freed. */
    _exit(0);
}
