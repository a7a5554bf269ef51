# A process that SIGKILL ends only once we let it: it stops at its exit, traced by us. Usage: linger.py FOLDER
# Makes FOLDER/lingering, with the process id, as soon as the process is in our caller's group and traced; we leave that group.
# Makes FOLDER/dying when it has been killed, and lets it end for FOLDER/end.
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
# The test may have failed, and taken the folder with it.
while os.path.isdir(folder) and not os.path.exists(folder + "/end"):
    time.sleep(0.02)
os.kill(child, signal.SIGKILL)
ptrace(PTRACE_CONT, child, None, None)
os.waitpid(child, 0)
