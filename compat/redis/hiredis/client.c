/* Runs hiredis for client.py, by lines: `append WORD..` writes a command, each word in hexadecimal after an `x`,
 * `reply` reads a reply, `do WORD..` does both. Each line except `append` is answered with one line of JSON, in whose
 * texts each character is one byte. The program ends when the connection is lost. */

#define _GNU_SOURCE
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void write_text(const char *text, size_t length) {
    putchar('"');
    for (size_t at = 0; at < length; at++) {
        unsigned char byte = (unsigned char)text[at];
        if (byte < ' ' || byte > '~' || byte == '"' || byte == '\\')
            printf("\\u%04x", byte);
        else
            putchar(byte);
    }
    putchar('"');
}

static void write_reply(const redisReply *reply) {
    switch (reply->type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
        write_text(reply->str, reply->len);
        break;
    case REDIS_REPLY_INTEGER:
        printf("%lld", reply->integer);
        break;
    case REDIS_REPLY_NIL:
        printf("null");
        break;
    case REDIS_REPLY_ERROR:
        printf("{\"error\": ");
        write_text(reply->str, reply->len);
        putchar('}');
        break;
    case REDIS_REPLY_ARRAY:
        putchar('[');
        for (size_t at = 0; at < reply->elements; at++) {
            if (at > 0)
                putchar(',');
            write_reply(reply->element[at]);
        }
        putchar(']');
        break;
    default:
        fail("the reply has an unknown type");
    }
}

static int digit(char c) {
    const char *digits = "0123456789abcdef", *found = strchr(digits, c);
    if (c == '\0' || found == NULL)
        fail("a word has an invalid hexadecimal digit");
    return (int)(found - digits);
}

/* Writes the command of a line. Decodes the words in place. */
static void append(redisContext *context, char *line) {
    size_t count = 0, room = 8;
    const char **words = malloc(room * sizeof *words);
    size_t *lengths = malloc(room * sizeof *lengths);
    for (char *word = strtok(line, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        if (count == room) {
            room *= 2;
            words = realloc(words, room * sizeof *words);
            lengths = realloc(lengths, room * sizeof *lengths);
        }
        size_t length = strlen(word) / 2;
        for (size_t at = 0; at < length; at++)
            word[at] = (char)(digit(word[1 + 2 * at]) << 4 | digit(word[2 + 2 * at]));
        words[count] = word;
        lengths[count++] = length;
    }
    if (redisAppendCommandArgv(context, (int)count, words, lengths) != REDIS_OK)
        fail(context->errstr);
    free(words);
    free(lengths);
}

static void reply(redisContext *context) {
    void *found = NULL;
    if (redisGetReply(context, &found) != REDIS_OK)
        fail(context->errstr);
    write_reply(found);
    putchar('\n');
    fflush(stdout);
    freeReplyObject(found);
}

int main(int count, char **arguments) {
    if (count != 3)
        fail("usage: hiredis HOST PORT");
    redisContext *context = redisConnect(arguments[1], atoi(arguments[2]));
    if (context == NULL || context->err)
        fail(context ? context->errstr : "no memory");
    printf("\"%d.%d.%d\"\n", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    fflush(stdout);
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        if (strncmp(line, "append ", 7) == 0)
            append(context, line + 7);
        else if (strncmp(line, "do ", 3) == 0)
            append(context, line + 3), reply(context);
        else
            reply(context);
    }
    free(line);
    redisFree(context);
    return 0;
}
