// HTTP load on loopback that counts what became of every request.
//
// usage: load [-c CONNECTIONS] [-w WARM_SECONDS] [-t SECONDS] [-n REQUESTS] [-r RATE] [-g GRACE_SECONDS] [-s SPREAD_SECONDS]
//             [-i SEED] REQUESTS_FILE PORT...
//
// Closed loop: each connection sends its next request when the last answer is complete; the first ones are spread over
// SPREAD_SECONDS, so that streams do not march in step. With -r, open loop: requests begin
// at random times (Poisson, RATE a second) on whatever connection is free, and times count from when a request should have begun.
// After SECONDS, or REQUESTS in all, no request is begun; those that run have GRACE_SECONDS to end.
//
// REQUESTS_FILE holds whole HTTP requests, each after a line "SIZE OFFSET". They are sent in turn. At OFFSET there are 16
// bytes that are another hexadecimal number in every request (-1: the request is sent as it is).
//
// Prints "begin" and "end" around the timed part, then one line of JSON. Every request that was sent is in exactly one of:
//   answered    200, complete, and [DONE] where it was a stream
//   refused     429 or 503 with Retry-After
//   failed      another status, complete
//   error_event 200, and the stream ended with an error in it
//   cut         200, and the answer ended before its end
//   no_answer   the connection closed before a status line
//   open        still running after the grace
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { UNTIL_CLOSE = -2, CHUNKED = -1, UNIQUE = 16, MAX_LATE = 1 << 16, TAIL = 2048 };

typedef struct {
    char *bytes;
    size_t size;
    long unique;
} Request;

typedef struct {
    int fd, busy, timed;
    const Request *request;
    unsigned long long number;
    size_t sent;
    char *in;
    size_t len, cap, at;    // at: how far the body has been read
    size_t head;            // length of the head, 0 while incomplete
    long length;            // of the body, CHUNKED or UNTIL_CLOSE
    int status, close_after, newline, last_chunk;
    long long began_ns, first_ns;
} Client;

typedef struct {
    unsigned *us;
    size_t count, cap;
} Times;

static enum { WARMING, TIMED, OVER } phase;
static struct sockaddr_in server = {.sin_family = AF_INET};
static int ports[64], port_count, poller;
static Request *requests;
static int request_count;
static Client *clients;
static int *idle, idle_count;
static unsigned long long sent, answered, refused, failed, error_events, cut, no_answer, open_now, late, most;
static unsigned long long timed_answers, timed_events;
static long long late_began[MAX_LATE];
static unsigned late_first, late_last;
static Times latencies, firsts;
static double rate;
static char first_trouble[256];

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void add(Times *times, long long ns) {
    if (times->count == times->cap) times->us = realloc(times->us, (times->cap = 2 * times->cap + 65536) * sizeof *times->us);
    times->us[times->count++] = ns < 0 ? 0 : ns / 1000;
}

