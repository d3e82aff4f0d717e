// What no loader exceeds, a line of JSON each:
//   limits decode SECONDS < PATHS      decodes JPEGs that are in memory to RGB, with one thread, by libjpeg-turbo
//   limits copy SECONDS RAW ROW        copies random rows of 224 * 224 * 3 bytes to batches of 64, with two threads
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <turbojpeg.h>
#include <unistd.h>

enum { OUT = 224 * 224 * 3, BATCH = 64, THREADS = 2, MOST = 100000 };

static double wall(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void fail(const char *why) {
    fprintf(stderr, "limits: %s\n", why);
    exit(1);
}

static unsigned char *mapped(const char *path, size_t *size) {
    int file = open(path, O_RDONLY);
    struct stat about;
    if (file < 0 || fstat(file, &about)) fail(path);
    *size = about.st_size;
    unsigned char *bytes = mmap(NULL, *size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (bytes == MAP_FAILED) fail(path);
    close(file);
    return bytes;
}

static double least;

static long decode(void) {
    static unsigned char *files[MOST];
    static size_t sizes[MOST];
    static char path[4096];
    long count = 0, done = 0;
    while (count < MOST && fgets(path, sizeof path, stdin)) {
        path[strcspn(path, "\n")] = 0;
        files[count] = mapped(path, &sizes[count]);
        count++;
    }
    tjhandle decoder = tjInitDecompress();
    unsigned char *pixels = malloc(4096 * 4096 * 3);
    double began = wall(), cpu_before = cpu();
    while (!done || wall() - began < least)
        for (long at = 0; at < count; at++, done++) {
            int width, height, sampling, colours;
            if (tjDecompressHeader3(decoder, files[at], sizes[at], &width, &height, &sampling, &colours) || width * height > 4096 * 4096 ||
                tjDecompress2(decoder, files[at], sizes[at], pixels, width, 0, height, TJPF_RGB, 0))
                fail(tjGetErrorStr2(decoder));
        }
    printf("{\"samples\": %ld, \"seconds\": %f, \"cpu_s\": %f}\n", done, wall() - began, cpu() - cpu_before);
    return done;
}

static unsigned char *rows;
static size_t row_bytes, row_count;

static void *copy(void *seed) {
    uint64_t state = (uintptr_t)seed;
    unsigned char *batch = malloc((size_t)OUT * BATCH);
    memset(batch, 1, (size_t)OUT * BATCH);
    long done = 0;
    double began = wall();
    while (wall() - began < least)
        for (int at = 0; at < BATCH; at++, done++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            memcpy(batch + (size_t)at * OUT, rows + (state >> 33) % row_count * row_bytes, OUT);
        }
    return (void *)done;
}

static void copies(const char *path) {
    size_t size;
    rows = mapped(path, &size);
    row_count = size / row_bytes;
    pthread_t threads[THREADS];
    long done = 0;
    double began = wall(), cpu_before = cpu();
    for (int each = 0; each < THREADS; each++) pthread_create(&threads[each], NULL, copy, (void *)(uintptr_t)(each + 1));
    for (int each = 0; each < THREADS; each++) {
        void *part;
        pthread_join(threads[each], &part);
        done += (long)part;
    }
    printf("{\"samples\": %ld, \"seconds\": %f, \"cpu_s\": %f}\n", done, wall() - began, cpu() - cpu_before);
}

int main(int count, char **arguments) {
    if (count < 3) fail("decode or copy?");
    least = atof(arguments[2]);
    if (!strcmp(arguments[1], "decode")) {
        decode();
    } else {
        row_bytes = atol(arguments[4]);
        copies(arguments[3]);
    }
    return 0;
}
