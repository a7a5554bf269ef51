# Holds a program back between fork and exec. Usage: hold.py FOLDER
# Makes FOLDER/program, whose exit code is 5, and FOLDER/held. Whoever starts the program waits in the middle of exec,
# for as long as the kernel lets a lease of the file be kept. Makes FOLDER/wanted-2 then, and lets it go for FOLDER/end.
import fcntl, os, signal, sys, time

folder = sys.argv[1]
program = os.open(folder + "/program", os.O_WRONLY | os.O_CREAT, 0o755)
os.write(program, b"#!/bin/sh\nexit 5\n")
os.close(program)
program = os.open(folder + "/program", os.O_RDONLY)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
fcntl.fcntl(program, fcntl.F_SETLEASE, fcntl.F_WRLCK)
open(folder + "/held", "w").close()
signal.sigtimedwait([signal.SIGIO], 50)
open(folder + "/wanted-2", "w").close()
while not os.path.exists(folder + "/end"):
    time.sleep(0.02)
fcntl.fcntl(program, fcntl.F_SETLEASE, fcntl.F_UNLCK)
