// Runs a program whose system calls sometimes fail or transfer only a part, in all of its threads and children. Uses ptrace(2),
// because a program may call the system without the C library. The program keeps this process's id.
//
// Usage: faults FOLDER EVERY ERRNO NAME... -- PROGRAM ARGUMENT...
// While the file FOLDER/on exists, every EVERY-th call with one of the names fails with ERRNO. If ERRNO is 0, it reads or writes
// only one byte, or one buffer of several. Appends a byte to FOLDER/done each time. For x86-64.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALL(name) {#name, SYS_##name}
static const struct { const char *name; int number; } CALLS[] = {
    CALL(accept4), CALL(clone), CALL(clone3), CALL(connect), CALL(epoll_wait), CALL(fork), CALL(openat), CALL(read), CALL(readv),
    CALL(recvfrom), CALL(sendmsg), CALL(sendto), CALL(socket), CALL(socketpair), CALL(vfork), CALL(write), CALL(writev),
};
// Shorter transfers are those of event counters, which the kernel does not split.
enum { SHORTEST = 9, MOST_CALLS = 32 };

static void require(long result, const char *what) {
    if (result < 0) { perror(what); exit(127); }
}

static void inject(pid_t thread, int error) {
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, thread, 0, &regs)) return;
    if (error) {
        regs.orig_rax = -1;
        regs.rax = -error;
    } else if (regs.orig_rax == SYS_writev || regs.orig_rax == SYS_readv) {
        regs.rdx = 1;
    } else if (regs.orig_rax == SYS_sendmsg) {
        ptrace(PTRACE_POKEDATA, thread, regs.rsi + offsetof(struct msghdr, msg_iovlen), 1L);
    } else if (regs.rdx >= SHORTEST) {
        regs.rdx = 1;
    }
    ptrace(PTRACE_SETREGS, thread, 0, &regs);
}

static void trace(const char *folder, long every, int error) {
    char on[4096], done[4096];
    snprintf(on, sizeof on, "%s/on", folder);
    snprintf(done, sizeof done, "%s/done", folder);
    int counter = open(done, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), status;
    require(counter, done);
    long calls = 0;
    for (pid_t thread; (thread = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) continue;
        int event = status >> 16, number = WSTOPSIG(status);
        if (event == PTRACE_EVENT_SECCOMP && !access(on, F_OK) && ++calls % every == 0) {
            inject(thread, error);
            require(write(counter, "x", 1), done);
        }
        int is_paused = event == PTRACE_EVENT_STOP && (number == SIGSTOP || number == SIGTSTP);
        ptrace(is_paused ? PTRACE_LISTEN : PTRACE_CONT, thread, 0, event ? 0 : number);
    }
    exit(0);
}

int main(int count, char **words) {
    struct sock_filter filter[MOST_CALLS + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    int next = 4, calls = 0;
    for (; next < count && strcmp(words[next], "--"); next++) {
        size_t call = 0;
        while (strcmp(CALLS[call].name, words[next])) {
            if (++call == sizeof CALLS / sizeof *CALLS) { fprintf(stderr, "unknown call %s\n", words[next]); return 127; }
        }
        filter[++calls] = (struct sock_filter)BPF_STMT(0, CALLS[call].number);
    }
    for (int call = 1; call <= calls; call++) {
        filter[call] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, filter[call].k, calls - call + 1, 0);
    }
    filter[calls + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[calls + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    struct sock_fprog program = {.len = calls + 3, .filter = filter};

    pid_t traced = getpid(), child;
    int ready[2];
    require(pipe2(ready, O_CLOEXEC), "pipe2");
    require(child = fork(), "fork");
    if (!child) {
        // A grandchild, so that the program has no child that it does not know.
        if (fork()) _exit(0);
        long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK;
        require(ptrace(PTRACE_SEIZE, traced, 0, options), "PTRACE_SEIZE");
        require(write(ready[1], "x", 1), "write");
        close(ready[0]);
        close(ready[1]);
        trace(words[1], atol(words[2]), atoi(words[3]));
    }
    close(ready[1]);
    waitpid(child, NULL, 0);
    char byte;
    if (read(ready[0], &byte, 1) != 1) return 127;
    require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    require(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
    execvp(words[next + 1], words + next + 1);
    perror(words[next + 1]);
    return 127;
}
