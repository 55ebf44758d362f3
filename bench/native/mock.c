// Replicas that cost next to nothing: HTTP/1.1 on loopback, one thread, epoll.
//
// usage: mock [-s SLOTS] [-p PORT] COUNT
//
// Listens on COUNT free ports (or on PORT) and prints them on one line. Each port is one replica.
//
// POST with "stream":true    server-sent events: "max_tokens" of them, the first at once, then one each "seed" ms
// POST otherwise             one fixed completion, after "max_tokens" times "seed" ms
// GET                        200 and a few words; /v1/paceline/load has the load
//
// SLOTS is how many requests of one replica run at a time; further ones wait in the order of arrival. 0: all run.
// SIGTERM drains: new requests are answered 503 with Retry-After, and the process ends when the running ones have.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FD = 65536, MAX_REPLICAS = 256, MAX_REQUEST = 1 << 20, LOAD_SIZE = 128 };

typedef struct {
    int running, waiting, seq;
    int first, last;    // descriptors of those that wait, -1: nobody
} Replica;

typedef struct {
    Replica *replica;
    char *in;           // bytes of requests that are not handled yet
    size_t in_len, in_cap;
    char *out;          // bytes the peer has not taken yet
    size_t out_len, out_cap;
    int busy;           // a request of it waits or runs
    int waits, next;    // in the replica's queue, and who is behind it there
    int events_left, streamed, usage, gap_ms, place;
    long long due_ns;   // of the next event
} Connection;

static Connection *connections[MAX_FD];
static Replica replicas[MAX_REPLICAS], *listeners[MAX_FD];
static int due[MAX_FD], due_count;      // a heap of descriptors by due_ns
static int poller, slots, total_busy;
static volatile sig_atomic_t draining;

static const char COMPLETION[] =
    "{\"id\":\"cmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"mock\",\"choices\":[{\"index\":0,"
    "\"message\":{\"role\":\"assistant\",\"content\":\"hello\"},\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":1,\"total_tokens\":9}}";
static const char EVENT[] =
    "data: {\"id\":\"cmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"mock\",\"choices\":[{\"index\":0,"
    "\"delta\":{\"content\":\" hello\"},\"finish_reason\":null}]}\n\n";
static const char USAGE[] =
    "data: {\"id\":\"cmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"mock\",\"choices\":[],"
    "\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":8,\"total_tokens\":16}}\n\n";
static const char DONE[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
// What the health checks and model lookups of other routers want to see.
static const char ABOUT[] =
    "{\"status\":\"ok\",\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1,\"owned_by\":\"mock\"}],"
    "\"model_path\":\"mock\",\"served_model_name\":\"mock\",\"model_id\":\"mock\",\"is_generation\":true}";

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void place_at(int at, int fd) {
    due[at] = fd;
    connections[fd]->place = at;
}

static long long due_at(int at) { return connections[due[at]]->due_ns; }

static void sift(int at) {
    int fd = due[at];
    long long when = connections[fd]->due_ns;
    for (; at > 0 && when < due_at((at - 1) / 2); at = (at - 1) / 2) place_at(at, due[(at - 1) / 2]);
    for (int child; (child = 2 * at + 1) < due_count; at = child) {
        if (child + 1 < due_count && due_at(child + 1) < due_at(child)) child++;
        if (when <= due_at(child)) break;
        place_at(at, due[child]);
    }
    place_at(at, fd);
}

static void schedule(int fd, long long when) {
    connections[fd]->due_ns = when;
    if (connections[fd]->place < 0) place_at(due_count++, fd);
    sift(connections[fd]->place);
}

static void unschedule(int fd) {
    int at = connections[fd]->place;
    if (at < 0) return;
    connections[fd]->place = -1;
    if (at == --due_count) return;
    place_at(at, due[due_count]);
    sift(at);
}

static void watch(int fd, int operation, unsigned events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    epoll_ctl(poller, operation, fd, &event);
}

// Send, keeping what the socket does not take. -1: the peer is gone.
static int put(int fd, const char *data, size_t size) {
    Connection *c = connections[fd];
    if (c->out_len == 0) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent == (ssize_t)size) return 0;
        if (sent < 0 && errno != EAGAIN) return -1;
        if (sent > 0) data += sent, size -= sent;
        watch(fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    }
    if (c->out_len + size > c->out_cap) c->out = realloc(c->out, c->out_cap = 2 * (c->out_len + size));
    memcpy(c->out + c->out_len, data, size);
    c->out_len += size;
    return 0;
}

