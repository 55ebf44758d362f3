// The floor: an epoll relay that does the system calls of a router and decides next to nothing.
//
// usage: relay PORT BACKEND_PORT...
//
// A whole request goes to the backend with the fewest requests, on a kept connection where there is one; the answer comes
// back as it arrives. Bytes are not changed, heads are looked at for lengths only. One request at a time per client.
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
#include <unistd.h>

enum { MAX_FD = 65536, MAX_BACKENDS = 64, BUFFER = 1 << 20 };

typedef struct {
    int backend;    // -1: a client
    int peer;       // descriptor of the other side while a request runs, -1: idle
    int head_seen;
    long left;      // of the answer's body; -1: chunked
    char *in;       // a request that is not whole yet
    size_t len, cap;
} Side;

static Side *sides[MAX_FD];
static int ports[MAX_BACKENDS], running[MAX_BACKENDS], count, poller, turn;
static int kept[MAX_BACKENDS][MAX_FD], kept_count[MAX_BACKENDS];
static char buffer[BUFFER + 1];

static void hang_up(int fd);

static void adopt(int fd, int backend) {
    int one = 1;
    Side *s = calloc(1, sizeof *s);
    s->backend = backend;
    s->peer = -1;
    sides[fd] = s;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
}

// A floor has no buffers: a peer that does not read is waited for.
static void put(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t done = send(fd, data, size, MSG_NOSIGNAL);
        if (done < 0) {
            if (errno == EAGAIN) continue;
            return;
        }
        data += done;
        size -= done;
    }
}

static int dial(int backend) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(ports[backend]), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || fd >= MAX_FD || connect(fd, (void *)&address, sizeof address)) {
        if (fd >= 0) close(fd);
        return -1;
    }
    adopt(fd, backend);
    return fd;
}

static void answered(int fd) {
    Side *up = sides[fd];
    running[up->backend]--;
    sides[up->peer]->peer = -1;
    up->peer = -1;
    up->head_seen = 0;
    kept[up->backend][kept_count[up->backend]++] = fd;
}

static void hang_up(int fd) {
    Side *s = sides[fd];
    int peer = s->peer;
    sides[fd] = NULL;
    close(fd);
    if (peer >= 0) {
        running[s->backend >= 0 ? s->backend : sides[peer]->backend]--;
        sides[peer]->peer = -1;
        hang_up(peer);
    } else if (s->backend >= 0) {
        int *list = kept[s->backend], *n = &kept_count[s->backend];
        for (int i = 0; i < *n; i++)
            if (list[i] == fd) {
                list[i] = list[--*n];
                break;
            }
    }
    free(s->in);
    free(s);
}

static long length_in(char *head, char *end, long otherwise) {
    *end = 0;
    char *field = strcasestr(head, "\r\ncontent-length:");
    long length = field ? atol(field + 17) : otherwise;
    *end = '\r';
    return length;
}

static void from_client(int fd, size_t got) {
    Side *s = sides[fd];
    char *data = buffer;
    if (s->len) {
        if (s->len + got + 1 > s->cap) s->in = realloc(s->in, s->cap = 2 * (s->len + got) + 1);
        memcpy(s->in + s->len, buffer, got);
        got += s->len;
        data = s->in;
    }
    char *end = memmem(data, got, "\r\n\r\n", 4);
    if (!end || got < end + 4 - data + (size_t)length_in(data, end, 0)) {
        if (!s->len) {
            if (got + 1 > s->cap) s->in = realloc(s->in, s->cap = 2 * got + 1);
            memcpy(s->in, buffer, got);
        }
        s->len = got;
        return;
    }
    int backend = turn = (turn + 1) % count;
    for (int i = 0; i < count; i++)
        if (running[i] < running[backend]) backend = i;
    int up = kept_count[backend] ? kept[backend][--kept_count[backend]] : dial(backend);
    if (up < 0) {
        hang_up(fd);
        return;
    }
    running[backend]++;
    s->peer = up;
    sides[up]->peer = fd;
    put(up, data, got);
    s->len = 0;
}

static void from_backend(int fd, size_t got) {
    Side *s = sides[fd];
    if (s->peer < 0) {
        hang_up(fd);
        return;
    }
    put(s->peer, buffer, got);
    if (!s->head_seen) {
        char *end = memmem(buffer, got, "\r\n\r\n", 4);
        if (!end) return;
        s->head_seen = 1;
        s->left = length_in(buffer, end, -1);
        if (s->left >= 0) got -= end + 4 - buffer;
    }
    if (s->left >= 0) {
        s->left -= got;
        if (s->left <= 0) answered(fd);
    } else if (got >= 5 && memcmp(buffer + got - 5, "0\r\n\r\n", 5) == 0) answered(fd);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: relay PORT BACKEND_PORT...\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 2; i < argc && count < MAX_BACKENDS; i++) ports[count++] = atoi(argv[i]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) {
        perror("relay");
        return 1;
    }
    poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[512];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int n = epoll_wait(poller, ready, 512, -1);
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            if (fd == listener) {
                for (int made; (made = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
                    if (made < MAX_FD) adopt(made, -1);
                    else close(made);
                }
                continue;
            }
            if (!sides[fd]) continue;
            ssize_t got = recv(fd, buffer, BUFFER, MSG_DONTWAIT);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) hang_up(fd);
            else if (sides[fd]->backend < 0) from_client(fd, got);
            else from_backend(fd, got);
        }
    }
}
