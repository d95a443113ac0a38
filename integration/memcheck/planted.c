/* A module with two faults, by which run.sh shows that memcheck would notice such faults: a read of memory that was
 * freed, and a decision on uninitialised memory. Both are of the allocator that dlock uses, the server's own.
 * It is compiled by itself, so it asks the server for what it needs by name. */

#include <stddef.h>

typedef struct Ctx Ctx;
typedef int (*Command)(Ctx *ctx, void **argv, int argc);

static void *(*allocate)(size_t size);
static void (*release)(void *memory);
static int (*reply)(Ctx *ctx, long long number);

/* The result is used, or the compiler would omit the read. */
static int freed(Ctx *ctx, void **argv, int argc) {
    (void)argv, (void)argc;
    volatile char *memory = allocate(64);
    memory[0] = 1;
    release((void *)memory);
    return reply(ctx, memory[0]);
}

static int unwritten(Ctx *ctx, void **argv, int argc) {
    (void)argv, (void)argc;
    volatile char *memory = allocate(64);
    int set = memory[0] ? 1 : 0;
    release((void *)memory);
    return reply(ctx, set);
}

int RedisModule_OnLoad(Ctx *ctx, void **argv, int argc) {
    (void)argv, (void)argc;
    /* The context begins with the function that finds the others. */
    int (*find)(const char *name, void *where) = *(int (**)(const char *, void *))ctx;
    int (*introduce)(Ctx *ctx, const char *name, int version, int api);
    int (*create)(Ctx *ctx, const char *name, Command command, const char *flags, int first, int last, int step);
    find("RedisModule_SetModuleAttribs", &introduce);
    find("RedisModule_CreateCommand", &create);
    find("RedisModule_Alloc", &allocate);
    find("RedisModule_Free", &release);
    find("RedisModule_ReplyWithLongLong", &reply);
    introduce(ctx, "planted", 1, 1);
    return create(ctx, "planted.freed", freed, "", 0, 0, 0) | create(ctx, "planted.unwritten", unwritten, "", 0, 0, 0);
}
