/* What is started by the measurements: one static program without a libc.
 *
 *   child                exits at once
 *   child idle [LINE]    prints the line, then waits for its end
 *   child flood BYTES    prints that many bytes as fast as they are taken; 0: for ever
 *   child clock TICKS    prints CLOCK_REALTIME in nanoseconds every millisecond
 *   child pulse MILLIS   prints a line that often, for ever
 */
#include <sys/syscall.h>

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n mov %rsp, %rdi\n and $-16, %rsp\n call run\n");
static long call(long number, long a, long b, long c, long d)
{
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n_start:\n mov x0, sp\n bl run\n");
static long call(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = d;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
#else
#error "no entry point for this machine"
#endif

static char piece[64 << 10];

static void print(const char *text, long length)
{
    while (length > 0) {
        long written = call(SYS_write, 1, (long)text, length, 0);
        if (written <= 0)
            call(SYS_exit_group, 1, 0, 0, 0);
        text += written;
        length -= written;
    }
}

static long number(const char *text)
{
    long value = 0;
    while (*text >= '0' && *text <= '9')
        value = 10 * value + (*text++ - '0');
    return value;
}

static void idle(const char *line)
{
    if (line) {
        /* volatile here and below: the compiler would call strlen or memset, which are not there. */
        const volatile char *end = line;
        while (*end)
            end++;
        print(line, (const char *)end - line);
        print("\n", 1);
    }
    for (;;)
        call(SYS_ppoll, 0, 0, 0, 0);
}

static void flood(long bytes)
{
    volatile char *fill = piece;
    for (long n = 0; n < (long)sizeof piece; n++)
        fill[n] = n % 64 == 63 ? '\n' : 'x';
    for (long left = bytes; !bytes || left > 0; left -= sizeof piece)
        print(piece, bytes && left < (long)sizeof piece ? left : (long)sizeof piece);
}

static void tell_time(long ticks)
{
    while (ticks-- > 0) {
        long now[2], pause[2] = {0, 1000000};
        call(SYS_clock_gettime, 0, (long)now, 0, 0);
        long nanoseconds = now[0] * 1000000000 + now[1], length = 1;
        char line[24], *at = line + sizeof line;
        *--at = '\n';
        for (; nanoseconds; nanoseconds /= 10, length++)
            *--at = '0' + nanoseconds % 10;
        print(at, length);
        call(SYS_nanosleep, (long)pause, 0, 0, 0);
    }
}

static void pulse(long milliseconds)
{
    for (;;) {
        long pause[2] = {milliseconds / 1000, milliseconds % 1000 * 1000000};
        print("pulse\n", 6);
        call(SYS_nanosleep, (long)pause, 0, 0, 0);
    }
}

__attribute__((used, noreturn)) void run(long *stack)
{
    long count = stack[0];
    char **words = (char **)(stack + 1);
    if (count > 1) {
        const char *argument = count > 2 ? words[2] : 0;
        if (words[1][0] == 'i')
            idle(argument);
        else if (argument && words[1][0] == 'f')
            flood(number(argument));
        else if (argument && words[1][0] == 'p')
            pulse(number(argument));
        else if (argument)
            tell_time(number(argument));
    }
    for (;;)
        call(SYS_exit_group, 0, 0, 0, 0);
}
