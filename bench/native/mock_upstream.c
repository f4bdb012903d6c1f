/* mock_upstream.c - a fast, single-threaded mock of an OpenAI-compatible
 * inference server, for measuring proxies placed in front of it.
 *
 * Build: gcc -O2 -o mock_upstream mock_upstream.c
 * Run:   taskset -c 1 ./mock_upstream 9000 [sync]
 *
 * GET  /metrics              -> the gauges and counters a gateway reads from vLLM, true for
 *                               what this program is doing
 * GET  /v1/models            -> one model, "mock", with its context
 * GET  anything else         -> 200, small JSON (health checks)
 * POST anything, no stream   -> 200, chat.completion JSON of ~600 bytes
 * POST with "stream":true    -> SSE: N chunks of ~220 bytes, one with the finish reason,
 *                               one with usage, "data: [DONE]".
 * The request body chooses the shape, with standard OpenAI fields only, so it
 * survives proxies that re-serialise the body:
 *   max_tokens (or max_completion_tokens) = N, the number of chunks
 *   seed                                  = pause between chunks, microseconds
 *                                           (0: as fast as the socket takes them)
 *                                           (without "stream": delay before the answer)
 * Every chunk's content is "T" + 16 digits: CLOCK_MONOTONIC microseconds at the
 * moment it was written, so a client on the same machine can compute the one-way
 * delay of each chunk. Each chunk is one write() with TCP_NODELAY.
 * With the argument "sync" all streams emit on common ticks (multiples of the
 * pause), as a batching engine does after each step.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAXFD 16384
#define RBUF (1 << 16)

typedef struct {
    int fd, open;
    char *buf; size_t len, cap;          /* unread request bytes */
    int streaming, json_wait;            /* answering right now */
    long left, count;                    /* chunks still to send, and in all */
    int64_t pace, due;                   /* pause and next time, us */
    int heap_i;                          /* position in the timer heap, -1: none */
    int want_out;                        /* waiting for EPOLLOUT */
    size_t off;                          /* bytes of the current piece already sent */
    int tail;                            /* the closing piece is being sent */
} conn;

static conn C[MAXFD];
static long busy, iterations, generated, prompted;    /* requests being answered; turns of the loop; tokens */
static int64_t born;                                  /* wall clock at start, seconds */
static conn *heap[MAXFD]; static int hn;
static int ep, sync_ticks;
static char json_resp[2048]; static size_t json_len;
static char head[256]; static size_t head_len;
static char chunk[512]; static size_t chunk_len, stamp_at;
static char tail[1536]; static size_t tail_len, count_at, total_at;