static int flush(int fd) {
    Connection *c = connections[fd];
    while (c->out_len > 0) {
        ssize_t sent = send(fd, c->out, c->out_len, MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN ? 0 : -1;
        memmove(c->out, c->out + sent, c->out_len -= sent);
    }
    watch(fd, EPOLL_CTL_MOD, EPOLLIN);
    return 0;
}

// As of a cache of 500,000 tokens that is a fifth full, which is what routers make of `kv` and `dtok` together.
static int load_words(Replica *r, char *text) {
    return snprintf(text, LOAD_SIZE, "v=1, run=%d, wait=%d, kv=20, ptok=0, dtok=100000, seq=%d", r->running, r->waiting, ++r->seq);
}

static int answer(int fd, const char *status, const char *more, const char *body) {
    char text[2048], load[LOAD_SIZE];
    load_words(connections[fd]->replica, load);
    int size = snprintf(text, sizeof text,
                        "HTTP/1.1 %s\r\ncontent-type: application/json\r\nx-paceline-load: %s\r\n%scontent-length: %zu\r\n\r\n%s",
                        status, load, more, strlen(body), body);
    return put(fd, text, size);
}

static int begin(int fd);
static int handle(int fd);

static void leave_queue(int fd) {
    Connection *c = connections[fd];
    Replica *r = c->replica;
    int before = -1;
    for (int at = r->first; at != fd; at = connections[at]->next) before = at;
    if (before < 0) r->first = c->next;
    else connections[before]->next = c->next;
    if (r->last == fd) r->last = before;
    r->waiting--;
    c->waits = 0;
}

static void drop(int fd);

// The request of a connection is over; whoever waits longest takes its slot.
static void release(int fd) {
    Connection *c = connections[fd];
    Replica *r = c->replica;
    c->busy = 0;
    total_busy--;
    r->running--;
    while (r->first >= 0 && r->running < slots) {
        int next = r->first;
        leave_queue(next);
        if (begin(next) < 0) drop(next);
    }
}

static void drop(int fd) {
    Connection *c = connections[fd];
    unschedule(fd);
    if (c->waits) {
        leave_queue(fd);
        total_busy--;
    } else if (c->busy) release(fd);
    free(c->in);
    free(c->out);
    free(c);
    connections[fd] = NULL;
    close(fd);
}

static int chunk(int fd, const char *event, size_t length) {
    char text[512];
    return put(fd, text, snprintf(text, sizeof text, "%zx\r\n%s\r\n", length, event));
}

// One more token. 0: more follow or the connection is idle again, -1: the peer is gone.
static int token(int fd) {
    Connection *c = connections[fd];
    if (c->streamed && chunk(fd, EVENT, sizeof EVENT - 1) < 0) return -1;
    if (--c->events_left > 0) {
        schedule(fd, c->due_ns + c->gap_ms * 1000000LL);
        return 0;
    }
    unschedule(fd);
    if (c->streamed && c->usage && chunk(fd, USAGE, sizeof USAGE - 1) < 0) return -1;
    if (c->streamed ? put(fd, DONE, sizeof DONE - 1) : answer(fd, "200 OK", "", COMPLETION)) return -1;
    release(fd);
    return 0;
}

// Start the request that a connection has, now that there is a slot.
static int begin(int fd) {
    Connection *c = connections[fd];
    c->replica->running++;
    c->due_ns = now_ns();
    if (c->streamed) {
        char head[512], load[LOAD_SIZE];
        load_words(c->replica, load);
        int size = snprintf(head, sizeof head,
                            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-paceline-load: %s\r\n"
                            "transfer-encoding: chunked\r\n\r\n", load);
        if (put(fd, head, size) < 0) return -1;
    } else if (c->gap_ms > 0) {
        schedule(fd, c->due_ns + c->gap_ms * 1000000LL);
        return 0;
    } else c->events_left = 1;
    if (token(fd) < 0) return -1;
    while (c->busy && c->gap_ms == 0)
        if (token(fd) < 0) return -1;
    return 0;
}

static int number_after(const char *text, const char *key, int otherwise) {
    const char *at = strstr(text, key);
    return at ? atoi(at + strlen(key)) : otherwise;
}

static int request(int fd, const char *head, const char *body) {
    Connection *c = connections[fd];
    Replica *r = c->replica;
    if (strncmp(head, "POST", 4) != 0) {
        char load[LOAD_SIZE + 16], words[LOAD_SIZE];
        if (strncmp(head, "GET /v1/paceline/load", 21) != 0)
            return draining ? answer(fd, "503 Service Unavailable", "retry-after: 1\r\n", "{}") : answer(fd, "200 OK", "", ABOUT);
        load_words(r, words);
        snprintf(load, sizeof load, "{\"load\":\"%s\"}", words);
        return answer(fd, "200 OK", "", load);
    }
    if (draining)
        return answer(fd, "503 Service Unavailable", "retry-after: 1\r\n",
                      "{\"error\":{\"message\":\"draining\",\"type\":\"unavailable\",\"param\":null,\"code\":null}}");
    c->streamed = strstr(body, "\"stream\":true") != NULL;
    c->usage = strstr(body, "\"include_usage\":true") != NULL;
    // Some routers send on the newer name.
    c->events_left = number_after(body, "\"max_tokens\":", number_after(body, "\"max_completion_tokens\":", 16));
    if (c->events_left < 1) c->events_left = 1;
    c->gap_ms = number_after(body, "\"seed\":", 0);
    c->busy = 1;
    total_busy++;
    if (!slots || r->running < slots) return begin(fd);
    c->waits = 1;
    c->next = -1;
    if (r->first < 0) r->first = fd;
    else connections[r->last]->next = fd;
    r->last = fd;
    r->waiting++;
    return 0;
}

// The body of a chunked request, moved together at `body`. Its end in the input, 0 when more must come.
static size_t gather(char *body, char *end, size_t *length) {
    char *at = body;
    *length = 0;
    for (;;) {
        char *line_end = memmem(at, end - at, "\r\n", 2);
        if (!line_end) return 0;
        size_t size = strtoul(at, NULL, 16);
        char *next = line_end + 2 + size + 2;
        if (next > end) return 0;
        if (size == 0) return next - body;
        memmove(body + *length, line_end + 2, size);
        *length += size;
        at = next;
    }
}

// Take the next whole requests of a connection, one at a time.
static int handle(int fd) {
    Connection *c = connections[fd];
    while (!c->busy && c->in_len > 0) {
        c->in[c->in_len] = 0;
        char *head_end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
        if (!head_end) return c->in_len < MAX_REQUEST ? 0 : -1;
        char *body = head_end + 4, *field;
        size_t have = c->in + c->in_len - body, length = 0, used;
        int whole;
        *head_end = 0;
        if (strcasestr(c->in, "\r\ntransfer-encoding: chunked")) {
            char *copy = memcpy(malloc(have + 1), body, have);
            whole = (used = gather(copy, copy + have, &length)) > 0;
            if (whole) memcpy(body, copy, length);
            free(copy);
        } else {
            if ((field = strcasestr(c->in, "\r\ncontent-length:"))) length = strtoul(field + 17, NULL, 10);
            used = length;
            whole = have >= length;
        }
        if (!whole) {
            *head_end = '\r';
            return c->in_len < MAX_REQUEST ? 0 : -1;
        }
        char saved = body[length];
        body[length] = 0;
        int result = request(fd, c->in, body);
        body[length] = saved;
        if (result < 0) return -1;
        size_t total = (body - c->in) + used;
        memmove(c->in, c->in + total, c->in_len -= total);
    }
    return 0;
}

static int receive(int fd) {
    Connection *c = connections[fd];
    for (;;) {
        if (c->in_len + 8192 > c->in_cap) c->in = realloc(c->in, (c->in_cap = 2 * c->in_cap + 16384) + 1);
        size_t room = c->in_cap - c->in_len;
        ssize_t got = recv(fd, c->in + c->in_len, room, 0);
        if (got < 0) return errno == EAGAIN ? handle(fd) : -1;
        if (got == 0) return -1;
        c->in_len += got;
        if ((size_t)got < room) return handle(fd);
    }
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (fd >= MAX_FD) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        connections[fd] = calloc(1, sizeof(Connection));
        connections[fd]->replica = listeners[listener];
        connections[fd]->place = -1;
        watch(fd, EPOLL_CTL_ADD, EPOLLIN);
    }
}

