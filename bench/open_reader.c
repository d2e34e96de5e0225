/* Readers of many files, as little code as possible around the system calls:

       open_reader LIST PROCESSES SECONDS WHAT

   LIST has a path per line. Process p has every PROCESSES-th of them, in a random order. SECONDS 0:
   each file once; else until the time is over. WHAT: read (open, read to the end, close) or open
   (open, close). Prints one JSON line. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct cell {
    volatile long files, bytes, errors;
    double first_s, last_s, longest_s;
    char pad[64];
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static long read_names(const char *path, char ***names) {
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t capacity = 0;
    long count = 0, room = 1024;
    if (file == NULL) exit(2);
    *names = malloc(room * sizeof **names);
    for (ssize_t length; (length = getline(&line, &capacity, file)) > 0;) {
        if (line[length - 1] == '\n') line[length - 1] = 0;
        if (count == room) *names = realloc(*names, (room *= 2) * sizeof **names);
        (*names)[count++] = strdup(line);
    }
    return count;
}

static void one(struct cell *me, const char *path, int reads, char *buffer, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = 0;
    if (fd < 0) {
        me->errors++;
        return;
    }
    while (reads && (got = read(fd, buffer, size)) > 0) me->bytes += got;
    if (got < 0) me->errors++;
    close(fd);
    me->files++;
}

static void work(struct cell *me, char **names, long count, int number, int of, double seconds,
                 int reads, volatile int *go) {
    static char buffer[1 << 20];
    unsigned seed = 12345 + number;
    long mine = 0;
    char **own = malloc((count / of + 1) * sizeof *own);
    for (long i = number; i < count; i += of) own[mine++] = names[i];
    for (long i = mine - 1; i > 0; i--) {
        long other = rand_r(&seed) % (i + 1);
        char *kept = own[i];
        own[i] = own[other];
        own[other] = kept;
    }
    while (!*go) usleep(200);
    me->first_s = now();
    double end_s = me->first_s + seconds;
    for (long i = 0; mine > 0; i++) {
        if (i == mine) {
            if (seconds == 0) break;
            i = 0;
        }
        one(me, own[i], reads, buffer, sizeof buffer);
        if (seconds > 0 && (i & 15) == 0 && now() > end_s) break;
    }
    me->last_s = now();
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    char **names;
    long count = read_names(argv[1], &names), files = 0, bytes = 0, errors = 0;
    int processes = atoi(argv[2]), reads = strcmp(argv[4], "read") == 0;
    double seconds = atof(argv[3]), first_s = 1e18, last_s = 0;
    struct cell *cells = mmap(0, sizeof *cells * processes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    volatile int *go = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int p = 0; p < processes; p++)
        if (fork() == 0) work(&cells[p], names, count, p, processes, seconds, reads, go);
    usleep(20000);
    *go = 1;
    while (wait(NULL) > 0);
    for (int p = 0; p < processes; p++) {
        files += cells[p].files;
        bytes += cells[p].bytes;
        errors += cells[p].errors;
        if (cells[p].first_s < first_s) first_s = cells[p].first_s;
        if (cells[p].last_s > last_s) last_s = cells[p].last_s;
    }
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    double cpu_s = used.ru_utime.tv_sec + used.ru_stime.tv_sec +
                   (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    printf("{\"files\": %ld, \"bytes\": %ld, \"errors\": %ld, \"wall_s\": %.6f, \"cpu_s\": %.6f}\n",
           files, bytes, errors, last_s - first_s, cpu_s);
    return errors != 0;
}
