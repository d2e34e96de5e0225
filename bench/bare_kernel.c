/* As bench/bare_kernel.py, in C: about the least that a server on /dev/fuse can take for warm opens.
 *
 * `bare_kernel SOURCE MOUNTPOINT` serves the tree below SOURCE, read-only, by one thread, until it is
 * unmounted. Names and attributes are kept for ever once they were asked for, and so is the
 * registration of each file that was opened. Nothing is checked, nothing is ever evicted.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* The protocol of Linux 6.9; the system's linux/fuse.h may be older. */
enum { LOOKUP = 1, FORGET = 2, GETATTR = 3, OPEN = 14, RELEASE = 18, INIT = 26, OPENDIR = 27,
       READDIR = 28, RELEASEDIR = 29, INTERRUPT = 36, BATCH_FORGET = 42 };
enum { ASYNC_READ = 1 << 0, MAX_PAGES = 1 << 22, INIT_EXT = 1 << 30, PASSTHROUGH2 = 1 << 5 };
enum { NOFLUSH = 32, PASSTHROUGH = 128 };
#define BACKING_OPEN 0x4010E501

struct in_header { uint32_t len, op; uint64_t unique, nodeid; uint32_t uid, gid, pid, rest; };
struct out_header { uint32_t len; int32_t error; uint64_t unique; };
struct attr { uint64_t ino, size, blocks, atime, mtime, ctime; uint32_t atime_ns, mtime_ns, ctime_ns,
              mode, nlink, uid, gid, rdev, block_size, flags; };
struct entry_out { uint64_t nodeid, generation, entry_s, attr_s; uint32_t entry_ns, attr_ns;
                   struct attr attr; };
struct attr_out { uint64_t attr_s; uint32_t attr_ns, unused; struct attr attr; };
struct open_out { uint64_t fh; uint32_t flags; int32_t backing_id; };
struct read_in { uint64_t fh, offset; uint32_t size; };
struct init_out { uint32_t major, minor, read_ahead, flags; uint16_t background, congestion;
                  uint32_t max_write, time_gran; uint16_t max_pages, padding;
                  uint32_t flags2, stack_depth, unused[6]; };
struct backing { int32_t fd; uint32_t flags; uint64_t padding; };

enum { PLACES = 1 << 20, TIMEOUT_S = 3600, PAGES = 128, ROOT = 1 };

static struct { uint64_t ino; char *path; int backing_id; } files[PLACES];
static struct { uint64_t key; struct entry_out entry; } names[PLACES];
static const char *source;
static int fuse;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static size_t file_of(uint64_t ino) {
    size_t place = (ino * 0x9E3779B97F4A7C15u) >> 44;
    while (files[place].ino && files[place].ino != ino)
        place = (place + 1) % PLACES;
    return place;
}

static size_t name_of(uint64_t parent, const char *name) {
    uint64_t key = parent * 0x9E3779B97F4A7C15u ^ 1469598103934665603u;
    for (; *name; name++)
        key = (key ^ (unsigned char)*name) * 1099511628211u;
    key |= 1;
    size_t place = key >> 44;
    while (names[place].key && names[place].key != key)
        place = (place + 1) % PLACES;
    if (!names[place].key) {
        names[place].key = key;
        names[place].entry.nodeid = 0;
    }
    return place;
}

static const char *path_of(uint64_t nodeid) {
    return nodeid == ROOT ? source : files[file_of(nodeid)].path;
}

static struct attr attributes(const struct stat *info, uint64_t ino) {
    return (struct attr){ .ino = ino, .size = info->st_size, .blocks = info->st_blocks,
                          .mtime = info->st_mtime, .mode = info->st_mode,
                          .nlink = S_ISREG(info->st_mode) ? 1 : info->st_nlink,
                          .uid = info->st_uid, .gid = info->st_gid, .block_size = 1 << 20 };
}

static void reply(uint64_t unique, int error, void *data, size_t size) {
    struct out_header head = { sizeof head + size, -error, unique };
    struct iovec parts[] = { { &head, sizeof head }, { data, size } };
    if (writev(fuse, parts, size ? 2 : 1) < 0 && errno != ENOENT)
        fail("answer");
}