static int open_port(Replica *replica, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&address, size) || listen(fd, 4096) || getsockname(fd, (void *)&address, &size)) {
        perror("mock");
        exit(1);
    }
    replica->first = replica->last = -1;
    listeners[fd] = replica;
    watch(fd, EPOLL_CTL_ADD, EPOLLIN);
    return ntohs(address.sin_port);
}

static void on_sigterm(int number) {
    (void)number;
    draining = 1;
}

int main(int argc, char **argv) {
    int port = 0;
    for (int option; (option = getopt(argc, argv, "s:p:")) != -1;) {
        if (option == 's') slots = atoi(optarg);
        else if (option == 'p') port = atoi(optarg);
        else return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    struct sigaction drain = {.sa_handler = on_sigterm};
    sigaction(SIGTERM, &drain, NULL);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    poller = epoll_create1(0);
    int count = port || optind >= argc ? 1 : atoi(argv[optind]);
    for (int i = 0; i < count && i < MAX_REPLICAS; i++) printf("%d ", open_port(&replicas[i], port));
    printf("\n");
    fflush(stdout);
    while (!draining || total_busy) {
        struct epoll_event events[512];
        int wait = 200;
        if (due_count) {
            long long left = due_at(0) - now_ns();
            wait = left <= 0 ? 0 : left > 199000000LL ? 200 : (int)((left + 999999) / 1000000);
        }
        int ready = epoll_wait(poller, events, 512, wait);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (listeners[fd]) {
                accept_all(fd);
                continue;
            }
            if (!connections[fd]) continue;
            if ((events[i].events & EPOLLOUT) && flush(fd) < 0) drop(fd);
            else if ((events[i].events & ~EPOLLOUT) && receive(fd) < 0) drop(fd);
        }
        for (long long now = now_ns(); due_count && due_at(0) <= now;) {
            int fd = due[0];
            Connection *c = connections[fd];
            if (!c->streamed && c->events_left > 1) {
                c->events_left--;
                schedule(fd, c->due_ns + c->gap_ms * 1000000LL);
            } else if (token(fd) < 0 || (!c->busy && handle(fd) < 0)) drop(fd);
        }
    }
    return 0;
}