static void dial(Client *c) {
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    server.sin_port = htons(ports[(c - clients) % port_count]);
    if (c->fd < 0 || (connect(c->fd, (void *)&server, sizeof server) && errno != EINPROGRESS)) {
        perror("load: connect");
        exit(2);
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
}

// Send what is left of the request. Its number is written in right before, as others share the bytes.
static int push(Client *c) {
    const Request *r = c->request;
    if (r->unique >= 0) {
        static const char digits[] = "0123456789abcdef";
        unsigned long long n = c->number * 0x9E3779B97F4A7C15ULL;
        for (int i = 0; i < UNIQUE; i++) r->bytes[r->unique + i] = digits[n >> (60 - 4 * i) & 15];
    }
    while (c->sent < r->size) {
        ssize_t done = send(c->fd, r->bytes + c->sent, r->size - c->sent, MSG_NOSIGNAL);
        if (done < 0) {
            if (errno != EAGAIN && errno != ENOTCONN) return -1;
            struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
            epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
            return 0;
        }
        c->sent += done;
    }
    return 0;
}

static void finish(Client *c, unsigned long long *outcome);

static void begin(Client *c, long long began_ns) {
    c->request = &requests[sent % request_count];
    c->number = ++sent;
    c->began_ns = began_ns;
    c->timed = phase == TIMED;
    c->busy = 1;
    open_now++;
    if (push(c) < 0) finish(c, &no_answer);
}

// Whoever is free takes what should have begun by now, else waits.
static void free_client(Client *c) {
    if (phase == OVER || sent == most) return;
    if (rate == 0) begin(c, now_ns());
    else if (late_first != late_last) begin(c, late_began[late_first++ % MAX_LATE]);
    else idle[idle_count++] = c - clients;
}

static void arrive(long long when) {
    if (idle_count) begin(&clients[idle[--idle_count]], when);
    else if (late_last - late_first < MAX_LATE) late++, late_began[late_last++ % MAX_LATE] = when;
}

static void finish(Client *c, unsigned long long *outcome) {
    long long now = now_ns();
    ++*outcome;
    open_now--;
    if (outcome == &answered) {
        if (phase == TIMED) timed_answers++;
        if (c->timed) {
            add(&latencies, now - c->began_ns);
            add(&firsts, (c->first_ns ? c->first_ns : now) - c->began_ns);
        }
    } else if (!first_trouble[0]) {
        int shown = c->len < 160 ? c->len : 160;
        snprintf(first_trouble, sizeof first_trouble, "%s: %.*s", outcome == &no_answer ? "no answer" : outcome == &cut ? "cut" : "status",
                 shown, c->in);
        for (char *at = first_trouble; *at; at++)
            if (*at < ' ' || *at == '"' || *at == '\\') *at = ' ';
    }
    int again = outcome == &no_answer || outcome == &cut || c->close_after;
    c->busy = c->len = c->at = c->head = c->sent = c->status = c->close_after = c->newline = c->last_chunk = 0;
    c->length = 0;
    c->first_ns = 0;
    if (again) {
        close(c->fd);
        dial(c);
    }
    free_client(c);
}

// Events end with an empty line; the body may be cut anywhere.
static void count_events(Client *c, const char *from, const char *end) {
    if (!c->first_ns && from < end) c->first_ns = now_ns();
    if (phase == TIMED && c->newline && from < end && *from == '\n') timed_events++;
    for (const char *at = from; (at = memchr(at, '\n', end - at)); at++)
        if (phase == TIMED && at + 1 < end && at[1] == '\n') timed_events++;
    if (from < end) c->newline = end[-1] == '\n' && !(end - from > 1 && end[-2] == '\n');
}

static int read_head(Client *c) {
    c->in[c->len] = 0;
    char *end = memmem(c->in, c->len, "\r\n\r\n", 4);
    if (!end) return 0;
    c->head = c->at = end + 4 - c->in;
    *end = 0;
    char *length = strcasestr(c->in, "\r\ncontent-length:");
    c->status = c->len > 12 ? atoi(c->in + 9) : 0;
    c->length = length ? atol(length + 17) : strcasestr(c->in, "\r\ntransfer-encoding: chunked") ? CHUNKED : UNTIL_CLOSE;
    c->close_after = strcasestr(c->in, "\r\nconnection: close") != NULL;
    if ((c->status == 429 || c->status == 503) && strcasestr(c->in, "\r\nretry-after:")) c->status = -c->status;
    *end = '\r';
    return 1;
}

// Read as far as the bytes go. 1: the answer is complete.
static int complete(Client *c, int gone) {
    if (c->head == 0 && !read_head(c)) return 0;
    if (c->length >= 0) return c->len >= c->head + c->length;
    if (c->length == UNTIL_CLOSE) return gone;
    for (;;) {
        char *line_end = memmem(c->in + c->at, c->len - c->at, "\r\n", 2);
        if (!line_end) return 0;
        size_t size = strtoul(c->in + c->at, NULL, 16), data = line_end + 2 - c->in;
        if (data + size + 2 > c->len) return 0;
        if (size == 0) return c->last_chunk = 1;
        count_events(c, c->in + data, c->in + data + size);
        c->at = data + size + 2;
    }
}

static unsigned long long *outcome_of(Client *c) {
    if (c->status < 0) return &refused;
    if (c->status != 200) return &failed;
    if (c->length >= 0) return &answered;
    size_t from = c->len > TAIL ? c->len - TAIL : 0;
    if (memmem(c->in + from, c->len - from, "[DONE]", 6)) return &answered;
    return memmem(c->in + from, c->len - from, "data: {\"error\"", 14) ? &error_events : &cut;
}

static void receive(Client *c) {
    int gone = 0;
    for (;;) {
        if (c->len + 8192 > c->cap) c->in = realloc(c->in, (c->cap *= 2) + 1);
        size_t room = c->cap - c->len;
        ssize_t got = recv(c->fd, c->in + c->len, room, 0);
        if (got > 0) {
            c->len += got;
            if ((size_t)got == room) continue;
        } else gone = got == 0 || errno != EAGAIN;
        break;
    }
    if (!c->busy) {
        if (!gone) return;
        close(c->fd);
        dial(c);
    } else if (c->len && complete(c, gone)) {
        c->close_after |= gone;
        finish(c, outcome_of(c));
    } else if (gone) {
        unsigned long long *outcome = !c->head ? &no_answer : outcome_of(c) == &error_events ? &error_events : &cut;
        c->close_after = 1;
        finish(c, outcome);
    }
}

static int compare(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return (x > y) - (x < y);
}

static unsigned percentile(const Times *times, double share) {
    return times->count ? times->us[(size_t)(share * (times->count - 1))] : 0;
}

static void read_requests(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror("load: requests file");
        exit(2);
    }
    size_t size;
    long unique;
    while (fscanf(file, "%zu %ld", &size, &unique) == 2 && fgetc(file) == '\n') {
        requests = realloc(requests, (request_count + 1) * sizeof *requests);
        requests[request_count] = (Request){malloc(size), size, unique};
        if (fread(requests[request_count++].bytes, 1, size, file) != size) {
            fprintf(stderr, "load: the requests file is cut\n");
            exit(2);
        }
    }
    fclose(file);
    if (!request_count) {
        fprintf(stderr, "load: the requests file has no request\n");
        exit(2);
    }
}