static int64_t now_us(void) {
    struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---- timer heap, ordered by due ---- */
static void hset(int i, conn *c) { heap[i] = c; c->heap_i = i; }
static void hup(int i) {
    conn *c = heap[i];
    while (i && heap[(i - 1) / 2]->due > c->due) { hset(i, heap[(i - 1) / 2]); i = (i - 1) / 2; }
    hset(i, c);
}
static void hdown(int i) {
    conn *c = heap[i];
    for (;;) {
        int k = 2 * i + 1;
        if (k >= hn) break;
        if (k + 1 < hn && heap[k + 1]->due < heap[k]->due) k++;
        if (heap[k]->due >= c->due) break;
        hset(i, heap[k]); i = k;
    }
    hset(i, c);
}
static void hpush(conn *c) { hset(hn, c); hup(hn++); }
static void hdel(conn *c) {
    int i = c->heap_i; if (i < 0) return;
    c->heap_i = -1; conn *l = heap[--hn];
    if (l != c) { hset(i, l); hup(i); hdown(l->heap_i); }
}

static void build(void) {
    char body[1536];
    int n = snprintf(body, sizeof body,
        "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion\","
        "\"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
        "\"content\":\"%0300d\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":64,\"total_tokens\":164}}", 0);
    json_len = snprintf(json_resp, sizeof json_resp,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", n, body);
    head_len = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\n"
        "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
    n = snprintf(body, sizeof body,
        "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\","
        "\"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{\"content\":"
        "\"T0000000000000000\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    chunk_len = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", n, body);
    stamp_at = strstr(chunk, "\"T0000") + 2 - chunk;
    n = snprintf(body, sizeof body,
        "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\","
        "\"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,"
        "\"finish_reason\":\"length\"}]}\n\n"
        "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\","
        "\"created\":1700000000,\"model\":\"mock\",\"choices\":[],\"usage\":{\"prompt_tokens\":100,"
        "\"completion_tokens\":        0,\"total_tokens\":        0}}\n\ndata: [DONE]\n\n");
    tail_len = snprintf(tail, sizeof tail, "%x\r\n%s\r\n0\r\n\r\n", n, body);
    count_at = strstr(tail, "completion_tokens\":") + 19 - tail;
    total_at = strstr(tail, "total_tokens\":") + 14 - tail;
}

static void stamp(void) {
    int64_t t = now_us();
    for (int i = 15; i >= 0; i--) { chunk[stamp_at + i] = '0' + t % 10; t /= 10; }
}

static void pad(size_t at, long v) {         /* nine places, filled with spaces from the left, as JSON allows */
    for (int i = 8; i >= 0; i--) { tail[at + i] = v || i == 8 ? '0' + v % 10 : ' '; v /= 10; }
}

static void drop(conn *c) {
    busy -= c->streaming || c->json_wait;
    hdel(c); epoll_ctl(ep, EPOLL_CTL_DEL, c->fd, 0); close(c->fd);
    c->open = c->streaming = c->json_wait = c->want_out = 0; c->len = 0;
}
static void want(conn *c, int out) {
    if (c->want_out == out) return;
    c->want_out = out;
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.fd = c->fd};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}
/* Send the rest of piece p. 1: all of it went; 0: wait for EPOLLOUT; -1: closed. */
static int put(conn *c, const char *p, size_t n) {
    while (c->off < n) {
        ssize_t r = send(c->fd, p + c->off, n - c->off, MSG_NOSIGNAL);
        if (r < 0) {
            if (errno == EAGAIN) { want(c, 1); return 0; }
            drop(c); return -1;
        }
        c->off += r;
    }
    c->off = 0; want(c, 0); return 1;
}

static int parse(conn *c);

/* One step of a stream: one chunk, or the tail. */
static void step(conn *c) {
    if (c->left > 0) {
        if (c->off == 0) stamp();        /* a half-sent chunk keeps sending: stamps differ only after EAGAIN */
        int r = put(c, chunk, chunk_len);
        if (r <= 0) return;
        c->left--; generated++;
        if (c->pace) {
            c->due += c->pace;
            if (sync_ticks) c->due -= c->due % c->pace;
        }
    } else {
        if (c->off == 0) { pad(count_at, c->count); pad(total_at, c->count + 100); }
        int r = put(c, tail, tail_len);
        if (r <= 0) return;
        c->streaming = 0; busy--; hdel(c); parse(c); return;
    }
    if (c->heap_i >= 0) { hdown(c->heap_i); hup(c->heap_i); } else hpush(c);
}

static long field(const char *b, const char *e, const char *name, long dflt) {
    const char *p = memmem(b, e - b, name, strlen(name));
    if (!p) return dflt;
    p += strlen(name);
    while (p < e && (*p == ' ' || *p == ':')) p++;
    return p < e ? strtol(p, 0, 10) : dflt;
}

/* What a gateway asks about this engine. One reserved block, as vLLM has. */
static void tell(conn *c, const char *path) {
    static char body[4096], out[4608];
    const char *kind = "application/json"; int n;
    if (!strncmp(path, "/metrics ", 9)) {
        kind = "text/plain; version=0.0.4";
        n = snprintf(body, sizeof body,
            "vllm:num_requests_running{engine=\"0\",model_name=\"mock\"} %ld\n"
            "vllm:num_requests_waiting{engine=\"0\",model_name=\"mock\"} 0\n"
            "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"mock\"} %.6f\n"
            "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"4194305\"} 1\n"
            "vllm:num_preemptions_total{engine=\"0\",model_name=\"mock\"} 0\n"
            "vllm:prompt_tokens_total{engine=\"0\",model_name=\"mock\"} %ld\n"
            "vllm:generation_tokens_total{engine=\"0\",model_name=\"mock\"} %ld\n"
            "vllm:iteration_tokens_total_count{engine=\"0\",model_name=\"mock\"} %ld\n"
            "process_start_time_seconds %ld\n",
            busy, busy / 65536.0, prompted, generated, iterations, (long)born);
    } else if (!strncmp(path, "/v1/models ", 11))
        n = snprintf(body, sizeof body, "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\","
                     "\"created\":1700000000,\"owned_by\":\"mock\",\"max_model_len\":1048576}]}");
    else
        n = snprintf(body, sizeof body, "{\"version\":\"mock\"}");
    int len = snprintf(out, sizeof out, "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s", kind, n, body);
    c->off = 0;
    if (send(c->fd, out, len, MSG_NOSIGNAL) != len) drop(c);   /* fits any socket buffer, or nobody reads */
}

static void answer(conn *c, int post, const char *b, const char *e) {
    const char *s = post ? memmem(b, e - b, "\"stream\"", 8) : 0;
    int stream = 0;
    if (s) { s += 8; while (s < e && (*s == ' ' || *s == ':')) s++; stream = s < e && *s == 't'; }
    c->off = 0;
    int64_t pace = post ? field(b, e, "\"seed\"", 0) : 0;
    prompted += 100;
    if (!stream) {
        generated += 64;
        if (pace > 0) { c->json_wait = 1; busy++; c->due = now_us() + pace; hpush(c); return; }
        put(c, json_resp, json_len); return;
    }
    c->left = field(b, e, "\"max_tokens\"", field(b, e, "\"max_completion_tokens\"", 16));
    c->count = c->left; c->pace = pace; c->streaming = 1; busy++; c->due = now_us();
    if (put(c, head, head_len) < 0) return;
    if (sync_ticks && pace) c->due += pace - c->due % pace;
    hpush(c);
}

/* Take complete requests from the buffer. Handles content-length and chunked bodies. */
static int parse(conn *c) {
    while (c->open && !c->streaming && !c->json_wait && c->len) {
        char *h = memmem(c->buf, c->len, "\r\n\r\n", 4);
        if (!h) return 0;
        char *b = h + 4, *e = c->buf + c->len, *next;
        *h = 0;                                       /* headers are a C string now */
        char *cl = strcasestr(c->buf, "\r\ncontent-length:");
        int chunked = strcasestr(c->buf, "\r\ntransfer-encoding: chunked") != 0;
        int expect = strcasestr(c->buf, "\r\nexpect: 100") != 0;
        int post = c->buf[0] == 'P';
        *h = '\r';
        if (expect && b == e) { send(c->fd, "HTTP/1.1 100 Continue\r\n\r\n", 25, MSG_NOSIGNAL); }
        if (chunked) {                                /* only the end is looked for */
            char *z = memmem(b, e - b, "\r\n0\r\n\r\n", 7);
            if (!z) return 0;
            next = z + 7; e = z;
        } else {
            long n = cl ? strtol(cl + 17, 0, 10) : 0;
            if (e - b < n) return 0;
            next = b + n; e = next;
        }
        if (post) answer(c, post, b, e); else tell(c, c->buf + 4);
        if (!c->open) return 0;
        c->len = c->buf + c->len - next;
        memmove(c->buf, next, c->len);
    }
    return 0;
}

static void on_read(conn *c) {
    for (;;) {
        if (c->cap - c->len < RBUF) c->buf = realloc(c->buf, c->cap += 2 * RBUF);
        size_t room = c->cap - c->len - 1;
        ssize_t r = recv(c->fd, c->buf + c->len, room, 0);
        if (r > 0) { c->len += r; if ((size_t)r < room) break; continue; }
        if (r < 0 && errno == EAGAIN) break;
        drop(c); return;
    }
    parse(c);
}

int main(int argc, char **argv) {
    int port = argc > 1 ? atoi(argv[1]) : 9000;
    sync_ticks = argc > 2 && !strcmp(argv[2], "sync");
    signal(SIGPIPE, SIG_IGN); build(); born = time(0);
    int one = 1, ls = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(ls, (void *)&a, sizeof a) || listen(ls, 4096)) { perror("bind"); return 1; }
    ep = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = ls}, ev[512];
    epoll_ctl(ep, EPOLL_CTL_ADD, ls, &e);
    for (;;) {
        struct timespec ts = {0, 0}, *tp = 0;
        if (hn) {
            int64_t d = heap[0]->due - now_us(); if (d < 0) d = 0;
            ts.tv_sec = d / 1000000; ts.tv_nsec = d % 1000000 * 1000; tp = &ts;
        }
        int n = epoll_pwait2(ep, ev, 512, tp, 0);
        for (int i = 0; i < n; i++) {
            int fd = ev[i].data.fd;
            if (fd == ls) {
                int s;
                while ((s = accept4(ls, 0, 0, SOCK_NONBLOCK)) >= 0) {
                    if (s >= MAXFD) { close(s); continue; }
                    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    conn *c = &C[s]; char *b = c->buf; size_t cap = c->cap;
                    memset(c, 0, sizeof *c); c->buf = b; c->cap = cap; c->fd = s; c->open = 1; c->heap_i = -1;
                    struct epoll_event x = {.events = EPOLLIN, .data.fd = s};
                    epoll_ctl(ep, EPOLL_CTL_ADD, s, &x);
                }
                continue;
            }
            conn *c = &C[fd];
            if (!c->open) continue;
            if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_read(c);
            if (c->open && (ev[i].events & EPOLLOUT) && c->want_out) {
                if (c->streaming) { hdel(c); step(c); }
                else put(c, json_resp, json_len);
            }
        }
        iterations++;
        int64_t t = now_us();
        for (int k = 0; k < 256 && hn && heap[0]->due <= t; k++) {
            conn *c = heap[0];
            if (c->json_wait) { hdel(c); c->json_wait = 0; busy--; if (put(c, json_resp, json_len) > 0) parse(c); continue; }
            if (c->want_out) { hdel(c); continue; }   /* comes back with EPOLLOUT */
            if (!c->pace) c->due = t + 1;             /* round robin between unpaced streams */
            step(c);
        }
    }
}
