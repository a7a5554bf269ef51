# Runs a command under a terminal of its own. Usage: terminal.py FOLDER COMMAND…
# Types the file FOLDER/typed-N when FOLDER/wanted-N appears, for N = 1, 2, …; the screen goes to FOLDER/screen.
# Ends with the exit code of the command.
import os, pty, select, signal, sys, termios

folder, command = sys.argv[1], sys.argv[2:]
# Nothing hangs longer than a test waits.
signal.alarm(50)
child, terminal = pty.fork()
if child == 0:
    # Otherwise the kernel throws away what is on its way to the screen, some time after it has sent the signal of a key:
    # also what the receiver of the signal has written by then.
    attributes = termios.tcgetattr(0)
    attributes[3] |= termios.NOFLSH
    termios.tcsetattr(0, termios.TCSANOW, attributes)
    os.execvp(command[0], command)
screen, number = open(folder + "/screen", "wb", buffering=0), 1
while True:
    if os.path.exists(f"{folder}/wanted-{number}"):
        os.write(terminal, open(f"{folder}/typed-{number}", "rb").read())
        number += 1
    try:
        if select.select([terminal], [], [], 0.02)[0]:
            screen.write(os.read(terminal, 4096))
    except OSError:
        break
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) % 256)