static void init(const struct in_header *in) {
    struct init_out out = { .major = 7, .minor = 40, .read_ahead = PAGES * 4096,
                            .flags = ASYNC_READ | MAX_PAGES | INIT_EXT, .background = 64,
                            .congestion = 48, .max_write = PAGES * 4096, .time_gran = 1,
                            .max_pages = PAGES, .flags2 = PASSTHROUGH2, .stack_depth = 2 };
    reply(in->unique, 0, &out, sizeof out);
}

static void lookup(const struct in_header *in, const char *name) {
    struct entry_out *entry = &names[name_of(in->nodeid, name)].entry;
    if (!entry->nodeid) {
        char *path;
        struct stat info;
        if (asprintf(&path, "%s/%s", path_of(in->nodeid), name) < 0)
            fail("name");
        if (lstat(path, &info)) {
            reply(in->unique, errno, NULL, 0);
            return free(path);
        }
        size_t place = file_of(info.st_ino);
        files[place].ino = info.st_ino;
        files[place].path = path;
        *entry = (struct entry_out){ .nodeid = info.st_ino, .entry_s = TIMEOUT_S,
                                     .attr_s = TIMEOUT_S,
                                     .attr = attributes(&info, info.st_ino) };
    }
    reply(in->unique, 0, entry, sizeof *entry);
}

static void get_attributes(const struct in_header *in) {
    struct stat info;
    if (lstat(path_of(in->nodeid), &info))
        return reply(in->unique, errno, NULL, 0);
    struct attr_out out = { .attr_s = TIMEOUT_S, .attr = attributes(&info, in->nodeid) };
    reply(in->unique, 0, &out, sizeof out);
}

static void open_file(const struct in_header *in) {
    size_t place = file_of(in->nodeid);
    if (!files[place].backing_id) {
        struct backing map = { .fd = open(files[place].path, O_RDONLY | O_CLOEXEC) };
        files[place].backing_id = ioctl(fuse, BACKING_OPEN, &map);
        if (files[place].backing_id <= 0)
            fail("register");
        close(map.fd);
    }
    struct open_out out = { 0, PASSTHROUGH | NOFLUSH, files[place].backing_id };
    reply(in->unique, 0, &out, sizeof out);
}

static void read_directory(const struct in_header *in, const struct read_in *want) {
    static char data[PAGES * 4096];
    size_t used = 0;
    uint64_t number = 0;
    DIR *directory = opendir(path_of(in->nodeid));
    if (!directory)
        return reply(in->unique, errno, NULL, 0);
    for (struct dirent *one; (one = readdir(directory));) {
        size_t length = strlen(one->d_name), size = (24 + length + 7) & ~7ul;
        if (number++ < want->offset)
            continue;
        if (used + size > want->size || used + size > sizeof data)
            break;
        uint64_t numbers[] = { one->d_ino, number, (uint64_t)one->d_type << 32 | length };
        memset(data + used, 0, size);
        memcpy(data + used, numbers, sizeof numbers);
        memcpy(data + used + sizeof numbers, one->d_name, length);
        used += size;
    }
    closedir(directory);
    reply(in->unique, 0, data, used);
}

static void answer(const struct in_header *in, const void *body) {
    struct open_out none = { 0 };
    switch (in->op) {
    case INIT: return init(in);
    case LOOKUP: return lookup(in, body);
    case GETATTR: return get_attributes(in);
    case OPEN: return open_file(in);
    case READDIR: return read_directory(in, body);
    case OPENDIR: return reply(in->unique, 0, &none, sizeof none);
    case RELEASE: case RELEASEDIR: return reply(in->unique, 0, NULL, 0);
    case FORGET: case BATCH_FORGET: case INTERRUPT: return;
    default: return reply(in->unique, ENOSYS, NULL, 0);
    }
}

int main(int count, char **arguments) {
    static char buffer[(PAGES + 1) * 4096] __attribute__((aligned(8)));
    char options[100];
    if (count != 3 || !(source = realpath(arguments[1], NULL)))
        return 2;
    fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options,
             "fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions", fuse);
    if (fuse < 0 || mount("bare", arguments[2], "fuse.bare", MS_RDONLY, options))
        fail("mount");
    for (;;) {
        if (read(fuse, buffer, sizeof buffer) > 0)
            answer((void *)buffer, buffer + sizeof(struct in_header));
        else if (errno == ENODEV)
            return 0;
        else if (errno != ENOENT && errno != EINTR)
            fail("read");
    }
}
