# A traced process that stops when it exits, so SIGKILL ends it only when this script permits. Usage: linger.py FOLDER
# Creates FOLDER/lingering, with the process ID, when the process is traced and in the caller's group. The script itself
# leaves that group. Creates FOLDER/dying when the process was killed, and lets it exit once FOLDER/end exists.
import ctypes, os, signal, sys, time

PTRACE_CONT, PTRACE_SEIZE, PTRACE_O_TRACEEXIT = 7, 0x4206, 0x40

folder, group = sys.argv[1], os.getpgrp()
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
os.setpgid(0, 0)
child = os.fork()
if child == 0:
    while True:
        signal.pause()
os.setpgid(child, group)
if ptrace(PTRACE_SEIZE, child, None, PTRACE_O_TRACEEXIT) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
with open(folder + "/tracing", "w") as file:
    print(child, file=file)
os.rename(folder + "/tracing", folder + "/lingering")
while os.path.isdir(folder) and os.waitpid(child, os.WNOHANG) == (0, 0):
    time.sleep(0.02)
if os.path.isdir(folder):
    with open(folder + "/dying", "w") as file:
        print(file=file)
# A failed test removes the folder.
while os.path.isdir(folder) and not os.path.exists(folder + "/end"):
    time.sleep(0.02)
os.kill(child, signal.SIGKILL)
ptrace(PTRACE_CONT, child, None, None)
os.waitpid(child, 0)
