# Blocks the start of a program between fork and exec. Usage: hold.py FOLDER
# Creates FOLDER/program, whose exit code is 5, and FOLDER/held. Starting the program then blocks in exec for as long
# as the kernel permits a lease on the file. Creates FOLDER/wanted-2 at that point, and ends the lease once FOLDER/end
# exists.
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