int main(int argc, char **argv) {
    int count = 1;
    long seed = 1;
    double warm = 0, seconds = 1, grace = 10, spread = 0;
    for (int option; (option = getopt(argc, argv, "c:w:t:n:r:g:s:i:")) != -1;) {
        if (option == 'c') count = atoi(optarg);
        else if (option == 'w') warm = atof(optarg);
        else if (option == 't') seconds = atof(optarg);
        else if (option == 'n') most = strtoull(optarg, NULL, 10);
        else if (option == 'r') rate = atof(optarg);
        else if (option == 'g') grace = atof(optarg);
        else if (option == 's') spread = atof(optarg);
        else if (option == 'i') seed = atol(optarg);
        else return 2;
    }
    if (!most) most = UINT64_MAX;
    if (optind + 1 >= argc || count < 1) {
        fprintf(stderr, "load: a requests file and a port are needed\n");
        return 2;
    }
    srand48(seed);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    read_requests(argv[optind]);
    for (int i = optind + 1; i < argc && port_count < 64; i++) ports[port_count++] = atoi(argv[i]);
    poller = epoll_create1(0);
    clients = calloc(count, sizeof(Client));
    idle = calloc(count, sizeof(int));
    for (int i = 0; i < count; i++) clients[i].in = malloc((clients[i].cap = 16384) + 1);
    for (int i = 0; i < count; i++) dial(&clients[i]);
    int begun = 0;
    long long start = now_ns(), timed_from = start + warm * 1e9, end = timed_from + seconds * 1e9, due = start;
    for (long long now; (now = now_ns()) < end + grace * 1e9;) {
        if (phase == WARMING && now >= timed_from) {
            phase = TIMED;
            printf("begin\n");
            fflush(stdout);
        }
        if (phase == TIMED && (now >= end || (sent == most && open_now == 0))) {
            phase = OVER;
            printf("end\n");
            fflush(stdout);
            end = now;
        }
        if (phase == OVER && open_now == 0) break;
        int wait = begun < count ? 1 : 20;
        for (; begun < count && now >= start + begun * spread * 1e9 / count; begun++) free_client(&clients[begun]);
        if (rate > 0 && phase != OVER && sent < most) {
            for (; due <= now && sent < most; due += -log(drand48() + 1e-12) / rate * 1e9) arrive(due);
            if (due - now < 20000000LL) wait = -1;
        }
        struct epoll_event ready[512];
        struct timespec until_due = {.tv_nsec = due > now ? due - now : 0};
        int n = wait < 0 ? epoll_pwait2(poller, ready, 512, &until_due, NULL) : epoll_wait(poller, ready, 512, wait);
        for (int i = 0; i < n; i++) {
            Client *c = ready[i].data.ptr;
            if (ready[i].events & EPOLLOUT) {
                struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
                epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
                if (c->busy && push(c) < 0) {
                    c->close_after = 1;
                    finish(c, &no_answer);
                    continue;
                }
            }
            if (ready[i].events & ~EPOLLOUT) receive(c);
        }
    }
    qsort(latencies.us, latencies.count, sizeof *latencies.us, compare);
    qsort(firsts.us, firsts.count, sizeof *firsts.us, compare);
    printf("{\"sent\": %llu, \"answered\": %llu, \"refused\": %llu, \"failed\": %llu, \"error_events\": %llu, \"cut\": %llu, "
           "\"no_answer\": %llu, \"open\": %llu, \"late\": %llu, \"requests\": %llu, \"events\": %llu, \"p50_us\": %u, \"p99_us\": %u, "
           "\"first_p50_us\": %u, \"first_p99_us\": %u, \"first_trouble\": \"%s\"}\n",
           sent, answered, refused, failed, error_events, cut, no_answer, open_now, late, timed_answers, timed_events,
           percentile(&latencies, .5), percentile(&latencies, .99), percentile(&firsts, .5), percentile(&firsts, .99), first_trouble);
    return 0;
}
