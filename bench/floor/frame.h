/*
 * The reference frame, little-endian, and code that both programs use.
 *
 *   offset  0: u32 length of all that follows, so 20 + body
 *           4: u64 request id, which the answer repeats
 *          12: u64 opcode, which the answer repeats
 *          20: u32 flags
 *          24: body
 */
#ifndef FRAME_H
#define FRAME_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the fields of a frame are copied as they are in memory, so the machine must be little-endian"
#endif

enum {
    LENGTH_AT = 0,
    ID_AT = 4,
    OPCODE_AT = 12,
    FLAGS_AT = 20,
    HEADER_BYTES = 24,
    /* Bytes that a frame's length includes in addition to the body. */
    LENGTH_OVER_BODY = HEADER_BYTES - 4,
};

enum { FLAG_START = 1, FLAG_END = 2, FLAG_ERROR = 4 };

static inline uint32_t get_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t get_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline void put_header(uint8_t *at, uint32_t body_bytes, uint64_t id, uint64_t opcode, uint32_t flags)
{
    uint32_t length = LENGTH_OVER_BODY + body_bytes;
    memcpy(at + LENGTH_AT, &length, sizeof length);
    memcpy(at + ID_AT, &id, sizeof id);
    memcpy(at + OPCODE_AT, &opcode, sizeof opcode);
    memcpy(at + FLAGS_AT, &flags, sizeof flags);
}

_Noreturn static inline void die(const char *what)
{
    perror(what);
    exit(1);
}

static inline void *need(void *memory)
{
    if (memory == NULL)
        die("memory");
    return memory;
}

/* Parses a number of the command line from `min` to `max`; any other text ends the program. */
static inline long number(const char *text, const char *name, long min, long max)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < min || value > max) {
        fprintf(stderr, "%s is %s: it must be a number from %ld to %ld\n", name, text, min, max);
        exit(2);
    }
    return value;
}

/* Listening address of a server: a port of 127.0.0.1 or, if `path` is set, a Unix socket. */
struct place {
    const char *path;
    uint16_t port;
};

/*
 * Takes `PORT` or `--unix PATH` from the beginning of the arguments and moves `*argv` after it. Returns the number
 * of remaining arguments.
 */
static inline int take_place(int argc, char ***argv, struct place *place)
{
    char **args = *argv;
    if (argc >= 2 && strcmp(args[0], "--unix") == 0) {
        place->path = args[1];
        *argv += 2;
        return argc - 2;
    }
    if (argc < 1)
        return argc;
    place->port = (uint16_t)number(args[0], "PORT", 0, 65535);
    *argv += 1;
    return argc - 1;
}

union address {
    struct sockaddr any;
    struct sockaddr_in ip;
    struct sockaddr_un local;
};

static inline socklen_t address_of(const struct place *place, union address *address)
{
    memset(address, 0, sizeof *address);
    if (place->path == NULL) {
        address->ip.sin_family = AF_INET;
        address->ip.sin_port = htons(place->port);
        address->ip.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return sizeof address->ip;
    }
    if (strlen(place->path) >= sizeof address->local.sun_path) {
        fprintf(stderr, "%s is too long for the path of a socket\n", place->path);
        exit(2);
    }
    address->local.sun_family = AF_UNIX;
    strcpy(address->local.sun_path, place->path);
    return sizeof address->local;
}

/* Disables the wait of answers for the acknowledgement of earlier ones. A Unix socket has no such wait. */
static inline void set_no_delay(int fd, const struct place *place)
{
    int one = 1;
    if (place->path == NULL)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Raises the limit of open files to the maximum of this user. */
static inline void raise_open_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static inline double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

#endif
